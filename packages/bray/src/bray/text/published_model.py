"""The model of a run as its trainer and its loop see it: versions published, kept and exported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from bray.text.lora_merge import LoraMerge
from bray.text.value_head import without_value_head
from bray_core.errors import BrayError, DeadlineError
from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_model.text.text_folder import FOLDER_OF_A_TRIAL
from bray_model.text.text_model import TextModel
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

_LOOK_S = 0.01


class PublishedTextModel:
    """Publishes to a `TextModel`, and keeps versions in the trial's folder.

    Args:
        model: what samples.
        directory: folder of the model in the trial.
        keep_versions: number of newest versions that stay on disk.
    """

    def __init__(
        self,
        model: TextModel,
        directory: Path,
        *,
        keep_versions: int = 10,
    ) -> None:
        self.text = model
        self._store = VersionStore(directory / "versions", Retention(keep_last=keep_versions))
        self._folder = directory / FOLDER_OF_A_TRIAL
        self.lora: LoraMerge | None = None
        """How adapters of what is published are merged; None: it has none."""
        self._give: Callable[[Mapping[str, Any], int], object] | None = None
        known = self._store.versions()
        if known:
            model.publish(self._store.load(known[-1]), known[-1])

    @property
    def version(self) -> int:
        """The version that the next token is sampled with."""
        return self.text.version

    def publish(self, weights: Weights) -> int:
        """Make new weights, adapters merged, the current version and return its number."""
        plain: Mapping[str, Any] = without_value_head(weights)
        if self.lora is not None:
            plain = self.lora.merged(plain)
        version = self.text.publish(plain)
        if self._give is not None:
            self._give(self.text.weights(), version)
        return version

    def share(self, give: Callable[[Mapping[str, Any], int], object]) -> None:
        """Give what is published from now on to samplers in other processes, too.

        Args:
            give: weights by name, and their version → nothing; called in the publishing thread.
        """
        self._give = give

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Refuse: a language model samples tokens, by `text.generate`."""
        raise BrayError("infer: a language model samples text: call generate of its TextModel")

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """Refuse, as `infer`."""
        return (await self.infer(*inputs, batch=batch)).outputs

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until `self.version >= version`; return it.

        Raises:
            DeadlineError: it was not published in time.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while self.version < version:
            if deadline is not None and monotonic() > deadline:
                raise DeadlineError(f"version {version}: not published within {timeout_s:g} s")
            await asyncio.sleep(_LOOK_S)
        return self.version

    def checkpoint(self) -> Path:
        """Write the current version to disk, if it is not there, and return its file."""
        version = self.version
        if version in self._store.versions():
            return self._store.path / f"{version}.safetensors"
        weights = self.text.weights()
        arrays = {name: leaf.detach().cpu().numpy() for name, leaf in weights.items()}
        return self._store.save(version, arrays)

    def pin(self, version: int, *, pinned: bool = True) -> None:
        """Keep a version on disk whatever the retention says, or no longer."""
        self._store.pin(version, pinned)

    def export(self, version: int | None = None) -> Path:
        """Write the folder that transformers and vLLM load, and return it.

        Args:
            version: a version on disk; None is the current one.
        """
        if version is not None and version != self.version:
            newest = self.version
            self.checkpoint()
            self.text.publish(self._store.load(version), newest + 1)
        return self.text.save(self._folder)

    def close(self) -> None:
        """Let the memory of the sampler go."""
        self.text.close()
