"""Curriculum: settings of the environments that follow the progress of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from bray.callbacks import Callback, Progress
from bray_actor.reset_options import NewResetOptions
from bray_core.config import from_mapping
from bray_core.errors import ConfigError
from bray_core.process.raised_words import raised_words
from bray_core.process.user_modules import find_user_code
from bray_core.settings.schedule import Schedule

MAX_BYTES = 64 * 1024
"""Bytes of a curriculum's settings as JSON: they travel with the start of each episode."""


class ResettableSource(Protocol):
    """A source whose environments take options when they are reset."""

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions` for later episodes."""
        ...


class Curriculum:
    """What environments are given at a point of training.

    Args:
        setting: a schedule by the name of each setting, such as `{difficulty: {start: 0.1, end:
            1.0, frames: 200000}}`; or `module:function` or `file.py:function`, which is called
            with a `Progress` and returns settings by name.

    Raises:
        ConfigError: a schedule is none, or the name is that of no function.
    """

    def __init__(self, setting: str | Mapping[str, Any]) -> None:
        self._name = setting if isinstance(setting, str) else "curriculum"
        self._schedules: dict[str, Schedule] = {}
        self._function: Callable[[Progress], Any] | None = None
        if isinstance(setting, str):
            self._function = _found(setting)
        else:
            self._schedules = schedules_of(setting)

    def at(self, progress: Progress) -> dict[str, Any]:
        """Return the settings at a point of training.

        Raises:
            ConfigError: the function raised, or returned no settings that JSON can hold.
        """
        if self._function is None:
            return {name: one.at(progress.frames) for name, one in self._schedules.items()}
        try:
            settings = self._function(progress)
        except Exception as error:  # the boundary to code of others
            raise ConfigError(f"source.curriculum: {self._name}: {raised_words(error)}") from error
        return _plain(self._name, settings)


def schedules_of(setting: Mapping[str, Any]) -> dict[str, Schedule]:
    """Return the schedules of a curriculum by the names of the settings.

    Raises:
        ConfigError: one is no schedule; names it.
    """
    return {
        name: value
        if isinstance(value, Schedule)
        else from_mapping(_mapping(name, value), Schedule, f"curriculum.{name}")
        for name, value in setting.items()
    }


def check_curriculum(setting: str | Mapping[str, Any] | None) -> None:
    """Refuse a setting that is no curriculum, without importing what it names.

    Raises:
        ConfigError: begins with `curriculum`.
    """
    if isinstance(setting, str):
        where, _, function = setting.rpartition(":")
        if not where or not function.isidentifier():
            raise ConfigError(
                "curriculum: expected schedules by name, or module:function or file.py:function, "
                f"got {setting!r}"
            )
    elif setting is not None:
        schedules_of(setting)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"curriculum.{name}: expected a schedule such as {{start: 0.1, end: 1.0, "
            f"frames: 200000}}, got {value!r}"
        )
    return value


def _found(name: str) -> Callable[[Progress], Any]:
    try:
        found = find_user_code(name)
    except (ImportError, AttributeError, OSError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"source.curriculum: expected module:function or file.py:function, got {name!r}: "
            f"{error}"
        ) from error
    if not callable(found):
        raise ConfigError(f"source.curriculum: {name!r}: expected a function, got {found!r}")
    function: Callable[[Progress], Any] = found
    return function


def _plain(name: str, settings: Any) -> dict[str, Any]:
    """Return settings as JSON holds them, so that they are the same here and over the wire."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(
            f"source.curriculum: {name}: expected settings by name, got {settings!r:.200}"
        )
    try:
        text = json.dumps(dict(settings), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"source.curriculum: {name}: expected finite numbers, words, lists and settings, got "
            f"{settings!r:.200}: {error}"
        ) from error
    if len(text) > MAX_BYTES:
        raise ConfigError(
            f"source.curriculum: {name}: expected at most {MAX_BYTES:,} bytes, got {len(text):,}"
        )
    plain: dict[str, Any] = json.loads(text)
    return plain


class CurriculumCallback(Callback):
    """Gives a curriculum's settings to the environments of a source whenever they change.

    Args:
        curriculum: what follows the progress.
        source: what plays.
        given: settings that its environments began with.
    """

    def __init__(
        self, curriculum: Curriculum, source: ResettableSource, given: Mapping[str, Any]
    ) -> None:
        self._curriculum = curriculum
        self._source = source
        self._given = given

    def on_update(self, progress: Progress) -> None:
        """Give the settings that are due now."""
        settings = self._curriculum.at(progress)
        if settings != self._given:
            self._given = settings
            self._source.tell(NewResetOptions(settings))
