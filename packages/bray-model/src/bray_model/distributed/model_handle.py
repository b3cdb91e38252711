"""A handle on a model that lives in several processes: its methods, without the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bray_core.errors import ConfigError, DeadlineError
from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_model.distributed.attachment import ModelAttachment
from bray_model.model import Model
from bray_model.signature import Signature
from bray_model.versions.weights import WeightsStamp

if TYPE_CHECKING:
    from bray_model.distributed.client_model import ClientModel
    from bray_model.export.export_report import ExportReport

H = TypeVar("H")
"""The handle's own class."""


class ModelHandle(Generic[H]):
    """The methods of `Model` on a process's attachment, which is made at the first use."""

    def _set_up(self, name: str, root: str, clone: str | None, frozen: int | None) -> None:
        self.name = name
        self._root = root
        self._clone = clone
        self._frozen = frozen
        self._attachment: ModelAttachment | None = None
        self._model: Model | ClientModel | None = None

    def _attach(self) -> ModelAttachment:
        """Return what this process has of the model."""
        raise NotImplementedError

    def _clone_handle(self, name: str, version: int) -> H:
        """Return a handle on a clone of the model."""
        raise NotImplementedError

    @property
    def version(self) -> int:
        """The newest version that this process can answer with, or a clone's.

        With inference workers: the newest that this process published or was answered with.
        """
        return self._answering().version if self._frozen is None else self._frozen

    @property
    def signature(self) -> Signature:
        """What the model takes and gives."""
        return self._attached().blueprint.signature

    async def infer(
        self, *inputs: Nested, batch: bool = False, session: str | None = None
    ) -> Answer:
        """Answer where `placement` says; as `Model.infer`.

        A session stays with one inference worker, which keeps its state.

        Raises:
            WorkerLostError: an inference worker died, and so did the one asked instead; or it had
                the state of the session, whose next call begins with zeros.
        """
        model = self._model
        if model is None:
            model = await asyncio.to_thread(self._answering)
        return await model.infer(*inputs, batch=batch, session=session)

    async def forward(
        self, *inputs: Nested, batch: bool = False, session: str | None = None
    ) -> Nested:
        """`infer` without the version."""
        return (await self.infer(*inputs, batch=batch, session=session)).outputs

    def __call__(self, *inputs: Nested, batch: bool = False, session: str | None = None) -> Nested:
        """Compute at once, without an event loop; as `Model.__call__`."""
        return self._answering()(*inputs, batch=batch, session=session)

    def end_session(self, session: str) -> None:
        """Drop the state of a session, soon; one that is unknown is harmless."""
        self._answering().end_session(session)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until `self.version >= version`; as `Model.wait_version`."""
        if self._frozen is not None:
            if self._frozen < version:
                raise DeadlineError(f"version {version}: {self.name!r} stays at {self._frozen}")
            return self._frozen
        model = self._model
        if model is None:
            model = await asyncio.to_thread(self._answering)
        return await model.wait_version(version, timeout_s)

    def publish(self, weights: Weights) -> int:
        """Send new weights to all replicas and return their version.

        Raises:
            SpecError: a name, shape or dtype differs, or a number is not finite; names the
                parameter. All replicas go on with the version before.
            ConfigError: another process published meanwhile, or this is a clone.
            WorkerLostError: the store died and was not back in time.
        """
        self._check_not_frozen("publish")
        return self._updated(self._attached().replica().publish(weights))

    def load(self, version: int) -> int:
        """Make a version from disk current in all replicas, under its own number; return that.

        The next `publish` still continues after the newest number ever used.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
            ConfigError: the model has no directory, another process published meanwhile, or this
                is a clone.
        """
        self._check_not_frozen("load")
        return self._updated(self._attached().replica().load(version))

    def _updated(self, stamp: WeightsStamp) -> int:
        self._attached().saw(stamp)
        return stamp.version

    def _check_not_frozen(self, what: str) -> None:
        if self._frozen is not None:
            raise ConfigError(
                f"{what}: {self.name!r} is a clone, frozen at version {self._frozen}: {what} to "
                f"its model {self._root!r}"
            )

    def clone(self, version: int = -1, name: str | None = None) -> H:
        """Return a frozen version under a name of its own, served by the same processes.

        It takes no process and, before a process first uses it, no memory there. A version on
        disk is pinned and read from there; other weights are kept by the store.

        Args:
            version: -1 is the current one; any other than the current is read from disk.
            name: unique among the model's clones; by default `<name>-v<version>`.

        Raises:
            AlreadyExistsError: the model has a clone of that name.
            VersionNotFoundError: The version is neither current nor on disk.
        """
        replica = self._attached().replica()
        if self._clone is None:
            entry = replica.clones.clone(version, name)
        else:
            entry = replica.clones.clone_of(self._clone, version, name)
        return self._clone_handle(entry.name, entry.version)

    def get_clone(self, name: str) -> H:
        """Look up a clone of this model by name.

        Raises:
            NotFoundError: there is none; names those that there are.
        """
        return self._clone_handle(name, self._attached().clone_version(name))

    def weights(self) -> tuple[int, Weights]:
        """Return the version and weights of this process's replica; do not write to them."""
        return self._local().weights()

    def checkpoint(self) -> Path | None:
        """Write this process's version below the model's directory; as `Model.checkpoint`."""
        return self._attached().replica().checkpoint() if self._clone is None else None

    def pin(self, version: int, *, pinned: bool = True) -> None:
        """Keep a version on disk whatever `retention` says, or no longer; as `Model.pin`."""
        self._attached().replica().pin(version, pinned)

    def export(
        self,
        directory: str | Path,
        *,
        name: str | None = None,
        actor: Mapping[str, Any] | None = None,
        random_outputs: Sequence[str] = (),
        tolerance: float | None = None,
    ) -> ExportReport:
        """Export this process's version; as `Model.export`."""
        return self._local().export(
            directory, name=name, actor=actor, random_outputs=random_outputs, tolerance=tolerance
        )

    def _attached(self) -> ModelAttachment:
        if self._attachment is None:
            self._attachment = self._attach()
        return self._attachment

    def _answering(self) -> Model | ClientModel:
        if self._model is None:
            self._model = self._attached().model(self._clone, self._frozen)
        return self._model

    def _local(self) -> Model:
        replica = self._attached().replica()
        return replica.model if self._clone is None else replica.clones.model(self._clone)
