"""A model on Ray: one store of weights, and replicas where rows are computed.

Ray places and restarts processes; neither rows nor answers cross it. A replica is a plain `Model`,
made when a process first needs it; a thread of it takes newer weights from shared memory of its
node.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    ClosedError,
    DeadlineError,
    MissingExtraError,
    NotFoundError,
    WorkerLostError,
)

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise MissingExtraError("bray_model.remote", "bray-model", "ray") from None

from bray_core.layout import Layout
from bray_core.nested import Nested
from bray_core.remote.calls import died_for_good
from bray_core.remote.pool import WorkerPool
from bray_core.remote.unpickling import unpickled
from bray_model.config import ModelConfig
from bray_model.distributed.attachment import ModelAttachment
from bray_model.distributed.blueprint import ModelBlueprint, Placement, check_placement
from bray_model.distributed.inference_worker import InferenceWorker
from bray_model.distributed.model_handle import ModelHandle
from bray_model.distributed.relays import WIDTH
from bray_model.distributed.weight_relay import WeightRelay
from bray_model.distributed.weight_store import NUM_THREADS, WeightStore
from bray_model.model import Model
from bray_model.versions.weights import WeightsStamp, weights_spec

if TYPE_CHECKING:
    import torch

_CLOSE_S = 5.0
_REPLACED_S = 60.0
_LOOK_S = 0.1


class RemoteModel(ModelHandle["RemoteModel"]):
    """A model that many processes use: the same methods as `Model`.

    A handle can be sent to other processes. What any process publishes, all answer with soon; one
    process at a time may publish.

    Args:
        name: Name, unique in the cluster.
        module: Module of the `Model`; it must be picklable.
        example_inputs: Example inputs of the `Model`.
        config: Config of the `Model`.
        state: Recurrent inputs of the `Model`.
        directory: Folder in which `checkpoint` writes; the newest version there is taken up.
        placement: where rows are computed. `caller`: in a replica in each process that uses the
            handle. `workers`: in inference workers, reached over TCP; those need the module, the
            caller does not. `proxy`: the same, but joined into batches by the caller first, for
            one with many requests at a time.
        num_workers: Number of inference workers.
        host: Address that the inference workers bind. `127.0.0.1`: they run on this node, for
            callers on it. None: they run on any node and bind its address in the cluster, for
            callers on all nodes.

    Raises:
        AlreadyExistsError: the Ray namespace has a model of that name; `RemoteModel.get` looks it
            up.
        SpecError: the example inputs do not fit the module.
        ConfigError: a setting is out of range.
    """

    _workers: WorkerPool | None

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        example_inputs: Nested,
        *,
        config: ModelConfig | None = None,
        directory: str | Path | None = None,
        state: Mapping[str, str] | None = None,
        placement: Placement = "caller",
        num_workers: int = 1,
        host: str | None = "127.0.0.1",
    ) -> None:
        check_placement(placement, num_workers)
        config = config or ModelConfig()
        model = Model(
            module, example_inputs, name=name, config=config, directory=directory, state=state
        )
        blueprint = ModelBlueprint(
            name=name,
            uid=uuid.uuid4().hex,
            definition=cloudpickle.dumps((module, example_inputs)),
            signature=model.signature,
            config=config,
            directory=None if directory is None else Path(directory),
            placement=placement,
            num_workers=num_workers,
            token=secrets.token_urlsafe(),
        )
        pool = _start_store(blueprint, model)
        self._adopt(name, name, blueprint.uid, pool, None, None)
        self._attachment = _attachments.put(blueprint, model, pool)
        if placement != "caller":
            try:
                self._workers = _start_workers(blueprint, pool, host)
            except BaseException:
                self.close()
                raise

    def _adopt(
        self,
        name: str,
        root: str,
        uid: str,
        pool: WorkerPool,
        clone: str | None,
        frozen: int | None,
    ) -> None:
        self._set_up(name, root, clone, frozen)
        self._uid = uid
        self._pool = pool
        self._workers = None

    @classmethod
    def get(cls, name: str) -> RemoteModel:
        """Look up a model by name; clones are found by `get_clone` of their model.

        Raises:
            NotFoundError: The Ray namespace has no model of that name.
        """
        try:
            pool = WorkerPool.get(_pool_name(name))
        except NotFoundError:
            raise NotFoundError(
                f"name: no model named {name!r}: RemoteModel(...) makes one"
            ) from None
        return _restore(name, name, pool.call("uid", again=True), pool, None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        identity = self.name, self._root, self._uid, self._pool, self._clone, self._frozen
        return _restore, identity

    def pids(self) -> list[int]:
        """Return the process ids of the inference workers, in the process that made the model."""
        return [] if self._workers is None else self._workers.pids()

    def close(self) -> None:
        """End the model for all processes, or a clone; again is harmless."""
        if self._clone is not None:
            with contextlib.suppress(BrayError):  # the model was closed
                self._pool.call("remove_clone", self._clone, timeout_s=_CLOSE_S)
                self._attached().drop_clone(self._clone)
            return
        with contextlib.suppress(BrayError):  # it died, or Ray did
            self._pool.call("close", timeout_s=_CLOSE_S)
        _attachments.remove(self._uid)
        with contextlib.suppress(BrayError):
            _close_workers(self._workers or WorkerPool.get(_workers_name(self._root)))
        self._pool.close()

    def _attach(self) -> ModelAttachment:
        return _attachments.get(self._uid, self._pool)

    def _clone_handle(self, name: str, version: int) -> RemoteModel:
        return _restore(name, self._root, self._uid, self._pool, name, version)


class _Link:
    """A store seen from this process; implements `bray_model.distributed.store_link.StoreLink`."""

    def __init__(self, pool: WorkerPool, model: str) -> None:
        self._pool = pool
        self._model = model
        self._workers: WorkerPool | None = None

    @property
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    @property
    def is_connected(self) -> bool:
        return bool(ray.is_initialized())

    def call(self, method: str, *args: Any, timeout_s: float = 60.0) -> Any:
        return self._pool.call(method, *args, timeout_s=timeout_s)

    def exists(self) -> bool:
        try:
            WorkerPool.get(self._pool.name)
        except NotFoundError:
            return False
        except BrayError:
            return True  # it is being restarted
        return True

    def wait_ready(self, timeout_s: float) -> None:
        self._pool.wait_ready(timeout_s)

    def relay(self, name: str) -> WorkerPool:
        return WorkerPool.get(name)

    def unpickle(self, data: bytes) -> Any:
        return unpickled(data)

    def worker(self, index: int) -> str:
        deadline = time.monotonic() + _REPLACED_S
        while True:
            try:
                if self._workers is None:
                    self._workers = WorkerPool.get(_workers_name(self._model))
                return str(self._workers.call("address", worker=index, timeout_s=_CLOSE_S))
            except (WorkerLostError, DeadlineError) as error:
                if isinstance(error, WorkerLostError) and died_for_good(error):
                    raise
                self._workers = None
                if time.monotonic() > deadline:
                    raise WorkerLostError(
                        f"model {self._model!r}: inference worker {index} is not back after "
                        f"{_REPLACED_S:g} s: does the cluster still have a node for it, or is that "
                        "one too busy to start it?"
                    ) from error
            except NotFoundError:
                raise ClosedError(f"model {self._model!r}: closed") from None
            time.sleep(_LOOK_S)  # Ray has no event for an actor that is alive again


class _RelayMaker:
    """Starts relays on Ray; implements `bray_model.distributed.store_link.RelayMaker`."""

    def __init__(self, model: str) -> None:
        self._model = model

    @property
    def here(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def make(self, node: str) -> WorkerPool:
        name = f"model-relay/{self._model}/{uuid.uuid4().hex[:12]}"
        return WorkerPool(
            name,
            _make_relay,
            args=(name, self._model),
            max_concurrency=NUM_THREADS,
            restart=False,  # the store makes another when it is missed
            node=node,
        )


class _Attachments:
    """Attachments of this process to models, by uid."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, ModelAttachment] = {}

    def get(self, uid: str, pool: WorkerPool) -> ModelAttachment:
        with self._lock:
            if uid not in self._by_uid:
                blueprint: ModelBlueprint = pool.call("blueprint", again=True)
                self._by_uid[uid] = ModelAttachment(blueprint, _Link(pool, blueprint.name))
            return self._by_uid[uid]

    def put(self, blueprint: ModelBlueprint, model: Model, pool: WorkerPool) -> ModelAttachment:
        attachment = ModelAttachment(blueprint, _Link(pool, blueprint.name), model)
        with self._lock:
            self._by_uid[blueprint.uid] = attachment
        return attachment

    def remove(self, uid: str) -> None:
        with self._lock:
            attachment = self._by_uid.pop(uid, None)
        if attachment is not None:
            attachment.close()


