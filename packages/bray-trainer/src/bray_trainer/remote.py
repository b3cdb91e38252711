"""Trainers in workers on Ray: one, or several ranks that take the same steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from bray_core.errors import ConfigError, DeadlineError, MissingExtraError, WorkerLostError

try:
    import ray.exceptions
    import ray.util
except ImportError:
    raise MissingExtraError("bray_trainer.remote", "bray-trainer", "ray") from None

from bray_core import metrics
from bray_core.protocols import TrainerProtocol
from bray_core.remote.health import explain_lost_workers
from bray_core.remote.pool import WorkerPool
from bray_core.remote.worker_process import worker_index
from bray_trainer.distributed.process_group import Backend, torch_backend
from bray_trainer.distributed.rank_worker import RankWorker
from bray_trainer.distributed.ranks import TIMEOUT_S
from bray_trainer.trainer import STOP_TIMEOUT_S

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 120.0
"""Longest time of a call that writes or reads checkpoints, or finds the worker restarting."""
_SLICE_S = 5.0
"""A long wait is several calls of this length."""
_RETRY_S = 0.5
_CONCURRENCY = 4
"""`progress` and `stop` are answered while a `wait` is under way."""
_LOOPBACK = "127.0.0.1"


class _Worker(RankWorker):
    """A rank that knows by Ray which one it is, and where."""

    def __init__(
        self,
        factory: Callable[[], TrainerProtocol],
        size: int,
        backend: Backend | None,
        timeout_s: float,
    ) -> None:
        super().__init__(factory, worker_index(), size, backend, timeout_s)

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())


class RemoteTrainer:
    """A handle over trainers in processes of their own, one a rank.

    All ranks take the same steps, on the mean gradient of all their samples; rank 0 publishes and
    writes checkpoints. If a process dies, `wait` lets all ranks begin again in fresh processes:
    the factory makes new trainers, which resume from the newest checkpoint. One handle starts and
    waits; copies of it may ask for `progress`.

    Args:
        name: Name of the worker pool.
        factory: Function that makes the `Trainer` in each worker; there
            `bray_trainer.Ranks.current()` tells which rank it is made for.
        num_workers: Number of ranks.
        num_cpus: CPUs that each worker claims from Ray.
        num_gpus: GPUs that each worker claims, and then sees alone: its device is `cuda`.
        backend: `gloo`, or `nccl` for tensors on a GPU; None takes nccl where there is one.
        rank_timeout_s: Time after which a rank that does not answer counts as lost.
        restart_timeout_s: Longest time in which lost workers come back.

    Raises:
        AlreadyExistsError: a pool of that name exists.
        WorkerLostError: the factory failed; the message says how.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], TrainerProtocol],
        num_workers: int = 1,
        num_cpus: float = 1.0,
        num_gpus: float = 0.0,
        backend: Backend | None = None,
        rank_timeout_s: float = TIMEOUT_S,
        restart_timeout_s: float = 120.0,
    ) -> None:
        for setting, value in (("rank_", rank_timeout_s), ("restart_", restart_timeout_s)):
            if value <= 0:
                raise ConfigError(f"{setting}timeout_s: expected more than 0, got {value}")
        torch_backend(backend)  # refused here, not only in the workers
        self._pool = WorkerPool(
            name,
            _Worker,
            args=(factory, num_workers, backend, rank_timeout_s),
            num_workers=num_workers,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            max_concurrency=_CONCURRENCY,
        )
        self._restart_timeout_s = restart_timeout_s
        self._progress: dict[str, float] = {}
        self._is_started = False
        self._lost_at: float | None = None
        self._anew: Mapping[str, npt.NDArray[Any]] | None = None
        """Weights to begin anew with, until a checkpoint of the workers says that they did."""
        self._pids: list[int] = []
        self._killed: set[int] = set()
        self._seen: dict[int, int] = {}
        """Rank → its process; not of those whose loss was counted."""

    def start(self) -> None:
        """Start, or go on after a pause; errors as in `Trainer.start`."""
        self._lost_at = time.monotonic()
        while not self._begin():
            time.sleep(_RETRY_S / 10)
        self._is_started = True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the trainer pauses or fails; return whether it did, or raise its error.

        Raises:
            DeadlineError: a lost worker was not back within `restart_timeout_s`.
            WorkerLostError: a worker died too often, of this trainer or of any other pool that
                this process made; quotes its last words.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            with explain_lost_workers():
                is_over = self._wait_once(min(_SLICE_S, left_s))
            if is_over:
                self._is_started = False
                self.progress()  # remembered, should the worker die while it stands still
                return True
            if time.monotonic() >= deadline:
                return False

    def _wait_once(self, timeout_s: float) -> bool:
        if self._lost_at is not None:
            if not self._begin():
                time.sleep(min(_RETRY_S, timeout_s))
            return False
        outcomes = self._ask("wait", timeout_s)
        if self._is_started and self._has_lost(outcomes):
            if "training" in outcomes:  # it may be about to say why
                outcomes = self._ask("wait", _SLICE_S)
            self._lose(outcomes)
            return False
        if self._anew is not None:
            self.progress()
        return all(outcome in ("paused", "idle") for outcome in outcomes)

    def _has_lost(self, outcomes: list[str]) -> bool:
        return any(outcome in ("dead", "lost", "idle") for outcome in outcomes)

    def _lose(self, outcomes: list[str]) -> None:
        gone = [str(rank) for rank, outcome in enumerate(outcomes) if outcome in ("dead", "idle")]
        logger.warning(
            "trainer %s: lost the worker of rank %s: begins again at the newest checkpoint",
            self._pool.name,
            ", ".join(gone) or "unknown",
        )
        self._lost_at = time.monotonic()
        for rank, outcome in enumerate(outcomes):
            if outcome in ("lost", "training") and self._pids:
                self._restart(rank, self._pids[rank])

    def _restart(self, rank: int, pid: int) -> None:
        if pid not in self._killed:
            self._killed.add(pid)
            self._pool.restart(rank)

    def _ask(self, method: str, *args: float, wait_s: float = 0.0) -> list[str]:
        """Call a method at every rank; return each one's outcome, `dead` for a lost worker.

        Raises:
            Exception: the error of a rank that failed of its own accord.
        """
        # The only argument there is, is a wait.
        timeout_s = _ANSWER_TIMEOUT_S + sum(args) + wait_s
        refs = [self._pool.submit(method, *args, worker=rank) for rank in range(self._pool.size)]
        outcomes: list[str] = []
        own: list[Exception] = []
        for ref in refs:
            try:
                outcomes.append(self._pool.result(ref, timeout_s))
            except WorkerLostError as error:
                if isinstance(error.__cause__, ray.exceptions.RayTaskError):
                    own.append(error)
                else:
                    self._check_restarts(error)
                outcomes.append("dead")
            except Exception as error:  # noqa: BLE001  the ranks' edge: raised below
                own.append(error)
        if own:
            raise own[0]
        return outcomes

    def _begin(self) -> bool:
        """Take a step towards trainers that run in one group; return whether they do.

        Where one worker is new, all begin in new processes: nothing of a broken group is left.
        """
        states = self._states()
        self._count_losses(states)
        are_new = all(state == "new" for state, _ in states)
        if all(state == "ready" for state, _ in states) or (are_new and self._connect()):
            if are_new and self._anew is not None:
                self.begin_anew(self._anew)
            if self._has_lost(self._ask("replace" if are_new and self._pids else "start")):
                return False
            self._lost_at = None
            self._killed.clear()
            self._pids = [pid for _, pid in states]
            return True
        for rank, (state, pid) in enumerate(states):
            if state in ("ready", "spoiled"):
                self._restart(rank, pid)
        self._check_deadline(states)
        return False

    def _states(self) -> list[tuple[str, int]]:
        refs = [self._pool.submit("state", worker=rank) for rank in range(self._pool.size)]
        states: list[tuple[str, int]] = []
        for ref in refs:
            try:
                states.append(self._pool.result(ref, _SLICE_S))
            except WorkerLostError as error:
                self._check_restarts(error)
                states.append(("absent", 0))
            except DeadlineError:
                states.append(("silent", 0))
        return states

    def _count_losses(self, states: list[tuple[str, int]]) -> None:
        """Count a loss of processes, also while they stood still or were to begin."""
        gone = [
            rank
            for rank, (state, pid) in enumerate(states)
            if state != "silent" and self._seen.get(rank, pid) not in (pid, *self._killed)
        ]
        for rank in gone:
            del self._seen[rank]
        self._seen |= {rank: pid for rank, (_, pid) in enumerate(states) if pid}
        if gone:
            metrics.record("trainer/restarts", 1, kind="count")

    def _connect(self) -> bool:
        """Join the new workers in a group; return whether they are in it."""
        if self._pool.size == 1:
            return True
        try:
            addresses = self._pool.call_all("address", timeout_s=_ANSWER_TIMEOUT_S)
            if len(set(addresses)) == 1:
                addresses = [_LOOPBACK] * len(addresses)
            port = self._pool.call("offer", addresses[0], worker=0)
            refs = [
                self._pool.submit("join", addresses[0], port, address, worker=rank)
                for rank, address in enumerate(addresses)
            ]
            for ref in refs:
                self._pool.result(ref, _ANSWER_TIMEOUT_S)
        except WorkerLostError as error:
            logger.warning("trainer %s: a worker was lost again: %s", self._pool.name, error)
            return False
        return True

    def _check_deadline(self, states: list[tuple[str, int]]) -> None:
        if self._lost_at is None or time.monotonic() < self._lost_at + self._restart_timeout_s:
            return
        absent = [str(rank) for rank, (_, pid) in enumerate(states) if not pid]
        raise DeadlineError(
            f"trainer {self._pool.name}: the worker of rank {', '.join(absent) or 'unknown'} is "
            f"not back after {self._restart_timeout_s:g} s: does the cluster still have a node "
            "for it? Add one, or raise restart_timeout_s"
        )

    def _check_restarts(self, error: WorkerLostError) -> None:
        """Raise the error if Ray does not start the worker again."""
        if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
            raise error

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop; errors as in `Trainer.stop`.

        Raises:
            WorkerLostError: a worker died, and with it what came after its last checkpoint.
        """
        was_started, self._is_started, self._lost_at = self._is_started, False, None
        outcomes = self._ask("stop", wait_s=STOP_TIMEOUT_S)
        if was_started and self._has_lost(outcomes):
            raise WorkerLostError(
                f"trainer {self._pool.name}: its worker was replaced before the stop: "
                "what came after its last checkpoint is lost"
            )

    def progress(self) -> dict[str, float]:
        """Return the latest figures of rank 0; those before, while it is being replaced."""
        try:
            progress, is_started, owes_anew = self._pool.call("progress", worker=0)
        except WorkerLostError as error:
            self._check_restarts(error)
            return self._progress
        if is_started and not owes_anew:
            self._anew = None
        if is_started or not self._progress:  # else it has not resumed yet
            self._progress = progress
        return self._progress

    def begin_anew(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Let every rank go on from other weights with its next replay; see `Trainer.begin_anew`.

        Where a worker is lost before a checkpoint says so, those that take its place do.

        Args:
            weights: Arrays by the names of the module's parameters and buffers.

        Raises:
            ConfigError: the names are not the module's.
        """
        try:
            self.call("begin_anew", weights)
        except WorkerLostError as error:
            self._check_restarts(error)
        self._anew = weights

    def call(self, method: str, *args: Any, timeout_s: float = 60.0, **kwargs: Any) -> Any:
        """Call a method of the user's own trainer on every rank; return what rank 0 answers."""
        return self.call_all(method, *args, timeout_s=timeout_s, **kwargs)[0]

    def call_all(
        self, method: str, *args: Any, timeout_s: float = 60.0, **kwargs: Any
    ) -> list[Any]:
        """Call a method of the user's own trainer on every rank; return all answers."""
        return self._pool.call_all("call_own", method, args, kwargs, timeout_s=timeout_s)

    def close(self) -> None:
        """End the workers; without a `stop` before, what came after the last checkpoint is lost."""
        self._pool.close()
