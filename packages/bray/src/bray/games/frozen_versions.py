"""Frozen versions of learners as opponents: made, found again, and let go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.best import pin_newest
from bray.games.pairings import learner_of, player_name
from bray_core.errors import AlreadyExistsError, NotFoundError


def freeze_version(model: Any, name: str) -> int:
    """Keep what a model answers with now under a name for ever, and return its version.

    It stays on disk and across restarts, in either runtime.

    Args:
        model: A `Model` or `RemoteModel` with a directory.
        name: Name that is new among the model's clones; `frozen_version` finds it.

    Raises:
        AlreadyExistsError: the model has a clone of that name.
        CheckpointError: the version cannot be written.
    """
    version, _ = pin_newest(model)  # for those who open it after a restart
    model.clone(version, name)
    return version


def frozen_version(model: Any, name: str, version: int) -> Any:
    """Return the model of a frozen version.

    Raises:
        VersionNotFoundError: it is not in the model's directory any more.
    """
    try:
        return model.get_clone(name)
    except NotFoundError:  # on Ray, after a restart: the file is there, its name is not
        return model.clone(version, name)


class FrozenVersions:
    """Frozen versions by name, such as `main:v12`, oldest first.

    Args:
        models: Models of the learners by name: `Model`s or `RemoteModel`s with a directory.
    """

    def __init__(self, models: Mapping[str, Any]) -> None:
        self.numbers: dict[str, int] = {}
        """Version of its learner's model, by name."""
        self._models = models
        self._clones: dict[str, Any] = {}
        self._leaving: tuple[str, int] | None = None

    def of(self, learner: str) -> list[str]:
        """Return the names of a learner's versions, oldest first."""
        return [name for name in self.numbers if learner_of(name) == learner]

    def find(self, name: str) -> str:
        """Return the whole name of a version, `main:v12` for the `v12` of a single learner.

        Raises:
            NotFoundError: there is no such version; names those that are.
        """
        is_short = ":" not in name and len(self._models) == 1
        full = player_name(next(iter(self._models)), name) if is_short else name
        if full not in self.numbers:
            known = ", ".join(self.numbers) or "none yet"
            raise NotFoundError(f"version: expected one of {known}, got {name!r}")
        return full

    def next_name(self, learner: str) -> str | None:
        """Return the name of a learner's current version; None where that is frozen already."""
        name = player_name(learner, f"v{self._models[learner].version}")
        return None if name in self.numbers else name

    def freeze(self, learner: str, name: str) -> None:
        """Keep a learner's current version on disk.

        Raises:
            CheckpointError: it cannot be written.
        """
        model = self._models[learner]
        try:
            self.numbers[name] = freeze_version(model, _clone_name(name))
        except AlreadyExistsError:  # a run that was killed had frozen it, but not noted it
            self.numbers[name] = int(model.get_clone(_clone_name(name)).version)

    def model(self, name: str) -> Any:
        """Return the model of a version.

        Raises:
            VersionNotFoundError: it is not in its learner's directory any more.
        """
        if name not in self._clones:
            model, number = self._models[learner_of(name)], self.numbers[name]
            self._clones[name] = frozen_version(model, _clone_name(name), number)
        return self._clones[name]

    def drop(self, name: str, *, keeps_file: bool) -> None:
        """Forget a version. Games under way may still ask it, until the next one is dropped.

        Args:
            name: Name of the version.
            keeps_file: Whether its weights stay pinned on disk, as others need them.
        """
        if self._leaving is not None:
            learner, number = self._leaving
            self._models[learner].pin(number, pinned=False)
        number = self.numbers.pop(name)
        self._clones.pop(name, None)
        self._leaving = None if keeps_file else (learner_of(name), number)


def _clone_name(name: str) -> str:
    return name.rpartition(":")[2]
