"""Ticks that are begun without a task: those that wait after all go on as if they had had one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest
from http_streams import Wire, counts

from bray_core.errors import ServiceError
from bray_server import Limits, Server
from bray_server.hosting.http import HttpConnection
from bray_server.sessions.direct_ticks import BegunTick, DirectTicks
from bray_server.wire.frames import Kind

LIMITS = Limits(tick_timeout_s=0.2, max_requests=2)
WORD: ContextVar[str] = ContextVar("WORD", default="none")

Tick = Callable[["Waiter"], Awaitable[bytes]]


class Waiter:
    """A session whose ticks do what a test says."""

    ticks: ClassVar[dict[bytes, Tick]] = {}
    go: ClassVar[asyncio.Event]

    def __init__(self, session: str) -> None: ...

    async def start(self, body: bytes) -> bytes:
        return b"started"

    async def tick(self, body: bytes) -> bytes:
        return await self.ticks[body](self) if body in self.ticks else body

    async def end(self, body: bytes) -> bytes:
        return b"ended"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `DirectTicks` answered, or None where it left a request to the queue."""
    found: list[object] = []
    answer = DirectTicks.answer

    def noted(self: DirectTicks, *request: Any) -> Any:
        found.append(answer(self, *request))
        return found[-1]

    monkeypatch.setattr(DirectTicks, "answer", noted)
    return found


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    Waiter.ticks, Waiter.go = {}, asyncio.Event()
    hosting = Server(Waiter, http_port=0, limits=LIMITS)
    await hosting.start()
    yield hosting
    await hosting.stop(0)


