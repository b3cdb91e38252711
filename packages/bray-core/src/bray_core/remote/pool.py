"""Worker pools on Ray: the one place that knows how Ray actors live.

A pool is N Ray actors, each holding one plain instance made by a factory. Calls carry whole
segments, batches or weights, never one step. A worker that dies is started again by Ray, with
the same factory; calls under way to it fail with WorkerLostError. One that dies again and again
stays dead (`bray_core.restart_limit`), and `check_workers` says of what.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import ray
import ray.exceptions
import ray.util
from ray import cloudpickle
from ray._private import ray_constants
from ray._private import utils as ray_utils
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bray_core import metrics
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    WorkerLostError,
)
from bray_core.metrics import uplink
from bray_core.remote import orphans, ray_secrets
from bray_core.remote.balance import Balance, Strategy
from bray_core.remote.placement import share_out
from bray_core.restart_limit import RestartLimit, WorkerHistory

logger = logging.getLogger(__name__)

_NAMESPACE = "bray"
_KEPT = b"bray"
"""Namespace of what Ray's head keeps for workers."""
_OBJECT_STORE_BYTES = 256 * 1024 * 1024
_START_TIMEOUT_S = 120.0
_CONNECT_TIMEOUT_S = 30.0
_LOOK_S = 0.05
_CHECK_S = 1.0
"""How often `check_workers` asks each worker at most."""
_OLDEST_RAY = (2, 59)
"""Since then a cluster that a driver starts asks for a token by default."""
_ONE_MACHINE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray takes loopback for a node's address, and its daemons listen there alone."""
_INLINE_BYTES = 64 * 1024
"""So much Ray keeps with a worker's description; what is larger than 100 KB it keeps apart."""
_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OwnerDiedError,
)
_OWN_ERROR = f"{WorkerLostError.__module__}.{WorkerLostError.__name__}: "
_FOR_GOOD = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)
_LOOPBACK_GIVEN = not ray_constants.ENABLE_RAY_CLUSTER
"""Whether the environment says so, as it does in what a cluster of ours starts."""
_started_here = False
_is_own_cluster = False
"""Whether all nodes are on this machine: nobody else knows of the cluster."""
_index = 0
_limit = RestartLimit()
"""Limit of the pools that this process makes."""


def worker_index() -> int:
    """Return which worker of its pool this process is, from 0; known to the factory already."""
    return _index


def init_ray(
    address: str | None = None,
    num_cpus: int | None = None,
    restarts: RestartLimit | None = None,
) -> bool:
    """Connect to Ray, or start it on this machine; harmless where that is done already.

    Returns whether it did either: who did ends it by `shutdown_ray`.

    Args:
        address: `host:port` or `auto` of a running cluster; None starts one here.
        num_cpus: CPUs of a cluster started here; None counts the machine's. Workers of bray claim
            few, so that a small machine is not refused.
        restarts: how often a worker of this process's pools may die; None takes the default.

    Raises:
        ConfigError: `address` is of another form.
            Or the Ray that is installed is too old.
        NotFoundError: nothing answers there.
        DeadlineError: what listens there does not let us in within half a minute, or a cluster
            here does not start.
    """
    global _started_here, _is_own_cluster, _limit
    _check_version(ray.__version__)
    _limit = restarts or RestartLimit()
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {
        "namespace": _NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address is None:
        options |= {
            "num_cpus": num_cpus,
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,  # it shares /dev/shm with bray's buffers
        }
    _started_here, _is_own_cluster = True, address is None
    try:
        with _signals_kept():
            if address is None:
                orphans.adopt()
                _start(options)
            else:
                _connect(address, options)
    except BaseException:  # also Ctrl-C half-way: what was started must not stay
        shutdown_ray()
        raise
    return True


def _check_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < _OLDEST_RAY:
        wanted = ".".join(map(str, _OLDEST_RAY))
        raise ConfigError(
            f"ray: expected version {wanted} or later, whose clusters ask for a token, got "
            f"{version}: install bray-core[ray] anew"
        )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep Ray from its own SIGTERM handlers, which drain nodes and then exit: a run cleans up.

    Where the program has none either, one that exits lets it, until `shutdown_ray`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit_by_signal)
    handler = signal.getsignal(signal.SIGTERM)
    ray_utils.set_sigterm_handler, before = lambda handler: None, ray_utils.set_sigterm_handler
    try:
        yield
    finally:
        ray_utils.set_sigterm_handler = before
        if handler is not None:  # anew: a handler in C++ before it would print a stack of its own
            signal.signal(signal.SIGTERM, handler)


