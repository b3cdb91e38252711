"""Actors, and runners, in worker processes on Ray."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bray_core.errors import ConfigError, DeadlineError, MissingExtraError, WorkerLostError

try:
    from ray import cloudpickle
except ImportError:
    raise MissingExtraError("bray_actor.remote", "bray-actor", "ray") from None

from bray_actor.runners.rollout_worker import RolloutWorker
from bray_actor.runners.rollouts import AnyRunner, Played
from bray_core import metrics
from bray_core.protocols import ActorProtocol
from bray_core.remote.calls import died_for_good, raised_by_method
from bray_core.remote.health import explain_lost_workers
from bray_core.remote.pool import WorkerPool
from bray_core.remote.unpickling import unpickled
from bray_core.remote.worker_process import worker_index
from bray_server import Limits, Tls
from bray_server.remote import RemoteServer

_ANSWER_S = 0.5
"""How long a poll waits for all workers; what comes later is part of the next one."""
_SILENT_S = 10.0
"""After which a worker that does not answer is told of."""
_MOST_NEWS_BYTES = 100_000
"""Bytes that a driver may tell each worker: it does so often."""

logger = logging.getLogger(__name__)


class RemoteActor(RemoteServer):
    """A pool of workers that answer gamecores on one port; see `bray_server.remote.RemoteServer`.

    Args:
        name: Name of the worker pool.
        actor: A class whose instances answer one session each, made with its id; or a function
            that is called once in each worker and returns what makes a session's actor from its
            id, so that model replicas and buffer handles are made there.
        num_workers: Number of workers.
        sessions_per_worker: Number of sessions beyond which a worker answers
            `too_many_sessions`; None takes that of `limits`.
        port: Port of the binary protocol; 0 takes any free one.
        http_port: Port of HTTP; 0 takes any free one, None offers no HTTP.
        host: Address to listen at, see `bray_server.Server`.
        limits: Limits of sessions, sizes and times.
        tokens: Tokens that callers may show.
        tls: Certificate and key; None speaks without TLS.
    """

    def __init__(
        self,
        name: str,
        actor: Callable[[str], ActorProtocol] | Callable[[], Callable[[str], ActorProtocol]],
        *,
        num_workers: int = 1,
        sessions_per_worker: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = None,
        limits: Limits | None = None,
        tokens: Sequence[str] = (),
        tls: Tls | None = None,
    ) -> None:
        if sessions_per_worker is not None:
            if sessions_per_worker < 1:
                raise ConfigError(
                    f"sessions_per_worker: expected 1 or more, got {sessions_per_worker}"
                )
            limits = replace(
                limits or Limits(), max_sessions=sessions_per_worker, max_client_share=1.0
            )
        super().__init__(
            name,
            actor,
            num_workers=num_workers,
            host=host,
            tcp_port=port,
            http_port=http_port,
            limits=limits,
            tokens=tokens,
            tls=tls,
        )
        self._reports = PlayReports(self._pool, "actors", "actor/workers_lost")

    def poll(self) -> Played:
        """Return what was played since the last call, where what makes the actors can tell.

        For that the function given as `actor` returns an object with a method `poll` of its own.
        Errors are those of `RemoteRollouts.poll`.
        """
        return self._reports.poll()

    def tell(self, news: Any) -> None:
        """Tell what makes the actors what the driver says, such as new opponents or options.

        For that it has a method `tell` of its own. A worker that is replaced hears the last news
        again.

        Args:
            news: What it takes; a model is named, not sent.
        """
        self._reports.tell(news)


class PlayReports:
    """What the workers of a pool have played, asked of all without waiting for any.

    Args:
        pool: its workers' `report` returns their process, and what was played since the last one.
        what: name of these workers in the log.
        metric: name of the metric that counts those that were lost.
        pack: what a worker is told → what its method `tell` is given.
    """

    def __init__(
        self,
        pool: WorkerPool,
        what: str,
        metric: str,
        pack: Callable[[Any], Any] = lambda news: news,
    ) -> None:
        self._pool = pool
        self._pack = pack
        self._what = what
        self._metric = metric
        self._lost: set[int] = set()
        """Workers that died and do not answer yet."""
        self._pids: dict[int, int] = {}
        self._asked: dict[int, tuple[Any, float]] = {}
        """The answer that each worker owes, and since when."""
        self._silent: set[int] = set()
        self._news: dict[type, Any] = {}
        """What all workers are told, packed, the newest of each kind alone."""

    def tell(self, news: Any) -> None:
        """Tell all workers, and later those that start again."""
        self._news[type(news)] = packed = self._pack(news)
        for worker in range(self._pool.size):
            self._pool.submit("tell", packed, worker=worker)

    def poll(self) -> Played:
        """Return what was played since the last call; errors as in `RemoteRollouts.poll`."""
        with explain_lost_workers():
            return self._poll()

    def _poll(self) -> Played:
        played = Played(0, [])
        now = time.monotonic()
        for worker in range(self._pool.size):
            if worker not in self._asked:
                self._asked[worker] = self._pool.submit("report", worker=worker), now
        for worker, (ref, since) in list(self._asked.items()):
            try:
                left_s = max(0.0, now + _ANSWER_S - time.monotonic())
                pid, part = self._pool.result(ref, left_s)
            except DeadlineError as error:
                if raised_by_method(error):  # such as a step that took too long
                    raise
                self._note_silent(worker, since)
                continue
            except WorkerLostError as error:
                if died_for_good(error) or raised_by_method(error):
                    raise
                self._note_lost(worker, error)
                part = Played(0, [])
            else:
                if self._pids.setdefault(worker, pid) != pid:
                    self._note_lost(worker, "it has another process")  # back before it was missed
                    self._pids[worker] = pid
                if worker in self._lost:
                    self._lost.discard(worker)
                    for packed in self._news.values():  # its process has not heard it
                        self._pool.submit("tell", packed, worker=worker)
                self._silent.discard(worker)
            del self._asked[worker]
            played = played.joined(part)
        return played

    def _note_silent(self, worker: int, since: float) -> None:
        if worker not in self._silent and time.monotonic() > since + _SILENT_S:
            self._silent.add(worker)
            logger.warning("%s: worker %d has not answered for %g s", self._what, worker, _SILENT_S)

    def _note_lost(self, worker: int, error: WorkerLostError | str) -> None:
        if worker in self._lost:  # being started again
            return
        self._lost.add(worker)
        logger.warning("%s: worker %d is replaced: %s", self._what, worker, error)
        metrics.record(self._metric, 1, kind="count")


class RemoteRollouts:
    """Runners in workers on Ray, each of which steps its environments without end.

    The buffer holds them back: a queue that blocks, a replay with `samples_per_insert`, or
    `lockstep`. A worker that dies is replaced at the next `poll`; its open segments are lost. The
    workers of a cluster are shared out over its nodes by their CPUs.

    Args:
        name: Name of the worker pool.
        make: Function that makes the runner of a worker, given the worker's number.
        num_workers: Number of workers.
        steps: Number of steps of each environment between two cuts of its segments.
        lockstep: Whether a worker waits after these for the next policy version.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], AnyRunner],
        *,
        num_workers: int = 1,
        steps: int,
        lockstep: bool,
    ) -> None:
        if steps < 1:
            raise ConfigError(f"steps: expected 1 or more, got {steps}")
        self._pool = WorkerPool(
            name,
            _RolloutWorker,
            args=(make, steps, lockstep),
            num_workers=num_workers,
            max_concurrency=2,
            spread=True,
        )
        self._reports = PlayReports(
            self._pool, "rollouts", "actor/rollouts_lost", cloudpickle.dumps
        )

    def collect(self, steps: int) -> None:
        """Do nothing: the workers play by themselves, and so much as they are told to."""

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts all workers.

        A worker that stands still keeps nobody waiting: its part comes when it answers again.

        Raises:
            Exception: the error of a worker's environment, model or buffer.
            WorkerLostError: a worker died too often, of these or of any other pool that this
                process made; quotes its last words.
        """
        return self._reports.poll()

    def tell(self, news: Any) -> None:
        """Tell the runners of all workers what the driver says: new opponents, or new options.

        They hear it before their next steps. A worker that is replaced hears the last news of each
        kind again.

        Args:
            news: What the runners' cast takes, or `NewResetOptions` for their environments; at most
                100 KB: a model is named, not sent.

        Raises:
            ConfigError: it is larger.
        """
        size = len(cloudpickle.dumps(news))
        if size > _MOST_NEWS_BYTES:
            raise ConfigError(
                f"news: expected at most {_MOST_NEWS_BYTES:,} bytes, got {size:,}: name models "
                "and files instead of sending them"
            )
        self._reports.tell(news)

    def close(self) -> None:
        """Kill the workers."""
        self._pool.close()


class _RolloutWorker(RolloutWorker):
    """One that knows by Ray which one it is, and is told bytes.

    What is told is read in the thread that plays. That thread imports what it plays with: two
    threads that import parts of one package may lock each other out.
    """

    def __init__(self, make: Callable[[int], AnyRunner], steps: int, lockstep: bool) -> None:
        super().__init__(partial(make, worker_index()), steps, lockstep)

    def tell(self, news: bytes) -> None:
        """Tell the runner what is packed."""
        self._news.append(partial(unpickled, news))

    def report(self) -> tuple[int, Played]:
        """Return the process, and what `poll` does."""
        return os.getpid(), self.poll()
