"""A model on Ray: one store of weights, and a replica in every process that uses the handle.

Inference never crosses Ray. A replica is a plain `Model`, made when a process first uses the
handle; one background thread of it waits for newer weights: in shared memory on the store's node,
else at the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle

from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    WorkerLostError,
)
from bray_core.layout import Block, Layout
from bray_core.nested import Nested
from bray_core.protocols import Answer, Weights
from bray_core.remote import WorkerPool
from bray_model.config import ModelConfig
from bray_model.model import Model
from bray_model.shared_weights import WeightsReader
from bray_model.signature import Signature
from bray_model.versions import VersionStore
from bray_model.weight_store import NUM_THREADS, Blueprint, WeightStore
from bray_model.weights import check_weights, weights_spec

if TYPE_CHECKING:
    import torch

    from bray_model.export_report import ExportReport

_POLL_S = 10.0
_LOOK_S = 0.001
"""Between two looks into shared memory."""
_CLOSE_S = 5.0
_GRACE_S = 20.0
_RETRY_S = 0.2
_PUBLISH_S = 60.0

logger = logging.getLogger(__name__)


class RemoteModel:
    """A model that many processes use: the same methods as `Model`, but `load` and `clone`.

    A handle can be sent to other processes. It answers from that process's replica, which
    follows what any process publishes. One process at a time may publish.

    Args:
        name: unique in the cluster.
        module, example_inputs, config: as for `Model`; the module must be picklable.
        directory: where `checkpoint` writes; the newest version there is taken up.

    Raises:
        AlreadyExistsError: the cluster has a model of that name; `RemoteModel.get` looks it up.
        SpecError: the example inputs do not fit the module.
    """

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        example_inputs: Nested,
        *,
        config: ModelConfig | None = None,
        directory: str | Path | None = None,
    ) -> None:
        config = config or ModelConfig()
        model = Model(module, example_inputs, name=name, config=config, directory=directory)
        blueprint = Blueprint(
            name=name,
            uid=uuid.uuid4().hex,
            definition=cloudpickle.dumps((module, example_inputs)),
            config=config,
            directory=None if directory is None else Path(directory),
        )
        version, weights = model.weights()
        block = Layout(weights_spec(weights)).pack(dict(weights))
        try:
            pool = WorkerPool(
                _pool_name(name),
                WeightStore,
                args=(blueprint, version, block),
                max_concurrency=NUM_THREADS,
            )
        except AlreadyExistsError:
            raise AlreadyExistsError(
                f"name: a model named {name!r} exists already: RemoteModel.get looks it up"
            ) from None
        self._adopt(name, blueprint.uid, pool, _replicas.put(blueprint, model, pool))

    def _adopt(self, name: str, uid: str, pool: WorkerPool, replica: _Replica | None) -> None:
        self.name = name
        self._uid = uid
        self._pool = pool
        self._replica = replica

    @classmethod
    def get(cls, name: str) -> RemoteModel:
        """Look up a model by name.

        Raises:
            NotFoundError: there is none.
        """
        try:
            pool = WorkerPool.get(_pool_name(name))
        except NotFoundError:
            raise NotFoundError(
                f"name: no model named {name!r}: RemoteModel(...) makes one"
            ) from None
        return _restore(name, pool.call("uid"), pool)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, self._uid, self._pool)

    @property
    def version(self) -> int:
        """The version that this process's replica answers with."""
        return self._local().model.version

    @property
    def signature(self) -> Signature:
        """What the model takes and gives."""
        return self._local().model.signature

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer from this process's replica; as `Model.infer`."""
        replica = await self._attached()
        return await replica.model.infer(*inputs, batch=batch)

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """`infer` without the version."""
        return (await self.infer(*inputs, batch=batch)).outputs

    def __call__(self, *inputs: Nested, batch: bool = False) -> Nested:
        """Compute at once on this process's replica; as `Model.__call__`."""
        return self._local().model(*inputs, batch=batch)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until this process's replica has reached `version`; as `Model.wait_version`."""
        replica = await self._attached()
        return await replica.model.wait_version(version, timeout_s)

    def publish(self, weights: Weights) -> int:
        """Send new weights to all replicas and return their version.

        Raises:
            SpecError: a name, shape or dtype differs; names the parameter.
            ConfigError: another process published meanwhile.
            WorkerLostError: the store died and was not back in time.
        """
        return self._local().publish(weights)

    def weights(self) -> tuple[int, Weights]:
        """Return this replica's version and weights; do not write to them."""
        return self._local().model.weights()

    def checkpoint(self) -> Path | None:
        """Write this replica's version below the model's directory; as `Model.checkpoint`."""
        blueprint = self._local().blueprint
        if blueprint.directory is None:
            return None
        store = VersionStore(blueprint.directory / "versions", blueprint.config.retention)
        return store.save(*self.weights())

    def export(
        self, directory: str | Path, *, actor: Mapping[str, Any] | None = None
    ) -> ExportReport:
        """Export this replica's version; as `Model.export`."""
        return self._local().model.export(directory, actor=actor)

    def close(self) -> None:
        """End the store for all processes, and this process's replica; again is harmless."""
        _replicas.remove(self._uid)
        with contextlib.suppress(BrayError):  # it died, or Ray did
            self._pool.call("close", timeout_s=_CLOSE_S)
        self._pool.close()

    async def _attached(self) -> _Replica:
        if self._replica is None:
            return await asyncio.to_thread(self._local)
        return self._replica

    def _local(self) -> _Replica:
        replica = self._replica or _replicas.get(self._uid, self._pool)
        self._replica = replica
        return replica