def _exit_by_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _let_go_of_signals() -> None:
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is _exit_by_signal
    ):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _stay_on_loopback(stays: bool = True) -> None:
    """Let Ray take loopback for this machine's address, or no longer.

    Ray turns `_node_ip_address="127.0.0.1"` into the address that others reach, unless it believes
    that no other machine can join; then its daemons and workers listen on loopback alone.
    """
    if stays:
        os.environ[_ONE_MACHINE] = "0"  # for workers, and what they start
    else:
        os.environ.pop(_ONE_MACHINE, None)
    ray_constants.ENABLE_RAY_CLUSTER = not stays


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _start(options: dict[str, Any]) -> None:
    ray_secrets.secure_token(create=True)
    _stay_on_loopback()
    folder = ray_secrets.session_folder()
    try:
        ray.init(address="local", **options, **({"_temp_dir": folder} if folder else {}))
    except Exception as error:
        if type(error) is not Exception:  # Ray's own, when one of its processes is not up in time
            raise
        raise DeadlineError(
            f"ray: no cluster started on this machine, it may be too busy: {_first_line(error)}"
        ) from error
    if not _is_loopback(host := str(ray.util.get_node_ip_address())):
        logger.warning(
            "ray %s listens at %s, not on loopback: its token alone keeps others out",
            ray.__version__,
            host,
        )


def _connect(address: str, options: dict[str, Any]) -> None:
    """Connect to a running cluster within a deadline: `ray.init` itself tries for ever."""
    failure: list[BaseException] = []
    done = threading.Event()

    def connect() -> None:
        try:
            ray.init(address=address, **options)
        except BaseException as error:  # noqa: BLE001  the thread's edge: raised below
            failure.append(error)
        done.set()

    _check_reachable(address)
    ray_secrets.secure_token(create=False)
    threading.Thread(target=connect, name="ray-connect", daemon=True).start()
    if not done.wait(_CONNECT_TIMEOUT_S):
        raise DeadlineError(
            f"address: no connection to the Ray cluster at {address!r} within "
            f"{_CONNECT_TIMEOUT_S:g} s: is it Ray's port, and is its token in ~/.ray/auth_token?"
        )
    if failure:
        raise NotFoundError(
            f"address: no Ray cluster answers at {address!r}: {_first_line(failure[0])}"
        ) from failure[0]
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        logger.warning(
            "the Ray cluster at %s asks for no token: whoever reaches it runs code there", address
        )


