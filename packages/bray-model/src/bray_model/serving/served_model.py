"""A model that is replaced while it serves."""

from __future__ import annotations

from pathlib import Path

from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_model.export.manifest import Manifest
from bray_model.model import Model
from bray_model.signature import Signature


class ServedModel:
    """What an actor holds in place of a model: each call goes to the one of now.

    A call that runs while the model is replaced is answered by the old one, which lives as long as
    somebody waits for it.
    """

    def __init__(self, model: Model, manifest: Manifest) -> None:
        self.current = model, manifest
        """Assign to replace both, by those of an export with the same signature."""

    @property
    def model(self) -> Model:
        """The one that answers now."""
        return self.current[0]

    @property
    def manifest(self) -> Manifest:
        """Of its export."""
        return self.current[1]

    @property
    def name(self) -> str:
        """The model's."""
        return self.manifest.name

    @property
    def version(self) -> int:
        """The version that the next batch will be answered with."""
        return self.model.version

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""
        return self.model.signature

    async def infer(
        self,
        *inputs: Nested,
        batch: bool = False,
        session: str | None = None,
        must_exist: bool = False,
    ) -> Answer:
        """As `Model.infer`; a session's state does not outlive the model that kept it."""
        model = self.model
        return await model.infer(*inputs, batch=batch, session=session, must_exist=must_exist)

    def end_session(self, session: str) -> None:
        """As `Model.end_session`."""
        self.model.end_session(session)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """As `Model.forward`."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def publish(self, weights: Weights) -> int:
        """As `Model.publish`."""
        return self.model.publish(weights)

    def checkpoint(self) -> Path | None:
        """As `Model.checkpoint`: an export has no folder for it."""
        return self.model.checkpoint()

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """As `Model.wait_version`."""
        return await self.model.wait_version(version, timeout_s)
