"""Worker pools on Ray: N workers, each with one instance that a factory made in its process.

Calls carry whole segments, batches or weights, never one step. A worker that dies is started again
by Ray, with the same factory; calls under way to it fail with WorkerLostError. One that dies again
and again stays dead (`bray_core.remote.restart_limit`), and `check_workers` says what it died of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bray_core.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    MissingExtraError,
    NotFoundError,
    WorkerLostError,
)

try:
    import ray
    from ray import cloudpickle
except ImportError:
    raise MissingExtraError("bray_core.remote", "bray-core", "ray") from None

from bray_core.remote.calls import get_result, will_be_restarted
from bray_core.remote.cluster import default_restart_limit, require_ray
from bray_core.remote.health import watch_pool
from bray_core.remote.load_balancing import LoadBalancer, Strategy
from bray_core.remote.restart_limit import RestartLimit
from bray_core.remote.start_workers import start_workers
from bray_core.settings.ranges import NonNegativeFloat, PositiveInt, check_value

_START_TIMEOUT_S = 120.0
_RETRY_S = 0.05


class WorkerPool:
    """N workers on Ray, each with one instance that `factory(*args, **kwargs)` made there.

    A pool can be sent to another process, which then reaches the same workers. They live until
    `close`, or until the pool that made them is garbage: keep it, handles do not.

    Args:
        name: Name of the pool, unique in the Ray namespace that `init_ray` has joined.
        factory: Makes the instance of a worker; called again when Ray restarts it.
        args: Positional arguments of the factory.
        kwargs: Keyword arguments of the factory.
        num_workers: Number of workers.
        num_cpus: CPUs that each worker claims from Ray.
        num_gpus: GPUs that each worker claims from Ray, and then sees alone.
        max_concurrency: Number of calls that one worker runs at a time, in threads.
        restart: Whether a dead worker is started again.
        limit: How often a worker may die; None takes the limit of `init_ray`.
        node: Id of the node that all workers run on; None leaves it to Ray.
        spread: Whether the workers are shared out over the nodes in proportion to their CPUs. A
            worker whose node is lost starts again on another.

    Raises:
        AlreadyExistsError: The namespace has a pool of that name.
        WorkerLostError: A worker died while it started (quotes what the factory raised), or the
            node does not exist.
        DeadlineError: A worker has not started within two minutes; says what it claims from Ray.
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
        check_value("num_workers", num_workers, PositiveInt)
        check_value("num_cpus", num_cpus, NonNegativeFloat)
        check_value("num_gpus", num_gpus, NonNegativeFloat)
        check_value("max_concurrency", max_concurrency, PositiveInt)
        require_ray()
        self._adopt(name, [])
        try:
            workers, stored = start_workers(
                name,
                cloudpickle.dumps((factory, args, dict(kwargs or {}))),
                num_workers=num_workers,
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                max_concurrency=max_concurrency,
                limit=(limit or default_restart_limit()) if restart else None,
                node=node,
                spread=spread,
            )
            self._adopt(name, workers)
            self._stored_factory += stored
            try:
                self._describe(_START_TIMEOUT_S)
            except DeadlineError as error:
                free = ray.available_resources()
                raise DeadlineError(
                    f"pool {name}: a worker has not started within {_START_TIMEOUT_S:g} s: each "
                    f"claims {num_cpus:g} CPUs and {num_gpus:g} GPUs, and the cluster has "
                    f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free: ask for "
                    "fewer workers, add a node, or wait for what else runs there"
                ) from error
            if restart:
                watch_pool(self)
        except BaseException:  # also Ctrl-C: no half pool stays
            self.close()
            raise

    def _adopt(self, name: str, workers: list[Any]) -> None:
        self.name = name
        self._workers = workers
        self._stored_factory: list[Any] = []
        self._balance = LoadBalancer(len(workers), self.near)
        self._nodes: list[str] | None = None
        self._health_checks: dict[int, Any] = {}
        """References of calls that workers have still to answer, by worker."""

    @classmethod
    def get(cls, name: str) -> WorkerPool:
        """Look up a pool by name; where its first worker is being replaced, wait for that.

        Raises:
            NotFoundError: There is none.
            WorkerLostError: Its first worker is not started again, or is not back in a minute.
        """
        size, _, _ = _restore(name, 1)._describe(60.0)[0]
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
        require_ray()

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
            method: Name of the method.
            args: Its positional arguments.
            worker: Index of the worker.
            timeout_s: Seconds to wait.
            again: Whether to call again, until `timeout_s`, if the worker dies or is being
                replaced, which suits methods that may run twice.
            kwargs: Keyword arguments of the method.

        Raises:
            WorkerLostError: The worker died before it answered.
            DeadlineError: No answer within `timeout_s`; the call goes on at the worker.
            ClosedError: The pool was closed, or Ray is not running.
            ConfigError: There is no such worker.
            Exception: What the method raised.
        """
        index = self._index(worker)
        what = f"pool {self.name}, worker {index}, {method}"
        self._balance.in_flight[index] += 1
        try:
            if again:
                submit = partial(self.submit, method, *args, worker=index, **kwargs)
                return self._call_until_done(submit, timeout_s, what)
            return get_result(
                self._worker(index).invoke.remote(method, args, kwargs), timeout_s, what
            )
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
        """Call a method of every worker at the same time and wait for all; errors as in `call`."""
        self._check_open()
        refs = [worker.invoke.remote(method, args, kwargs) for worker in self._workers]
        results: list[Any]
        try:
            results = get_result(refs, timeout_s, f"pool {self.name}, {method}")
        except WorkerLostError as error:
            if not again or not will_be_restarted(error):
                raise
            options = {"timeout_s": timeout_s, "again": True, **kwargs}
            results = [self.call(method, *args, worker=i, **options) for i in range(self.size)]
        return results

    def _call_until_done(self, submit: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Wait for a result, and submit again while the worker is being replaced."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return get_result(submit(), max(0.0, deadline - time.monotonic()), what)
            except WorkerLostError as error:
                if not will_be_restarted(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_RETRY_S)  # Ray has no event for an actor that is alive again

    def result(self, ref: Any, timeout_s: float = 60.0) -> Any:
        """Wait for the result of a call that `submit` started; errors as in `call`."""
        return get_result(ref, timeout_s, f"pool {self.name}")

    def choose(self, strategy: Strategy, key: str | None = None) -> int:
        """Return the index of a worker: see `bray_core.remote.load_balancing.LoadBalancer.choose`.

        Raises:
            ConfigError: An unknown strategy, or `hash` without a key.
            ClosedError: The pool was closed.
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
            self._call_until_done(worker.describe.remote, timeout_s, f"pool {self.name}")
            for worker in self._workers
        ]

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [pid for _, pid, _ in self._describe(60.0)]

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every worker answers, such as after one was killed.

        Raises:
            DeadlineError: A worker does not answer within `timeout_s`.
            WorkerLostError: A worker is not started again.
        """
        self._check_open()
        deadline = time.monotonic() + timeout_s
        for worker in self._workers:
            while True:
                left = deadline - time.monotonic()
                try:
                    get_result(worker.describe.remote(), max(left, 0.1), f"pool {self.name}")
                    break
                except WorkerLostError as error:
                    if not will_be_restarted(error):
                        raise
                    if left <= 0:
                        raise DeadlineError(
                            f"pool {self.name}: not ready in {timeout_s} s"
                        ) from None
                    time.sleep(_RETRY_S)  # Ray has no event for an actor that is alive again

    def check(self, timeout_s: float = 0.0) -> None:
        """Ask every worker whether it is alive, and look at the answers that have come.

        Args:
            timeout_s: Seconds to wait for answers; later ones are seen by the next call.

        Raises:
            WorkerLostError: A worker is dead, and is not started again.
        """
        for index, worker in enumerate(self._workers):
            if index not in self._health_checks:
                self._health_checks[index] = worker.describe.remote()
        asked = {ref: index for index, ref in self._health_checks.items()}
        seen, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        for ref in seen:
            del self._health_checks[asked[ref]]
            try:
                get_result(ref, 0.0, f"pool {self.name}, worker {asked[ref]}")
            except WorkerLostError as error:
                if not will_be_restarted(error):
                    raise

    def restart(self, worker: int) -> None:
        """Kill one worker, so that Ray starts it again; calls under way to it fail."""
        ray.kill(self._worker(worker), no_restart=False)

    def close(self) -> None:
        """Kill the workers for good; a second call is harmless."""
        workers, self._workers, self._stored_factory = self._workers, [], []
        self._health_checks = {}
        for worker in workers if ray.is_initialized() else ():  # with Ray they are gone
            ray.kill(worker, no_restart=True)


def _restore(name: str, size: int) -> WorkerPool:
    require_ray()
    try:
        workers = [ray.get_actor(f"{name}/{i}") for i in range(size)]
    except ValueError as error:
        raise NotFoundError(f"name: no pool named {name!r}") from error
    pool = WorkerPool.__new__(WorkerPool)
    pool._adopt(name, workers)
    return pool