_attachments = _Attachments()


def _start_store(blueprint: ModelBlueprint, model: Model) -> WorkerPool:
    version, weights = model.weights()
    block = Layout(weights_spec(weights)).pack(dict(weights))
    name = blueprint.name
    try:
        pool = WorkerPool(
            _pool_name(name),
            WeightStore,
            args=(name, _RelayMaker(name), WIDTH),
            max_concurrency=NUM_THREADS,
            node=ray.get_runtime_context().get_node_id(),  # with the publisher, most likely
        )
    except AlreadyExistsError:
        raise AlreadyExistsError(
            f"name: a model named {name!r} exists already: RemoteModel.get looks it up"
        ) from None
    pool.call("begin", blueprint, WeightsStamp(0, version, version), block)
    return pool


def _start_workers(blueprint: ModelBlueprint, pool: WorkerPool, host: str | None) -> WorkerPool:
    return WorkerPool(
        _workers_name(blueprint.name),
        _make_worker,
        args=(blueprint.uid, pool, host, blueprint.token),
        num_workers=blueprint.num_workers,
        max_concurrency=2,
        node=None if host is None else ray.get_runtime_context().get_node_id(),
    )


def _make_worker(uid: str, pool: WorkerPool, host: str | None, token: str) -> InferenceWorker:
    pool.wait_ready(_REPLACED_S)  # the store may have died together with the worker before
    replica = _attachments.get(uid, pool).replica()
    return InferenceWorker(replica, host or str(ray.util.get_node_ip_address()), token)


def _make_relay(name: str, model: str) -> WeightRelay:
    return WeightRelay(_Link(WorkerPool.get(_pool_name(model)), model), name, model)


def _close_workers(pool: WorkerPool) -> None:
    if pool.size:
        with contextlib.suppress(BrayError):  # one died
            pool.call_all("close", timeout_s=_CLOSE_S)
        pool.close()


def _restore(
    name: str, root: str, uid: str, pool: WorkerPool, clone: str | None, frozen: int | None
) -> RemoteModel:
    handle = RemoteModel.__new__(RemoteModel)
    handle._adopt(name, root, uid, pool, clone, frozen)
    return handle


def _pool_name(name: str) -> str:
    return f"model/{name}"


def _workers_name(name: str) -> str:
    return f"model-workers/{name}"
