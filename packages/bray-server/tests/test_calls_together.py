"""A stateless service that answers several calls at once."""

import asyncio
import threading

import pytest
from server_services import Echo

from bray_core.errors import ServiceError
from bray_server import AsyncClient, Client, Limits, Request, ServerThread


class Together(Echo):
    """Answers with how many came together, fails as it is told."""

    def __init__(self):
        self.sizes = []
        self.began = threading.Event()
        self.opened = asyncio.Event()

    async def ticks(self, bodies):
        self.sizes.append(len(bodies))
        self.began.set()
        if b"wait" in bodies:
            await self.opened.wait()
        if b"open" in bodies:
            self.opened.set()
        if b"fault" in bodies:
            raise ValueError("a fault")
        if b"fewer" in bodies:
            return [b""] * (len(bodies) - 1)
        bad = ServiceError("bad_request", "a bad one")
        return [bad if body == b"bad" else 3 if body == b"three" else body for body in bodies]


@pytest.fixture
def service():
    return Together()


@pytest.fixture
def server(service):
    server = ServerThread(service, http_port=0, limits=Limits(max_requests=20))
    yield server
    server.close(0)


def call(body):
    return Request("call", "", body)


@pytest.mark.parametrize("which", [0, 1])
def test_each_gets_its_own_answer(server, service, which):
    with Client(server.addresses[which]) as client:
        bodies = [str(number).encode() for number in range(15)]
        assert client.exchange([call(body) for body in bodies]) == bodies
        assert sum(service.sizes) == 15
        replies = client.exchange([call(b"a"), call(b"bad"), call(b"three"), call(b"b")])
        assert (replies[0], replies[3]) == (b"a", b"b")
        assert str(replies[1]) == "bad_request: a bad one"
        assert "the service answered int, expected bytes" in str(replies[2])


def test_those_that_came_at_once_are_answered_at_once(server, service):
    with Client(server.addresses[0]) as client:
        client.exchange([call(b"x")] * 15)
    assert service.sizes == [15]


@pytest.mark.parametrize(("body", "words"), [(b"fault", "a fault"), (b"fewer", "expected 1 repl")])
def test_a_fault_is_everybodys_reply(server, body, words):
    with Client(server.addresses[0]) as client:
        with pytest.raises(ServiceError, match=f"service_error.*{words}"):
            client.call(body)
        assert client.call(b"next") == b"next"


def test_more_than_the_limit_are_refused(server):
    with Client(server.addresses[0]) as client:
        replies = client.exchange([call(b"x")] * 25)
        codes = [reply.code if isinstance(reply, ServiceError) else "" for reply in replies]
        assert codes == [""] * 20 + ["overloaded"] * 5
        assert server.stats() == {"requests": 25, "errors": 5, "sessions": 0}


async def test_those_that_wait_hold_up_nobody_who_comes_later(server, service):
    async with await AsyncClient.connect(server.addresses[0]) as client:
        slow = asyncio.create_task(client.call(b"wait"))
        await asyncio.to_thread(service.began.wait)
        for _ in range(20):
            await client.call(b"quick")
        assert not slow.done()
        await client.call(b"open")
        assert await slow == b"wait"


def test_a_deadline_is_kept(service):
    server = ServerThread(service, limits=Limits(tick_timeout_s=0.1))
    with Client(server.addresses[0]) as client, pytest.raises(ServiceError, match="deadline"):
        client.call(b"wait")
    server.close(0)


async def test_a_lost_caller_harms_nobody(server, service):
    gone = await AsyncClient.connect(server.addresses[0])
    lost = asyncio.create_task(gone.call(b"wait"))
    async with await AsyncClient.connect(server.addresses[0]) as client:
        await asyncio.to_thread(service.began.wait)
        await gone.close()
        with pytest.raises(ServiceError):
            await lost
        assert await client.call(b"open") == b"open"
        assert await client.call(b"x") == b"x"
