"""Replies that are due together go out together."""

import asyncio

import pytest
from server_services import Counter

from bray_server import AsyncClient, Client, Request, ServerThread
from bray_server.hosting.connection import Connection

LANES = 16


class Barrier:
    """Answers every tick when all lanes have sent theirs."""

    def __init__(self):
        self.waiting = []

    async def wait(self):
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        if len(self.waiting) == LANES:
            for one in self.waiting:
                one.set_result(None)
            self.waiting = []
        await future


@pytest.fixture
def barrier():
    return Barrier()


@pytest.fixture
def server(barrier):
    class Lane(Counter):
        async def tick(self, body):
            if body == b"together":
                await barrier.wait()
            return await super().tick(body)

    server = ServerThread(Lane, http_port=None)
    yield server
    server.close(0)


@pytest.fixture
def written(monkeypatch):
    sizes = []
    write = Connection.write

    def counted(self, data):
        sizes.append(len(data))
        write(self, data)

    monkeypatch.setattr(Connection, "write", counted)
    return sizes


def ticks(body, lanes=LANES):
    return [Request("tick", str(lane), body) for lane in range(lanes)]


def test_lanes_that_are_answered_together_are_sent_one_message(server, written):
    with Client(server.addresses[0]) as client:
        client.exchange([Request("start", str(lane), b"") for lane in range(LANES)])
        written.clear()
        assert client.exchange(ticks(b"together")) == [b"1"] * LANES
        assert len(written) == 1
        assert client.exchange(ticks(b"together")) == [b"2"] * LANES
        assert len(written) == 2


async def test_a_reply_does_not_wait_for_one_that_takes_long(server):
    async with await AsyncClient.connect(server.addresses[0]) as client:
        await client.start("slow", b"")
        await client.start("quick", b"")
        slow = asyncio.create_task(client.tick("slow", b"sleep 0.5"))
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(client.tick("quick", b""), 0.3) == b"1"
        assert not slow.done()
        assert await slow == b"1"
