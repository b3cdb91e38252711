"""The model of this process: a network that answers batches while its weights change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bray_core.errors import (
    ClosedError,
    ConfigError,
    ExportError,
    MissingExtraError,
    SpecError,
    VersionNotFoundError,
)
from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_model.batcher import Batcher
from bray_model.config import ModelConfig
from bray_model.definition import Definition, open_definition
from bray_model.executor import Current, Executor, Request
from bray_model.manifest import QUANTIZED
from bray_model.versions import VersionStore
from bray_model.waiters import VersionWaiters
from bray_model.weights import check_weights, weights_spec

if TYPE_CHECKING:
    from bray_model.definition import Source
    from bray_model.export_report import ExportReport


class Model:
    """Batched inference of a policy whose weights may change while it serves.

    Thread-safe: `infer` may be awaited on any event loop (requests of one loop share batches),
    and `publish` called from any thread.

    Args:
        module: a torch module, which is copied, or the folder of an export, which needs no torch.
        example_inputs: for a module: the tuple of its arguments (or its only argument), nested
            arrays or tensors with batch dimension `[B, ...]`.
        name: for messages, threads and exports.
        config: batching and retention.
        directory: where `checkpoint` writes, below `versions/`. The newest version there is
            taken up, and the numbering goes on from it.

    Raises:
        SpecError: the example inputs do not fit the module, or the stored weights do not.
        ExportError: the export is broken.
        MissingExtraError: a module without torch installed.

    Example:
        >>> model = Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32))
        >>> model(np.ones(4, np.float32)).shape
        (2,)
    """

    def __init__(
        self,
        module: Source,
        example_inputs: Nested | None = None,
        *,
        name: str = "model",
        config: ModelConfig | None = None,
        directory: str | Path | None = None,
    ) -> None:
        config = config or ModelConfig()
        definition = open_definition(module, example_inputs, config)
        self._set_up(definition, name, config, directory)
        if self._store is not None and (versions := self._store.versions()):
            self.load(versions[-1])

    def _set_up(
        self,
        definition: Definition,
        name: str,
        config: ModelConfig,
        directory: str | Path | None = None,
    ) -> None:
        self.name = name
        self.config = config
        self.signature = definition.signature
        self._definition = definition
        weights = definition.engine.weights()
        self._weights_spec = None if weights is None else weights_spec(weights)
        if weights is None and directory is not None:
            raise ConfigError("directory: the weights of an export are fixed: leave it out")
        self._store = (
            None
            if directory is None
            else VersionStore(Path(directory) / "versions", config.retention)
        )
        self._newest = definition.version
        current = Current(definition.version, weights)
        self._executor = Executor(definition.engine, definition.signature, config, current)
        self._pool = (
            None
            if config.inline
            else ThreadPoolExecutor(1, thread_name_prefix=f"bray-model-{name}")
        )
        self._lock = threading.Lock()  # the newest number, the batchers, closing
        self._batchers: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._waiters = VersionWaiters()
        self._closed = False

    @property
    def version(self) -> int:
        """The version that the next batch will be answered with; 0 before the first publish."""
        return self._executor.current.version

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer one row, or with `batch` rows `[B, ...]`, in a batch with other callers' rows.

        The inputs are read until the answer is there. More than `max_batch_size` rows are
        split, answered by one version, and joined.

        Raises:
            SpecError: an input does not fit the signature; names its path.
            NonFiniteError: an output is not finite, and `reject_non_finite` is set; names it.
            CapacityError: too many rows wait.
            DeadlineError: no answer within `timeout_s` of the config.
            ClosedError: the model was closed.
        """
        self._check_open()
        request = self._request(inputs, batch)
        batcher = self._batchers.get(asyncio.get_running_loop()) or self._new_batcher()
        return await batcher.answer(request)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """`infer` without the version."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def __call__(self, *inputs: Nested, batch: bool = False) -> Nested:
        """Compute at once in this thread, without an event loop and apart from other callers.

        Raises:
            SpecError: an input does not fit the signature; names its path.
            ClosedError: the model was closed.
        """
        self._check_open()
        (answer,) = self._executor.run([self._request(inputs, batch)])
        if isinstance(answer, Exception):
            raise answer
        return answer.outputs

    def publish(self, weights: Weights, *, version: int | None = None) -> int:
        """Make a copy of `weights` current from the next batch on, and return its version.

        Args:
            weights: name → array, as in the module's `state_dict()`.
            version: the number, for a copy of another model; by default the next one.

        Raises:
            SpecError: a name, shape or dtype differs; names the parameter.
            ConfigError: the version is not newer, or the weights are fixed (an export).
        """
        copied = self._checked_weights(weights)
        with self._lock:
            self._check_open()
            number = self._newest + 1 if version is None else version
            if number <= self._newest:
                raise ConfigError(
                    f"version={number}: expected more than {self._newest}, the newest so far"
                )
            self._newest = number
            self._executor.current = Current(number, copied)
        self._waiters.announce(number)
        return number

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until `self.version >= version` and return it.

        Raises:
            DeadlineError: it was not within `timeout_s` seconds.
            ClosedError: the model was closed.
        """
        self._check_open()
        return await self._waiters.wait(version, lambda: self.version, timeout_s)

    def weights(self) -> tuple[int, Weights]:
        """Return the current version and its weights; they are shared: do not write to them.

        Raises:
            ConfigError: the weights are fixed (an export).
        """
        current = self._executor.current
        if current.weights is None:
            raise self._fixed()
        return current.version, current.weights

    def checkpoint(self) -> Path | None:
        """Write the current version below `directory` and return its file.

        Returns:
            None where the model has no directory: nothing is written.
        """
        return None if self._store is None else self._store.save(*self.weights())

    def load(self, version: int) -> int:
        """Make a version from disk current, under its own number, and return that.

        The next `publish` still continues after the newest number ever used.

        Raises:
            VersionNotFoundError: it is not on disk; names those that are.
            SpecError: its weights are not this module's.
        """
        store = self._stored()
        try:
            weights = self._checked_weights(store.load(version))
        except SpecError as error:
            raise SpecError(
                f"version {version} in {store.path} is of another module: {error}; "
                "use another directory or trial"
            ) from None
        with self._lock:
            self._check_open()
            self._newest = max(self._newest, version, *store.versions())
            self._executor.current = Current(version, weights)
        self._waiters.announce(version)
        return version

    def pin(self, version: int, *, pinned: bool = True) -> None:
        """Keep a version on disk whatever `retention` says, or no longer.

        Raises:
            VersionNotFoundError: it is not on disk; names those that are.
            ConfigError: the model has no directory.
        """
        self._stored().pin(version, pinned)

    def clone(self, version: int = -1, name: str | None = None) -> Model:
        """Return a separate model of the same definition with the weights of `version`.

        Args:
            version: -1 is the current one; any other than the current is read from disk.
            name: of the clone; by default `<name>-v<version>`.

        Raises:
            VersionNotFoundError: it is neither current nor on disk.
        """
        self._check_open()
        number, weights = self._executor.current
        if version not in (-1, number):
            if self._store is None:
                raise VersionNotFoundError(
                    f"version {version}: model {self.name!r} holds version {number} only, and "
                    "has no directory to read others from"
                )
            number, weights = version, self._checked_weights(self._store.load(version))
        clone = object.__new__(Model)
        definition = self._definition.copy(number, weights)
        clone._set_up(definition, name or f"{self.name}-v{number}", self.config)
        return clone

    def export(
        self,
        directory: str | Path,
        *,
        actor: Mapping[str, Any] | None = None,
        random_outputs: Sequence[str] = (),
    ) -> ExportReport:
        """Write the current version as an ONNX export and compare it with the module.

        Args:
            directory: the folder to make; an older export there is replaced when all went well.
            actor: `{"name": ..., "config": {...}}`: what `bray serve` shall answer with.
            random_outputs: names of outputs that the module draws at random, or computes from
                what it drew, such as `("outputs/action",)`: they are not compared.

        Raises:
            ExportError: the module cannot be exported, or differs beyond tolerance.
            ConfigError: `actor` is malformed, or `random_outputs` names no output.
            AlreadyExistsError: the folder holds something else.
        """
        if self._definition.example is None:
            raise ExportError(f"model {self.name!r}: is an export itself: copy its folder")
        current = self._executor.current
        try:
            from bray_model.export import export
        except ImportError as error:
            raise MissingExtraError("Model.export", "bray-model", "torch") from error
        definition = self._definition.copy(*current)
        return export(
            definition, Path(directory), name=self.name, actor=actor, random_outputs=random_outputs
        )

    def close(self) -> None:
        """Fail those who wait with ClosedError and refuse further use; again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            batchers = list(self._batchers.values())
        for batcher in batchers:
            batcher.close_soon()
        self._waiters.fail(self._closed_error())
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version})"

    def _request(self, inputs: tuple[Nested, ...], batch: bool) -> Request:
        if batch:
            leaves, rows = self.signature.input_tree.batch(inputs)
            return Request(leaves, rows, True)
        return Request(self.signature.input_tree.row(inputs))

    def _new_batcher(self) -> Batcher:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            for other in [other for other in self._batchers if other.is_closed()]:
                del self._batchers[other]
            batcher = Batcher(loop, self._executor.run, self.config, self._pool, self.name)
            self._batchers[loop] = batcher
        return batcher

    def _checked_weights(self, weights: Weights) -> dict[str, np.ndarray[Any, Any]]:
        if self._weights_spec is None:
            raise self._fixed()
        check_weights(weights, self._weights_spec)
        return {name: np.array(array, order="C") for name, array in weights.items()}

    def _stored(self) -> VersionStore:
        if self._store is None:
            raise ConfigError(
                f"model {self.name!r}: has no directory for versions: pass directory=..."
            )
        return self._store

    def _fixed(self) -> ConfigError:
        if self.config.backend in QUANTIZED:
            return ConfigError(
                f"model {self.name!r}: the weights of backend={self.config.backend!r} are fixed: "
                "its graph was made for them; export the new ones and quantize that"
            )
        return ConfigError(
            f"model {self.name!r}: the weights of this export are fixed (its graph computes with "
            "them while it is made): publish to the model of the torch module and export that again"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"model {self.name!r}: closed")