class _Replica:
    """A plain model in this process that follows a store."""

    def __init__(self, blueprint: Blueprint, model: Model, pool: WorkerPool) -> None:
        self.blueprint = blueprint
        self.model = model
        self._pool = pool
        self._spec = weights_spec(model.weights()[1])
        self._layout = Layout(self._spec)
        self._id = uuid.uuid4().hex
        self._publishing = threading.Lock()
        self._applying = threading.Lock()
        self._stopped = threading.Event()
        self._shared: WeightsReader | None = None
        self._may_share = True  # until it was tried with this store
        self._thread = threading.Thread(
            target=self._follow, name=f"bray-model-{model.name}-follow", daemon=True
        )
        self._thread.start()

    def publish(self, weights: Weights) -> int:
        check_weights(weights, self._spec)
        block = self._layout.pack(dict(weights))
        with self._publishing:
            version = self.model.version + 1
            self._send(version, block)
            self._apply(version, block)
        return version

    def _send(self, version: int, block: Block) -> None:
        try:
            self._pool.call("publish", version, block, self._id, timeout_s=_PUBLISH_S)
        except WorkerLostError:
            logger.warning("model %s: its store died; publishing again", self.model.name)
            self._pool.wait_ready(_PUBLISH_S)
            # Whatever newer weights it has by now, it has from a replica that got these.
            with contextlib.suppress(ConfigError):
                self._pool.call("publish", version, block, self._id, timeout_s=_PUBLISH_S)

    def _apply(self, version: int, block: Block) -> None:
        with self._applying:
            if version > self.model.version:
                self.model.publish(self._layout.views(block), version=version)

    def _follow(self) -> None:
        while not self._stopped.is_set() and ray.is_initialized():
            try:
                self._step()
            except (WorkerLostError, DeadlineError) as error:
                self._may_share = True
                logger.info("model %s: store not reached: %s", self.model.name, error)
                if not self._store_exists():
                    return
                self._stopped.wait(_RETRY_S)
            except Exception:  # the thread's boundary: it must go on
                if self._stopped.is_set() or not ray.is_initialized():
                    return
                logger.exception("model %s: following its store failed", self.model.name)
                self._stopped.wait(_RETRY_S)

    def _step(self) -> None:
        if self._may_share:
            self._share()
        held = self.model.version
        if self._shared is not None and self._await_shared(held):
            return
        wait_s = _POLL_S if self._shared is None else 0.0
        version, block = self._pool.call("poll", held, wait_s, timeout_s=wait_s + _GRACE_S)
        if block is not None:
            self._apply(version, block)
        elif version < held:
            self._restore_store()
        elif version == held and self._shared is None:
            self._stopped.wait(_RETRY_S)

    def _share(self) -> None:
        """Open the file of the store, if it is on this node."""
        self._unshare()
        path = self._pool.call("shared", timeout_s=_GRACE_S)
        if path is not None:
            with contextlib.suppress(NotFoundError):
                self._shared = WeightsReader(path)
        self._may_share = False

    def _unshare(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _await_shared(self, held: int) -> bool:
        """Take newer weights from shared memory; False: nothing came, ask the store."""
        shared = self._shared
        assert shared is not None
        until = time.monotonic() + _POLL_S
        while not self._stopped.wait(_LOOK_S):
            if shared.version > held:
                self._apply(*shared.read())
                return True
            now = time.monotonic()
            if shared.is_orphaned:  # the store died: ask the one that takes its place
                self._may_share = True
                return False
            if now > until:
                return False
        return True

    def _restore_store(self) -> None:
        """The store was restarted with the weights it began with: give it ours."""
        version, weights = self.model.weights()
        try:
            self._send(version, self._layout.pack(dict(weights)))
        except ConfigError as error:
            logger.info("model %s: another replica was quicker: %s", self.model.name, error)

    def _store_exists(self) -> bool:
        try:
            WorkerPool.get(self._pool.name)
        except NotFoundError:
            return False
        except BrayError:
            return True  # it is being restarted
        return True

    def close(self) -> None:
        self._stopped.set()
        self.model.close()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
            if not self._thread.is_alive():
                self._unshare()


class _Replicas:
    """The replicas of this process, by uid: handles of one model share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, _Replica] = {}

    def get(self, uid: str, pool: WorkerPool) -> _Replica:
        with self._lock:
            replica = self._by_uid.get(uid)
            if replica is None:
                blueprint: Blueprint = pool.call("blueprint")
                replica = _Replica(blueprint, _build(blueprint, pool), pool)
                self._by_uid[uid] = replica
        return replica

    def put(self, blueprint: Blueprint, model: Model, pool: WorkerPool) -> _Replica:
        replica = _Replica(blueprint, model, pool)
        with self._lock:
            self._by_uid[blueprint.uid] = replica
        return replica

    def remove(self, uid: str) -> None:
        with self._lock:
            replica = self._by_uid.pop(uid, None)
        if replica is not None:
            replica.close()


_replicas = _Replicas()


def _build(blueprint: Blueprint, pool: WorkerPool) -> Model:
    # Within a Ray cluster everything is pickled; it came from the process that made the model.
    module, example_inputs = cloudpickle.loads(blueprint.definition)
    model = Model(module, example_inputs, name=blueprint.name, config=blueprint.config)
    layout = Layout(weights_spec(model.weights()[1]))
    version, block = pool.call("poll", -1, 0.0)
    weights = layout.views(block)
    if version:
        model.publish(weights, version=version)
    return model


def _restore(name: str, uid: str, pool: WorkerPool) -> RemoteModel:
    handle = RemoteModel.__new__(RemoteModel)
    handle._adopt(name, uid, pool, None)
    return handle


def _pool_name(name: str) -> str:
    return f"model/{name}"
