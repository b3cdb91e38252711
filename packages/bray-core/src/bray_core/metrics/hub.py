"""The hub of a launch: gathers metrics and logs of all its processes, and answers queries.

It lives in the driver. Once a second it polls every process that joined
(`bray_core.metrics.uplink`), waits for their windows, and hands the whole to the sinks: a process
that dies loses at most what it recorded since the last poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bray_core import metrics
from bray_core.errors import ClosedError, CodecError, ConfigError, DeadlineError
from bray_core.metrics import Registry
from bray_core.metrics import hub_wire as wire
from bray_core.metrics.machine_metrics import MachineMetrics
from bray_core.metrics.media import Media
from bray_core.metrics.process_metrics import ProcessMetrics
from bray_core.metrics.sample import Sample
from bray_core.process.event_loop import EventLoopThread
from bray_core.settings.ranges import PositiveFloat, check_value

ADDRESS = "BRAY_HUB"
"""Environment variable that tells the processes of a launch where their hub is."""
EVERY_S = 1.0
RATES = {"trainer/frames": "trainer/frames_per_s", "actor/steps": "actor/steps_per_s"}
"""Counts whose rate per second is recorded, too."""

_ANSWER_S = 1.0
"""Time that a poll waits for a busy process, whose window then becomes part of the next one."""
_HELLO_S = 10.0
_MAX_HELLO_BYTES = 1000
_MAX_PROCESSES = 4096
_MAX_UNREAD_BYTES = 2**20
_STOP_S = 10.0

logger = logging.getLogger(__name__)

WriteLine = Callable[[wire.Line, str, int], None]
"""Called with a record of a process's log, its component and its rank."""


@dataclass(frozen=True, slots=True)
class GatheredMetrics:
    """Metrics that all processes recorded since the last poll."""

    samples: list[Sample]
    values: dict[str, float]
    """Newest value of every metric of the launch."""
    media: list[Media]
    wall_time_s: float


