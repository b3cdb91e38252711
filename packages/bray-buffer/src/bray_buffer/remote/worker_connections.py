"""A handle's connections to all workers of a buffer: made when needed, dropped when lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading

import ray.exceptions

from bray_buffer.remote.connections import (
    BufferConnection,
    RayCallConnection,
    SharedMemoryConnection,
    SocketConnection,
)
from bray_buffer.shared.sharing_rules import BufferDescription
from bray_core.errors import BrayError, ClosedError, NotFoundError, WorkerLostError
from bray_core.layout import Block
from bray_core.remote.calls import died_for_good
from bray_core.remote.pool import WorkerPool

logger = logging.getLogger(__name__)


class WorkerConnections:
    """Connects to each worker of a pool by the fastest way that there is.

    Args:
        pool: The buffer's workers.
        description: What the workers' buffers are.
    """

    def __init__(self, pool: WorkerPool, description: BufferDescription) -> None:
        self._pool = pool
        self._description = description
        self._connecting = threading.Lock()
        self._turn = itertools.count()
        self._failures: dict[int, int] = {}
        self.opened: dict[int, BufferConnection] = {}
        """Connections by worker, as far as they are open."""

    def get(self, worker: int) -> BufferConnection:
        """Return the connection to a worker, which is opened if there is none."""
        connection = self.opened.get(worker)
        if connection is None:
            with self._connecting:
                connection = self.opened.get(worker)
                if connection is None:
                    connection = self.opened[worker] = self._connect(worker)
        return connection

    def get_all(self) -> list[BufferConnection]:
        """Return the connections to all workers."""
        return [self.get(worker) for worker in range(self._pool.size)]

    def _connect(self, worker: int) -> BufferConnection:
        self.check_open()
        if worker in self._pool.near():
            with contextlib.suppress(NotFoundError):  # such as in a container of its own
                return SharedMemoryConnection(self._description, worker)
        try:
            address = self._pool.call("listen", worker=worker, again=True)
            return SocketConnection(self._pool, worker, address, self._description)
        except OSError as error:
            logger.warning(
                "buffer %s: no socket to worker %d (%s): goes by Ray, which is slower",
                self._pool.name,
                worker,
                error,
            )
            return RayCallConnection(self._pool, worker, self._description.layout)

    def drop(self, worker: int, error: Exception) -> None:
        """Forget a connection that failed, or raise ClosedError if its worker does not come back.

        The error of a worker that died too often is raised as it is: it says what the worker died
        of, and the buffer was not closed.
        """
        if isinstance(error, WorkerLostError) and died_for_good(error):
            raise error
        if isinstance(error.__cause__, ray.exceptions.ActorDiedError):
            raise self.closed_error() from error
        logger.warning("buffer %s: worker %d is lost: %s", self._pool.name, worker, error)
        connection = self.opened.pop(worker, None)
        if connection is not None:
            connection.close()

    def next_turn(self) -> int:
        """Return the next number of the turns that workers take."""
        return next(self._turn)

    def with_most_room(self) -> int:
        """Return the worker with more room of two that take turns."""
        size = self._pool.size
        if size <= 1:
            self.check_open()
            return 0
        first = self.next_turn() % size
        second = (first + 1) % size
        return max((first, second), key=lambda worker: self.get(worker).num_free())

    def take(self, worker: int, deadline: float) -> Block | None:
        """Return a worker's batch; None if there is none in time, or the worker was lost.

        Raises:
            ClosedError: the buffer was closed.
            BrayError: the worker's own error, such as that of a transform.
        """
        try:
            connection = self.get(worker)
            block = connection.take(deadline)
            if block is None:
                self._raise_failure(worker, connection)
            return block
        except WorkerLostError as error:
            self.drop(worker, error)
            return None
        except ClosedError:
            raise self.closed_error() from None

    def _raise_failure(self, worker: int, connection: BufferConnection) -> None:
        if not isinstance(connection, SharedMemoryConnection):
            return
        if self._description.rules.is_direct:  # nothing runs in the worker that could fail
            return
        failures = connection.outbox.word("failures")
        if failures > self._failures.get(worker, 0):
            self._failures[worker] = failures
            failure = self._pool.call("next_failure", worker=worker)
            if failure is not None:
                raise BrayError(f"buffer {self._pool.name}: {failure}")

    def check_open(self) -> None:
        """Raise ClosedError if the buffer was closed."""
        if not self._pool.size:
            raise self.closed_error()

    def closed_error(self) -> ClosedError:
        """Return the error that says that the buffer was closed."""
        return ClosedError(f"buffer {self._pool.name}: closed")

    def flush(self) -> None:
        """Wait until what was pushed has arrived at the workers."""
        for worker, connection in list(self.opened.items()):
            try:
                connection.flush()
            except (WorkerLostError, OSError) as error:
                self.drop(worker, error)
            except ClosedError:
                raise self.closed_error() from None

    def close(self) -> None:
        """Remove the shared memory, and leave all workers."""
        for connection in self.opened.values():
            if isinstance(connection, SharedMemoryConnection):
                connection.remove()
            connection.close()
        self.opened = {}
