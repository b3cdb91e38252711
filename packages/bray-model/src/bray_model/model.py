"""The model of this process: a network that answers batches while its weights change."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bray_core.errors import ClosedError, ExportError, MissingExtraError
from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_model.batching.batcher import LoopBatchers
from bray_model.batching.executor import BatchExecutor, BatchRequest
from bray_model.batching.session_states import SessionStates
from bray_model.clones import Clones, SharedRuntime
from bray_model.config import ModelConfig
from bray_model.engines.definition import open_definition
from bray_model.versions.model_versions import ModelVersions
from bray_model.versions.version_store import VersionStore
from bray_model.versions.weights import VersionWeights

if TYPE_CHECKING:
    from bray_model.engines.definition import ModelSource
    from bray_model.export.export_report import ExportReport


class Model:
    """Batched inference of a policy whose weights may change while it serves.

    Thread-safe: `infer` may be awaited on any event loop (requests of one loop share batches),
    and `publish` called from any thread.

    Args:
        module: Torch module, which is copied, or the folder of an export, which needs no torch.
        example_inputs: Inputs of a module: the tuple of its arguments (or its only one), nested
            arrays or tensors with batch dimension `[B, ...]`.
        name: Name in messages, threads and exports.
        config: Batching, memory and retention.
        directory: Folder in which `checkpoint` writes below `versions/`, and clones below
            `clones/<name>/`.
            The newest version there is taken up, and the numbering goes on from it.
        state: Recurrent inputs that the model keeps for a session: input → the output that it
            comes from, such as `{"inputs[1]": "outputs/state"}`. An export brings its own.

    Raises:
        SpecError: the example inputs do not fit the module, or the stored weights do not, or an
            input of the state is unlike its output.
        ExportError: the export is broken.
        MissingExtraError: a module without torch installed.

    Examples:
        >>> model = Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32))
        >>> model(np.ones(4, np.float32)).shape
        (2,)
    """

    def __init__(
        self,
        module: ModelSource,
        example_inputs: Nested | None = None,
        *,
        name: str = "model",
        config: ModelConfig | None = None,
        directory: str | Path | None = None,
        state: Mapping[str, str] | None = None,
    ) -> None:
        config = config or ModelConfig()
        definition = open_definition(module, example_inputs, config)
        if state is not None:
            signature = replace(definition.signature, state=state)
            definition = replace(definition, signature=signature)
        runtime = SharedRuntime(definition, config, name, directory=directory is not None)
        self._set_up(name, runtime, runtime.executor, directory, None)
        self._versions.load_newest()

    def _set_up(
        self,
        name: str,
        runtime: SharedRuntime,
        executor: BatchExecutor,
        directory: str | Path | None,
        parent: Model | None,
    ) -> None:
        self.name = name
        self.config = runtime.config
        self.signature = runtime.definition.signature
        self._runtime = runtime
        self._executor = executor
        self._parent = parent
        self._directory = None if directory is None else Path(directory)
        store = self._store_below(self._directory)
        self._versions = ModelVersions(
            name, executor, runtime.check_weights, store, runtime.why_fixed()
        )
        self._batchers = LoopBatchers(executor.run, self.config, runtime.pool, name)
        self._sessions = SessionStates(self.signature, self.config, name)
        self._clones: Clones[Model] = Clones(name, self._directory)
        self._is_temporary = False
        self._lock = threading.Lock()  # closing
        self._closed = False

    @property
    def version(self) -> int:
        """The version that the next batch will be answered with; 0 before the first publish."""
        return self._versions.current.version

    async def infer(
        self,
        *inputs: Nested,
        batch: bool = False,
        session: str | None = None,
        must_exist: bool = False,
    ) -> Answer:
        """Answer one row, or with `batch` rows `[B, ...]`, in a batch with other callers' rows.

        The inputs are read until the answer is there. More than `max_batch_size` rows are
        split, answered by one version, and joined.

        With `session` the inputs of the state are left out: zeros take their place in its first
        call, then what its last answer brought. A failed call leaves the state as it was. With
        `must_exist` a session that is not known, for instance since it was idle for too long, is
        an error instead of one that begins anew.

        Raises:
            SpecError: an input does not fit the signature; names its path.
            NonFiniteError: an output is not finite, and `reject_non_finite` is set; names it.
            CapacityError: too many rows or sessions, or the session has a request under way.
            SessionLostError: the session is not known, and `must_exist` is set.
            DeadlineError: no answer within `timeout_s` of the config.
            ClosedError: the model was closed.
        """
        self._check_open()
        if session is None:
            return await self._batchers.answer(BatchRequest.of(self.signature, inputs, batch))
        with self._sessions.turn(session, inputs, batch, must_exist) as turn:
            answer = await self._batchers.answer(turn.request)
            turn.keep(answer.outputs)
        return answer

    async def forward(
        self, *inputs: Nested, batch: bool = False, session: str | None = None
    ) -> Nested:
        """Answer as `infer` does, without the version."""
        return (await self.infer(*inputs, batch=batch, session=session)).outputs

    def __call__(self, *inputs: Nested, batch: bool = False, session: str | None = None) -> Nested:
        """Compute at once in this thread, without an event loop and apart from other callers.

        Raises:
            SpecError: an input does not fit the signature; names its path.
            CapacityError: too many sessions, or the session has a request under way.
            ClosedError: the model was closed.
        """
        self._check_open()
        if session is None:
            return self._run(BatchRequest.of(self.signature, inputs, batch))
        with self._sessions.turn(session, inputs, batch) as turn:
            outputs = self._run(turn.request)
            turn.keep(outputs)
        return outputs

    def has_session(self, session: str) -> bool:
        """Return whether the model keeps state for a session."""
        return session in self._sessions

    def end_session(self, session: str) -> None:
        """Drop the state of a session; one that is unknown is harmless."""
        self._sessions.end(session)

    def publish(self, weights: Weights, *, version: int | None = None) -> int:
        """Make a copy of `weights` current from the next batch on, and return its version.

        Args:
            weights: Name → array, with the names of the module's `state_dict()`.
            version: Number of the version, for a copy of another model; None: the next one.

        Raises:
            SpecError: a name, shape or dtype differs, or a number is not finite; names the
                parameter. The version before goes on answering.
            ConfigError: the version is not newer, or the weights are fixed (an export).
        """
        return self._versions.publish(weights, version)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until `self.version >= version` and return it.

        Raises:
            DeadlineError: The version did not come within `timeout_s` seconds.
            ClosedError: the model was closed.
        """
        self._check_open()
        return await self._versions.wait(version, timeout_s)

    def weights(self) -> tuple[int, Weights]:
        """Return the current version and its weights; they are shared: do not write to them.

        Raises:
            ConfigError: the weights are fixed (an export).
        """
        return self._versions.weights()

    def checkpoint(self) -> Path | None:
        """Write the current version below `directory` and return its file.

        Returns:
            None where the model has no directory: nothing is written.

        Raises:
            CheckpointError: The file cannot be written, for instance since the disk is full; what
                was there stays.
        """
        return self._versions.checkpoint()

    def load(self, version: int) -> int:
        """Make a version from disk current, under its own number, and return that.

        The next `publish` still continues after the newest number ever used.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
            SpecError: The weights are not this module's, or not finite.
            CodecError: The version's file is broken.
        """
        return self._versions.load(version)

    def adopt(self, weights: Weights, version: int) -> None:
        """Make a copy of another model's weights current under its number, older or newer.

        Raises:
            SpecError: a name, shape or dtype differs, or a number is not finite; names the
                parameter.
            ConfigError: the weights are fixed (an export).
        """
        self._versions.adopt(weights, version)

    def pin(self, version: int, *, pinned: bool = True) -> None:
        """Keep a version on disk whatever `retention` says, or no longer.

        Raises:
            VersionNotFoundError: The version is not on disk; names those that are.
            ConfigError: the model has no directory.
        """
        self._versions.stored().pin(version, pinned)

    def clone(self, version: int = -1, name: str | None = None) -> Model:
        """Return a model of the same network with the weights of `version`, at once.

        Clones share this model's thread and memory for engines (`ModelConfig.cache_bytes`); a
        version on disk is read when it is first asked, and again where another took its place.
        Its file stays, in the clone's own directory, when it is dropped here. What is not on disk
        is shared in memory. A clone is there until it, or this model, is closed.

        Args:
            version: -1: the current one; any other than the current is on disk.
            name: Name, unique among the clones of this model; what the clone has on disk stays, and
                `get_clone` finds it, also after a restart. None: `<name>-v<version>`, and what it
                has on disk goes when it is closed.

        Raises:
            VersionNotFoundError: The version is neither current nor on disk.
            AlreadyExistsError: there is a clone of that name; `get_clone` looks it up.
            ConfigError: the name is not plain letters, digits, `.`, `_` and `-`.
        """
        current = self._versions.current
        number = current.version if version == -1 else version

        def make(chosen: str, directory: Path | None) -> Model:
            into = self._store_below(directory)
            lent = self._versions.lend(number, current, into, named=name is not None)
            clone = self._derive(chosen, lent, directory)
            clone._is_temporary = name is None
            return clone

        return self._clones.create(name, f"{self.name}-v{number}", make)

    def clone_reading(self, read: Callable[[], Weights], version: int, name: str) -> Model:
        """Return a clone whose weights come from elsewhere than this model's directory.

        It shares this model's thread and engines as other clones do, but `get_clone` does not find
        it, and closing this model does not close it.

        Args:
            read: Returns the weights, whenever an engine needs them.
            version: Number of the weights.
            name: Name in messages.
        """
        return self._derive(name, self._versions.reading(version, read), None)

    def get_clone(self, name: str) -> Model:
        """Look up a clone; one that is only on disk is reopened with its newest version.

        Raises:
            NotFoundError: The model has no clone of that name; names those that it has.
        """

        def reopen(name: str, directory: Path | None) -> Model:
            store = self._store_below(directory)
            assert store is not None
            newest = self._versions.on_disk(store.versions()[-1], store)
            return self._derive(name, newest, directory)

        return self._clones.get(name, reopen)

    def export(
        self,
        directory: str | Path,
        *,
        name: str | None = None,
        actor: Mapping[str, Any] | None = None,
        random_outputs: Sequence[str] = (),
        tolerance: float | None = None,
    ) -> ExportReport:
        """Write the current version as an ONNX export and compare it with the module.

        Args:
            directory: Folder to make; an older export there is replaced when all went well.
            name: Name that `bray serve` answers under; None: that of this model or clone.
            actor: `{"name": ..., "config": {...}}`: what `bray serve` shall answer with.
            random_outputs: names of outputs that the module draws at random, or computes from
                what it drew, such as `("outputs/action",)`: they are not compared.
            tolerance: relative error that an output may have; None: 1e-3, of a module that
                computes in float16 2e-2, in bfloat16 1e-1.

        Raises:
            ExportError: the module cannot be exported, differs beyond tolerance, or lets rows
                depend on each other.
            ConfigError: `actor` or `tolerance` is malformed, or `random_outputs` names no output.
            AlreadyExistsError: the folder holds something else.
        """
        if self._runtime.definition.example is None:
            raise ExportError(f"model {self.name!r}: is an export itself: copy its folder")
        try:
            from bray_model.export.exporter import export
        except ImportError as error:
            raise MissingExtraError("Model.export", "bray-model", "torch") from error
        current = self._versions.current
        definition = replace(self._runtime.definition, version=current.version)
        return export(
            definition,
            Path(directory),
            name=name or self.name,
            actor=actor,
            weights=current.held(),
            random_outputs=random_outputs,
            tolerance=tolerance,
        )

    def close(self) -> None:
        """Fail those who wait with ClosedError, close the clones, refuse use; again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._parent is None:
            self._runtime.close()
        self._clones.close()
        self._batchers.close()
        self._versions.close()
        if self._parent is not None:
            self._parent._clones.remove(self)
            if not self._runtime.is_closed:
                self._executor.close()
        if self._is_temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Model({self.name!r}, version={self.version})"

    def _derive(self, name: str, current: VersionWeights, directory: Path | None) -> Model:
        """Return a model that shares this one's runtime."""
        clone = object.__new__(Model)
        clone._set_up(name, self._runtime, self._executor.clone(current), directory, self)
        return clone

    def _store_below(self, directory: Path | None) -> VersionStore | None:
        if directory is None:
            return None
        return VersionStore(directory / "versions", self.config.retention)

    def _run(self, request: BatchRequest) -> Nested:
        (answer,) = self._executor.run([request])
        if isinstance(answer, Exception):
            raise answer
        return answer.outputs

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"model {self.name!r}: closed")