class Caller:
    """A client of the server over a socket, whose session's ticks are answered directly."""

    def __init__(self, session: str) -> None:
        self.session = session

    async def connect(self, server: Server, *, is_start: bool = True) -> Caller:
        """Connect, start the session, and send ticks until they need no task."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        if is_start:
            assert await self.ask("start", b"") == (200, b"started")
        for _ in range(2):
            assert await self.ask("tick", b"warm-up") == (200, b"warm-up")
        return self

    async def ask(self, kind: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the reply."""
        self.send(kind, body)
        return await self.receive()

    def send(self, kind: str, body: bytes) -> None:
        """Send a request; a tick's body is filled up to one length, so that heads are alike."""
        body = body.ljust(8) if kind == "tick" else body
        lines = ["POST /step HTTP/1.1", f"Content-Length: {len(body)}"]
        lines += [f"step_kind: {kind}", f"session: {self.session}", "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)

    async def receive(self) -> tuple[int, bytes]:
        """Return status and body of the next reply."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        (size,) = [int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length")]
        return int(head.split()[1]), (await self.reader.readexactly(size)).strip()

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        await self.writer.wait_closed()


async def told(server: Server, tick: Tick, begun: list[object]) -> tuple[int, bytes]:
    """Return the reply to a tick that was begun without a task and then waited."""
    Waiter.ticks[b"go".ljust(8)] = tick
    caller = await Caller("s").connect(server)
    reply = await caller.ask("tick", b"go")
    assert isinstance(begun[-1], BegunTick)
    assert (await caller.ask("tick", b"after"))[0] == 200
    await caller.close()
    return reply


async def in_time(actor: Waiter) -> bytes:
    async with asyncio.timeout(10):
        await asyncio.sleep(0.001)
    return b"in time"


async def too_late(actor: Waiter) -> bytes:
    try:
        async with asyncio.timeout(0.01):
            await actor.go.wait()
    except TimeoutError:
        return b"too late"
    return b"never"


async def at_once_too_late(actor: Waiter) -> bytes:
    try:
        async with asyncio.timeout(0):
            await actor.go.wait()
    except TimeoutError:
        return b"too late"
    return b"never"


async def in_a_group(actor: Waiter) -> bytes:
    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await actor.go.wait()
    except ExceptionGroup as errors:
        return b"group of %d" % len(errors.exceptions)
    return b"never"


async def waited_for(actor: Waiter) -> bytes:
    try:
        await asyncio.wait_for(actor.go.wait(), 0.01)
    except TimeoutError:
        return b"waited"
    return b"never"


async def same_task(actor: Waiter) -> bytes:
    before = asyncio.current_task()
    WORD.set("mine")
    await asyncio.sleep(0)
    assert asyncio.current_task() is before is not None
    return WORD.get().encode()


async def cancelled_by_itself(actor: Waiter) -> bytes:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await actor.go.wait()
    except asyncio.CancelledError:
        return b"cancelled %d" % task.uncancel()
    return b"never"


async def done_before_it_goes_on(actor: Waiter) -> bytes:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, b"done")
    result: bytes = await future
    return result


@pytest.mark.parametrize(
    ("tick", "reply"),
    [
        (in_time, b"in time"),
        (too_late, b"too late"),
        (at_once_too_late, b"too late"),
        (in_a_group, b"group of 1"),
        (waited_for, b"waited"),
        (same_task, b"mine"),
        (cancelled_by_itself, b"cancelled 0"),
        (done_before_it_goes_on, b"done"),
    ],
)
async def test_a_tick_that_waits_goes_on_in_the_task_it_began_in(
    tick: Tick, reply: bytes, server: Server, begun: list[object]
) -> None:
    assert await told(server, tick, begun) == (200, reply)


async def test_a_tick_that_never_ends_meets_its_deadline(
    server: Server, begun: list[object]
) -> None:
    async def tick(actor: Waiter) -> bytes:
        await actor.go.wait()
        return b"never"

    status, body = await told(server, tick, begun)
    assert (status, b'"deadline"' in body) == (408, True)
    assert counts(server)["errors"] == {"deadline": 1}
    assert server.sessions.num_running == 0


async def test_what_a_tick_awaits_may_be_cancelled(server: Server, begun: list[object]) -> None:
    async def tick(actor: Waiter) -> bytes:
        helper = asyncio.ensure_future(actor.go.wait())
        asyncio.get_running_loop().call_soon(helper.cancel)
        await helper
        return b"never"

    status, body = await told(server, tick, begun)
    assert (status, b"CancelledError" in body) == (500, True)


async def test_a_lost_connection_cancels_its_tick(server: Server, begun: list[object]) -> None:
    is_cancelled = asyncio.Event()

    async def tick(actor: Waiter) -> bytes:
        try:
            await actor.go.wait()
        finally:
            is_cancelled.set()
        return b"never"

    Waiter.ticks[b"go".ljust(8)] = tick
    caller = await Caller("s").connect(server)
    caller.send("tick", b"go")
    while not server.sessions.num_running:  # noqa: ASYNC110  a request tells nobody that it came
        await asyncio.sleep(0)
    assert isinstance(begun[-1], BegunTick)
    await caller.close()
    await asyncio.wait_for(is_cancelled.wait(), 5)
    await asyncio.sleep(0)
    assert server.sessions.num_running == 0
    again = await Caller("s").connect(server, is_start=False)
    await again.close()


async def test_ticks_that_wait_count_as_under_way(server: Server, begun: list[object]) -> None:
    async def tick(actor: Waiter) -> bytes:
        await actor.go.wait()
        return b"gone"

    Waiter.ticks[b"go".ljust(8)] = tick
    callers = [await Caller(f"s{i}").connect(server) for i in range(3)]
    same = await Caller("s0").connect(server, is_start=False)
    for caller in callers[:2]:
        caller.send("tick", b"go")
        while server.sessions.num_running <= callers.index(caller):  # noqa: ASYNC110  as above
            await asyncio.sleep(0)
    assert isinstance(begun[-2], BegunTick)
    status, body = await callers[2].ask("tick", b"plain")
    assert (status, b"overloaded" in body) == (429, True)
    draining = asyncio.ensure_future(server.sessions.drain(5))
    Waiter.go.set()
    assert [await caller.receive() for caller in callers[:2]] == [(200, b"gone")] * 2
    assert await callers[2].ask("tick", b"plain") == (200, b"plain")
    for caller in callers:
        assert (await caller.ask("end", b""))[0] == 200
    await asyncio.wait_for(draining, 5)
    for caller in [*callers, same]:
        await caller.close()


async def test_a_session_is_busy_for_others_while_its_tick_waits(
    server: Server, begun: list[object]
) -> None:
    async def tick(actor: Waiter) -> bytes:
        await actor.go.wait()
        return b"gone"

    Waiter.ticks[b"go".ljust(8)] = tick
    first = await Caller("s").connect(server)
    second = await Caller("s").connect(server, is_start=False)
    first.send("tick", b"go")
    while not server.sessions.num_running:  # noqa: ASYNC110  as above
        await asyncio.sleep(0)
    assert isinstance(begun[-1], BegunTick)
    status, body = await second.ask("tick", b"plain")
    assert (status, b"busy" in body) == (409, True)
    Waiter.go.set()
    assert await first.receive() == (200, b"gone")
    await first.close()
    await second.close()


async def test_context_variables_of_a_tick_are_its_own(server: Server) -> None:
    async def tick(actor: Waiter) -> bytes:
        before = WORD.get()
        WORD.set("set")
        return before.encode()

    Waiter.ticks[b"go".ljust(8)] = tick
    caller = await Caller("s").connect(server)
    assert [await caller.ask("tick", b"go") for _ in range(5)] == [(200, b"none")] * 5
    await caller.close()


async def test_others_have_a_turn_after_so_many_ticks(server: Server) -> None:
    direct, found = DirectTicks(server.sessions, ()), list[object]()
    await server.sessions.answer(Kind.START, b"s", b"")

    def many() -> None:
        found.extend(direct.answer(int(Kind.TICK), b"s", b"x", 0.0) for _ in range(700))

    for _ in range(3):
        asyncio.get_running_loop().call_soon(many)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    turns = [found[start : start + 700] for start in (0, 700, 1400)]
    assert [turn.count(b"x") for turn in turns] == [0, 512, 512]
    assert turns[1][:512] == [b"x"] * 512
    direct.stop()


async def test_a_reader_that_is_blocked_is_answered_later(server: Server) -> None:
    await server.sessions.answer(Kind.START, b"s", b"")
    wire, loop = Wire(), asyncio.get_running_loop()
    connection = HttpConnection(server)
    connection.connection_made(wire)
    request = b"POST /step HTTP/1.1\r\nContent-Length: 1\r\nstep_kind: tick\r\nsession: s\r\n\r\nx"
    for _ in range(3):
        loop.call_soon(connection.data_received, request)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    sent = len(wire.sent)
    loop.call_soon(connection.pause_writing)
    loop.call_soon(connection.data_received, request)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(wire.sent) == sent
    connection.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(wire.sent) == sent // 3 * 4
    connection.connection_lost(None)


async def test_calls_inside_a_task_are_left_to_the_queue(server: Server) -> None:
    direct = DirectTicks(server.sessions, ())
    await server.sessions.answer(Kind.START, b"s", b"")
    for _ in range(3):
        assert direct.answer(int(Kind.TICK), b"s", b"x", 0.0) is None
        await asyncio.sleep(0)
    direct.stop()


async def test_errors_of_a_tick_are_answered_at_once(server: Server, begun: list[object]) -> None:
    async def fail(actor: Waiter) -> bytes:
        raise ServiceError("not_ready", "later")

    Waiter.ticks[b"go".ljust(8)] = fail
    caller = await Caller("s").connect(server)
    status, _ = await caller.ask("tick", b"go")
    assert (status, isinstance(begun[-1], ServiceError)) == (503, True)
    await caller.close()