@dataclass(slots=True, eq=False)
class _Process:
    """A process that joined the hub."""

    component: str
    rank: int
    pid: int
    writer: asyncio.StreamWriter
    answered: int = 0
    """The newest poll that it answered."""
    pending: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """Listens for the processes of a launch from its construction until `close`.

    Args:
        registry: Registry that gathers everything; None takes this process's own.
        host: Address to bind.
        write: Called with the metrics of each poll, on the hub's thread.
        write_line: Called with each record of a log, on the hub's thread.
        every_s: Seconds between two polls.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        host: str = "127.0.0.1",
        write: Callable[[GatheredMetrics], None] | None = None,
        write_line: WriteLine | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        check_value("every_s", every_s, PositiveFloat)
        self._registry = registry or metrics.registry()
        self._token = secrets.token_hex(16)
        self._write = write
        self._write_line = write_line
        self._every_s = every_s
        self._process_metrics = ProcessMetrics(self._registry, "driver")
        self._machine_metrics = MachineMetrics(self._registry)
        self._processes: set[_Process] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._polls = 0
        self._gathered_at = time.monotonic()
        self._loop = EventLoopThread("bray-hub")
        try:
            port = self._loop.run(self._start(host))
        except BaseException:
            self._loop.stop()
            raise
        self.address = f"{host}:{port}/{self._token}"
        """Address that `uplink.join` takes. It holds a token: keep it within this launch."""
        self._before = os.environ.get(ADDRESS)
        os.environ[ADDRESS] = self.address

    async def _start(self, host: str) -> int:
        self._gathering = asyncio.Lock()
        self._server = await asyncio.start_server(self._connect, host, 0)
        self._ticking = asyncio.create_task(self._tick())
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def processes(self) -> list[tuple[str, int]]:
        """Component and rank of the processes that joined."""
        return sorted((process.component, process.rank) for process in list(self._processes))

    def gather(self) -> dict[str, float]:
        """Poll all processes now; return the newest value of each metric.

        Raises:
            ClosedError: The hub was closed.
        """
        return self._loop.run(self._gather(), timeout_s=_STOP_S)

    def close(self) -> None:
        """Gather once more, then stop listening; again is harmless."""
        try:
            self._loop.run(self._stop(), timeout_s=_STOP_S)
        except ClosedError:
            return
        except DeadlineError as error:
            logger.warning("hub: the last metrics are lost: %s", error)
        self._loop.stop()
        if os.environ.get(ADDRESS) == self.address:
            del os.environ[ADDRESS]
            if self._before is not None:
                os.environ[ADDRESS] = self._before

    async def _stop(self) -> None:
        self._ticking.cancel()
        try:
            await self._gather()
        except Exception:  # such as a full disk: what was open is closed all the same
            logger.exception("hub: the last metrics could not be written")
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # Gathering.

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._gather()
            except Exception:  # the thread's boundary: the next window may be written again
                logger.exception("hub: metrics could not be gathered or written")

    async def _gather(self) -> dict[str, float]:
        async with self._gathering:
            await self._poll()
            self._process_metrics.record()
            self._machine_metrics.record()
            samples = self._registry.drain()
            self._record_rates(samples)
            samples += self._registry.drain()
            values = self._registry.snapshot()
            media = self._registry.take_media()
            if self._write is not None and (samples or media):
                self._write(GatheredMetrics(samples, values, media, time.time()))
        return values

    async def _poll(self) -> None:
        self._polls += 1
        asked = list(self._processes)
        for process in asked:
            process.pending.clear()
            self._send(process, wire.Poll(self._polls))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                for process in asked:
                    await process.pending.wait()

    def _record_rates(self, samples: list[Sample]) -> None:
        now = time.monotonic()
        passed_s, self._gathered_at = now - self._gathered_at, now
        totals: dict[str, float] = {}
        for sample in samples:
            if sample.name in RATES and not sample.labels:  # such as phase="evaluation"
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.total
        for name, total in totals.items():
            self._registry.record(RATES[name], total / max(passed_s, 1e-9), kind="last")

    # Processes.

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        process: _Process | None = None
        try:
            process = await self._greet(reader, writer)
            while True:
                self._take(process, wire.decode_to_hub(await _read(reader)))
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has gone
        except asyncio.CancelledError:
            pass  # the hub closes; a cancelled task would be logged as an error by Python 3.11
        except CodecError as error:
            logger.warning("hub: a connection was cut: %s", error)
        finally:
            self._connections.discard(task)
            if process is not None:
                logger.info("%s/%d left: process %d", process.component, process.rank, process.pid)
                self._processes.discard(process)
                process.pending.set()
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Process:
        try:
            async with asyncio.timeout(_HELLO_S):
                hello = wire.decode_to_hub(await _read(reader, _MAX_HELLO_BYTES))
        except TimeoutError:
            raise CodecError(f"hello: none within {_HELLO_S:g} s") from None
        if not isinstance(hello, wire.Hello) or not hmac.compare_digest(
            hello.token.encode(), self._token.encode()
        ):
            raise CodecError("hello: expected this launch's token")
        if len(self._processes) >= _MAX_PROCESSES:
            raise CodecError(f"hello: {_MAX_PROCESSES} processes have joined: no more fit")
        process = _Process(hello.component, hello.rank, hello.pid, writer)
        logger.info("%s/%d joined: process %d", process.component, process.rank, process.pid)
        self._processes.add(process)
        return process

    def _take(self, process: _Process, message: wire.ToHub) -> None:
        if isinstance(message, wire.Push):
            self._registry.merge(message.samples)
            self._registry.add_media(message.media)
            if message.poll >= self._polls:
                process.pending.set()
        elif isinstance(message, wire.Logged):
            if self._write_line is not None:
                for line in message.lines:
                    self._write_line(line, process.component, process.rank)
        elif isinstance(message, wire.Query):
            found = self._answer(message)
            self._send(process, wire.HubAnswer(message.id, found))
        else:
            raise CodecError("hello: expected one only")

    def _answer(self, query: wire.Query) -> Sample:
        try:
            return self._registry.query(query.name, query.window_s, **query.labels)
        except ConfigError as error:  # checked there already
            raise CodecError(str(error)) from error

    def _send(self, process: _Process, message: wire.ToWorker) -> None:
        writer = process.writer
        if writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            logger.warning("hub: %s/%d reads nothing: cut", process.component, process.rank)
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(wire.encode(message))


async def _read(reader: asyncio.StreamReader, limit: int = wire.MAX_FRAME_BYTES) -> bytes:
    size = wire.frame_bytes(await reader.readexactly(wire.HEADER.size))
    if size > limit:
        raise CodecError(f"frame: expected {limit} bytes at most, got {size}")
    return await reader.readexactly(size)