def _check_reachable(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise ConfigError(f"address: expected host:port or auto, got {address!r}")
    try:
        _knock(host, int(port))
    except OSError as error:
        raise NotFoundError(
            f"address: nothing listens at {address!r} ({error.strerror or error}): "
            "start a cluster with `ray start --head`, or leave the address out"
        ) from error

    if host.strip("[]") in (
        "localhost",
        "127.0.0.1",
        "::1",
    ):  # Ray goes to the machine's other address, where ours do not listen
        try:
            _knock(str(ray.util.get_node_ip_address()), int(port))
        except OSError:
            _stay_on_loopback()


def _knock(host: str, port: int) -> None:
    socket.create_connection((host.strip("[]"), port), 5.0).close()


def this_host() -> str:
    """Return the address at which workers on any node of the cluster reach this process."""
    return "127.0.0.1" if _is_own_cluster else str(ray.util.get_node_ip_address())


def this_node() -> str:
    """Return Ray's id of the node that this process runs on.

    Raises:
        ClosedError: Ray is not running.
    """
    _need_ray()
    return str(ray.get_runtime_context().get_node_id())


def shutdown_ray() -> None:
    """Disconnect, and stop the cluster if `init_ray` started it; leaves a user's own Ray alone."""
    global _started_here, _is_own_cluster
    if not _started_here:
        return
    _started_here = _is_own_cluster = False
    ray.shutdown()
    _stay_on_loopback(_LOOPBACK_GIVEN)
    _let_go_of_signals()
    orphans.end(_is_ray)


def _is_ray(command: str) -> bool:
    return command.startswith("ray::") or "/site-packages/ray/" in command


class _Worker:
    """One worker process: a plain instance and what the pool asks about it."""

    def __init__(
        self,
        making: bytes | list[Any],
        index: int,
        num_workers: int,
        pool: str,
        hub: str | None,
        limit: RestartLimit | None,
    ) -> None:
        global _index
        _index = index
        if hub is not None:
            uplink.join(pool, index, hub)
        if limit is not None:
            _check_history(limit)
        self._num_workers = num_workers
        packed = making if isinstance(making, bytes) else ray.get(making[0])
        factory, args, kwargs = cloudpickle.loads(packed)
        self._instance = factory(*args, **kwargs)

    def invoke(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(self._instance, method)(*args, **kwargs)

    def describe(self) -> tuple[int, int, str]:
        """Return the pool's size, this process and its node."""
        return self._num_workers, os.getpid(), ray.get_runtime_context().get_node_id()


def _check_history(limit: RestartLimit) -> None:
    """Note this process, and the end of the one before; refuse to go on if it ends too often.

    What is raised while a worker is made keeps Ray from starting it again.
    """
    key = f"worker/{ray.get_runtime_context().get_actor_id()}".encode()
    kept = internal_kv._internal_kv_get(key, namespace=_KEPT)
    history = WorkerHistory.decode(kept)
    if kept is not None:
        metrics.record("worker/restarts", 1, kind="count")
        history = history.died(limit)
        if limit.is_exceeded(history.deaths, history.deaths[-1]):
            raise WorkerLostError(
                f"{len(history.deaths)} times within {limit.window_s:g} s, so it is not started "
                f"again; its last words: {history.last_words()}"
            )
    history = replace(history, stderr=_stderr_file())
    internal_kv._internal_kv_put(key, history.encode(), overwrite=True, namespace=_KEPT)


def _stderr_file() -> str:
    try:
        return os.readlink(f"/proc/self/fd/{sys.stderr.fileno()}")
    except (OSError, ValueError):  # not Linux, or closed
        return ""


# It is answered while calls run.
ray.method(concurrency_group="control")(_Worker.describe)
_RemoteWorker: Any = ray.remote(concurrency_groups={"control": 1})(_Worker)


class WorkerPool:
    """N workers on Ray, each with one instance that `factory(*args, **kwargs)` made there.

    A pool can be sent to another process, which then reaches the same workers. They live until
    `close`, or until the pool that made them is garbage: keep it, handles do not.

    Args:
        name: of the pool; unique in the cluster.
        factory: called in each worker, again when Ray restarts it.
        args: for the factory.
        kwargs: for the factory.
        num_workers: how many.
        num_cpus: CPUs that each worker claims from Ray.
        num_gpus: GPUs that each worker claims from Ray, and then sees alone.
        max_concurrency: calls that one worker runs at a time, in threads.
        restart: whether a dead worker is started again.
        limit: how often; None takes that of `init_ray`.
        node: id of the node that all workers run on; None leaves it to Ray.
        spread: whether they are shared out over the nodes in proportion to their CPUs; one whose
            node is lost starts again on another.

    Raises:
        AlreadyExistsError: the cluster has a pool of that name.
        WorkerLostError: a worker died while it started; quotes what the factory raised. Or the
            node does not exist.
        ClosedError: Ray is not running.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        num_workers: int = 1,
        num_cpus: float = 0.0,
        num_gpus: float = 0.0,
        max_concurrency: int = 1,
        restart: bool = True,
        limit: RestartLimit | None = None,
        node: str | None = None,
        spread: bool = False,
    ) -> None:
        if not name:
            raise ConfigError("name: expected at least one character, got ''")
        if num_workers < 1:
            raise ConfigError(f"num_workers: expected 1 or more, got {num_workers}")
        for resource, amount in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
            if amount < 0:
                raise ConfigError(f"{resource}: expected 0 or more, got {amount}")
        if max_concurrency < 1:
            raise ConfigError(f"max_concurrency: expected 1 or more, got {max_concurrency}")
        _need_ray()
        options: dict[str, Any] = {
            "namespace": _NAMESPACE,
            "num_cpus": num_cpus,
            "max_concurrency": max_concurrency,
            "max_restarts": -1 if restart else 0,
        }
        if num_gpus:
            options["num_gpus"] = num_gpus
        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        homes = share_out(num_workers, _cpus()) if spread and node is None else []
        self._adopt(name, [])
        making = cloudpickle.dumps((factory, args, dict(kwargs or {})))
        if len(making) > _INLINE_BYTES:
            # Kept as long as the pool: Ray drops large arguments once a worker is made, and could
            # then not make it again. In a list, so that it is not fetched before the worker is
            # there. (Ray warns of the former all the same.)
            self._making.append(ray.put(making))
        try:
            for i in range(num_workers):
                if homes:
                    options["scheduling_strategy"] = _preferring(homes[i])
                    options["memory"] = 1  # bytes: Ray places what claims nothing anywhere
                worker = _RemoteWorker.options(name=f"{name}/{i}", **options)
                arguments = (
                    self._making or making,
                    i,
                    num_workers,
                    name,
                    uplink.address(),
                    (limit or _limit) if restart else None,
                )
                self._workers.append(_create(name, worker, arguments))
            self._balance = Balance(num_workers, self.near)
            self._describe(_START_TIMEOUT_S)
            if restart:
                _watch.add(self)
        except BaseException:  # also Ctrl-C: no half pool stays
            self.close()
            raise

    def _adopt(self, name: str, workers: list[Any]) -> None:
        self.name = name
        self._workers = workers
        self._making: list[Any] = []
        self._balance = Balance(len(workers), self.near)
        self._nodes: list[str] | None = None
        self._signs: dict[int, Any] = {}
        """What workers were asked to see whether they live."""

    @classmethod
    def get(cls, name: str) -> WorkerPool:
        """Look up a pool by name.

        Raises:
            NotFoundError: there is none.
        """
        first = _restore(name, 1)._workers[0]
        size, _, _ = _get(first.describe.remote(), _START_TIMEOUT_S, f"pool {name}")
        return _restore(name, size)

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: Ray would keep a worker's arguments in its object store if they held handles,
        # and could then not restart the worker after the object is gone.
        return _restore, (self.name, self.size)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def submit(self, method: str, *args: Any, worker: int | None = None, **kwargs: Any) -> Any:
        """Start a call at one worker (by turns if None) and return its `ray.ObjectRef`."""
        return self._worker(self._index(worker)).invoke.remote(method, args, kwargs)

    def _index(self, worker: int | None) -> int:
        return self.choose("round_robin") if worker is None else worker

    def _worker(self, index: int) -> Any:
        self._check_open()
        if not 0 <= index < self.size:
            raise ConfigError(f"worker: expected 0 to {self.size - 1}, got {index}")
        return self._workers[index]

    def _check_open(self) -> None:
        if not self._workers:
            raise ClosedError(f"pool {self.name}: already closed")
        _need_ray()

    def call(
        self,
        method: str,
        *args: Any,
        worker: int | None = None,
        timeout_s: float = 60.0,
        again: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call a method of one worker's instance (by turns if None) and wait for the result.

        Args:
            method: of the instance.
            args: for it.
            worker: index of the worker.
            timeout_s: of the wait.
            again: whether the call is made again, until `timeout_s`, where the worker dies over it
                or is being replaced: for what may be done twice.
            kwargs: for the method.

        Raises:
            WorkerLostError: the worker died before it answered.
            DeadlineError: no answer within `timeout_s`; the call goes on at the worker.
            ClosedError: the pool was closed, or Ray is not running.
            ConfigError: there is no such worker.
            Exception: what the method raised.
        """
        index = self._index(worker)
        what = f"pool {self.name}, worker {index}, {method}"
        self._balance.in_flight[index] += 1
        try:
            if again:
                submit = partial(self.submit, method, *args, worker=index, **kwargs)
                return self._insist(submit, timeout_s, what)
            return _get(self._worker(index).invoke.remote(method, args, kwargs), timeout_s, what)
        finally:
            self._balance.in_flight[index] -= 1

    def call_all(
        self,
        method: str,
        *args: Any,
        timeout_s: float = 60.0,
        again: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Call a method at every worker at the same time and wait for all; as `call`."""
        self._check_open()
        refs = [worker.invoke.remote(method, args, kwargs) for worker in self._workers]
        results: list[Any]
        try:
            results = _get(refs, timeout_s, f"pool {self.name}, {method}")
        except WorkerLostError as error:
            if not again or not comes_back(error):
                raise
            options = {"timeout_s": timeout_s, "again": True, **kwargs}
            results = [self.call(method, *args, worker=i, **options) for i in range(self.size)]
        return results

    def _insist(self, submit: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Wait for a result, and submit again while the worker is being replaced."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return _get(submit(), max(0.0, deadline - time.monotonic()), what)
            except WorkerLostError as error:
                if not comes_back(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_S)  # Ray has no event for an actor that is alive again

    def result(self, ref: Any, timeout_s: float = 60.0) -> Any:
        """Wait for a ref of `submit`; errors as in `call`."""
        return _get(ref, timeout_s, f"pool {self.name}")

    def choose(self, strategy: Strategy, key: str | None = None) -> int:
        """Return the index of a worker: see `bray_core.remote.balance.Balance.choose`.

        Raises:
            ConfigError: an unknown strategy, or `hash` without a key.
            ClosedError: the pool was closed.
        """
        self._check_open()
        return self._balance.choose(strategy, key)

    def near(self) -> list[int]:
        """Return the indices of the workers on this node."""
        here = ray.get_runtime_context().get_node_id()
        return [index for index, node in enumerate(self._node_ids()) if node == here]

    def _node_ids(self) -> list[str]:
        if self._nodes is None:
            self._nodes = [node for _, _, node in self._describe(60.0)]
        return self._nodes

    def _describe(self, timeout_s: float) -> list[tuple[int, int, str]]:
        self._check_open()
        return [
            self._insist(worker.describe.remote, timeout_s, f"pool {self.name}")
            for worker in self._workers
        ]

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [pid for _, pid, _ in self._describe(60.0)]

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every worker answers, such as after one was killed.

        Raises:
            DeadlineError: one does not within `timeout_s`.
            WorkerLostError: one is not started again.
        """
        self._check_open()
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            while True:
                left = deadline - time.monotonic()
                try:
                    _get(worker.describe.remote(), max(left, 0.1), f"pool {self.name}")
                    break
                except WorkerLostError as error:
                    if not comes_back(error):
                        raise
                    if left <= 0:
                        raise DeadlineError(
                            f"pool {self.name}: not ready in {timeout_s} s"
                        ) from None
                    time.sleep(_LOOK_S)  # Ray has no event for an actor that is alive again

    def check(self, timeout_s: float = 0.0) -> None:
        """Ask the workers for a sign of life, and look at what they were asked before.

        Args:
            timeout_s: how long to wait for signs; those that come later are seen the next time.

        Raises:
            WorkerLostError: one is dead, and is not started again.
        """
        for index, worker in enumerate(self._workers):
            if index not in self._signs:
                self._signs[index] = worker.describe.remote()
        asked = {ref: index for index, ref in self._signs.items()}
        seen, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        for ref in seen:
            del self._signs[asked[ref]]
            try:
                _get(ref, 0.0, f"pool {self.name}, worker {asked[ref]}")
            except WorkerLostError as error:
                if not comes_back(error):
                    raise

    def restart(self, worker: int) -> None:
        """Kill one worker, so that Ray starts it again; calls under way to it fail."""
        ray.kill(self._worker(worker), no_restart=False)

    def close(self) -> None:
        """Kill the workers for good; again is harmless."""
        workers, self._workers, self._making = self._workers, [], []
        self._signs = {}
        for worker in workers if ray.is_initialized() else ():  # with Ray they are gone
            ray.kill(worker, no_restart=True)


class _Watch:
    """The pools that this process made, as long as they are somebody's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
        self._next_s = 0.0

    def add(self, pool: WorkerPool) -> None:
        with self._lock:
            self._pools.add(pool)

    def check(self, timeout_s: float) -> None:
        if not self._lock.acquire(blocking=False):  # another thread looks
            return
        try:
            if timeout_s or time.monotonic() >= self._next_s:
                self._next_s = time.monotonic() + _CHECK_S
                for pool in [pool for pool in self._pools if pool.size]:
                    pool.check(timeout_s)
        finally:
            self._lock.release()


_watch = _Watch()


def check_workers(timeout_s: float = 0.0) -> None:
    """Refuse to go on without a worker that died too often; for long loops, it is quick.

    Args:
        timeout_s: how long to wait for workers that do not say at once that they live.

    Raises:
        WorkerLostError: a worker of a pool that this process made is dead and is not started
            again; quotes its last words.
    """
    if ray.is_initialized():
        _watch.check(timeout_s)


@contextlib.contextmanager
def telling_what_died() -> Iterator[None]:
    """Raise why a worker is not started again, in place of what follows from it."""
    check_workers()
    try:
        yield
    except Exception as error:
        try:
            check_workers(_CHECK_S)
        except WorkerLostError as reason:
            raise reason from error
        raise


def _need_ray() -> None:
    if not ray.is_initialized():  # it would start a cluster of its own accord, and leave it
        raise ClosedError("ray: not running: call bray.init(…, runtime='ray') or init_ray first")


def _preferring(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=True)


def _cpus() -> dict[str, float]:
    """Return node → its CPUs, of those that live."""
    return {
        node["NodeID"]: float(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"]
    }


def _create(pool: str, worker: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        return worker.remote(*arguments)
    except ValueError as error:
        raise AlreadyExistsError(
            f"name: a pool named {pool!r} exists already; WorkerPool.get looks it up"
        ) from error


def _restore(name: str, size: int) -> WorkerPool:
    _need_ray()
    try:
        workers = [ray.get_actor(f"{name}/{i}", namespace=_NAMESPACE) for i in range(size)]
    except ValueError as error:
        raise NotFoundError(f"name: no pool named {name!r}") from error
    pool = WorkerPool.__new__(WorkerPool)
    pool._adopt(name, workers)
    return pool


def _get(refs: Any, timeout_s: float, what: str) -> Any:
    """Wait for one ref or a list of them."""
    try:
        return ray.get(refs, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise DeadlineError(f"{what}: no answer within {timeout_s:g} s") from None
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from error
    except _LOST as error:
        raise WorkerLostError(f"{what}: the worker died: {_reason(error)}") from error


def comes_back(error: WorkerLostError) -> bool:
    """Return whether Ray starts the lost worker again; no where a method raised the error."""
    return isinstance(error.__cause__, _LOST) and not isinstance(error.__cause__, _FOR_GOOD)


def gave_up(error: WorkerLostError) -> bool:
    """Return whether the worker died too often, or could not be made; no where it was closed."""
    return bool(getattr(error.__cause__, "actor_init_failed", False))


def _reason(error: BaseException) -> str:
    if getattr(error, "actor_init_failed", False):  # the end of the factory's traceback
        return str(error).strip().splitlines()[-1].removeprefix(_OWN_ERROR)
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
