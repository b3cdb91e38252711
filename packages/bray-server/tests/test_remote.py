from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from typing import Any

import pytest

from bray_core.errors import ConfigError, PortInUseError, ServiceError
from bray_server import Client, Limits, Request

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Pid:
    async def tick(self, body: bytes) -> bytes:
        return str(os.getpid()).encode()


class Session:
    def __init__(self, session: str) -> None:
        self.ticks = 0

    async def start(self, body: bytes) -> bytes:
        return str(os.getpid()).encode()

    async def tick(self, body: bytes) -> bytes:
        self.ticks += 1
        return f"{os.getpid()} {self.ticks}".encode()

    async def end(self, body: bytes) -> bytes:
        return b""


def remote_server(*arguments: Any, **options: Any) -> Any:
    from bray_server.remote import RemoteServer

    return RemoteServer(*arguments, **options)


def test_workers_share_a_port_and_are_replaced() -> None:
    server = remote_server("pids", Pid, num_workers=2, http_port=0)
    try:
        assert len(server.addresses) == 2, "one TCP and one HTTP address for both workers"
        reached = set()
        for _ in range(40):  # the kernel spreads connections at random: 2 in 2**40 miss one
            with Client(server.addresses[0]) as client:
                reached.add(int(client.call(b"")))
        assert reached == set(server.pids())
        first, second = server.worker_addresses
        with Client(second) as bystander:
            (survivor,) = reached & {int(bystander.call(b""))}
            (victim,) = reached - {survivor}
            os.kill(victim, signal.SIGKILL)
            server.wait_ready()
            assert int(bystander.call(b"")) == survivor
        assert first not in server.worker_addresses
        with Client(server.worker_addresses[0]) as client:
            assert int(client.call(b"")) not in reached
    finally:
        server.close()
    with pytest.raises(ServiceError, match="unreachable"):
        Client(second)


@pytest.mark.long
def test_killing_a_worker_ends_only_its_sessions() -> None:
    server = remote_server("sticky", Session, num_workers=2)
    try:
        doomed_address, spared_address = server.worker_addresses
        with Client(doomed_address) as doomed, Client(spared_address) as spared:
            victim = int(doomed.start("doomed"))
            names = [f"spared-{number}" for number in range(200)]
            spared.exchange([Request("start", name, b"") for name in names])
            for number in range(20):
                if number == 5:
                    os.kill(victim, signal.SIGKILL)
                ticks = spared.exchange([Request("tick", name, b"") for name in names])
                assert {bytes(tick).split()[1] for tick in ticks} == {str(number + 1).encode()}
            with pytest.raises(ServiceError, match="worker_lost: session 'doomed' is lost"):
                spared.tick("doomed", b"")
            server.wait_ready()
            spared.start("doomed")
    finally:
        server.close()


@pytest.mark.long
def test_calls_follow_the_strategy_and_survive_a_worker() -> None:
    server = remote_server("turns", Pid, num_workers=2, strategy="round_robin")
    keyed = remote_server("keyed", Pid, num_workers=2, strategy="hash")
    try:
        turns = Counter(server.call(b"") for _ in range(20))
        assert sorted(turns.values()) == [10, 10]
        assert len({keyed.call(b"", key="a") for _ in range(10)}) == 1
        assert len({keyed.call(b"", key=str(number)) for number in range(20)}) == 2
        with pytest.raises(ConfigError, match="key: strategy 'hash' needs one"):
            keyed.call(b"")
        os.kill(server.pids()[0], signal.SIGKILL)
        server.wait_ready()
        answers = Counter()  # type: ignore[var-annotated]
        for _ in range(20):
            try:
                answers[server.call(b"")] += 1
            except ServiceError as error:  # a connection that broke may have been answered
                assert error.code == "connection_lost"
        assert len(answers) == 2
    finally:
        server.close()
        keyed.close()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="tcp_port: expected 0 to 65535, got 65536"):
        remote_server("none", Pid, tcp_port=65536)
    with pytest.raises(ConfigError, match="strategy: expected one of round_robin"):
        remote_server("none", Pid, strategy="best")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1"):
            remote_server("none", Pid, tcp_port=port)


def test_two_pools_do_not_share_a_port() -> None:
    server = remote_server("alone", Pid)
    port = int(server.addresses[0].rpartition(":")[2])
    try:
        with pytest.raises(PortInUseError, match=f"port {port}"):
            remote_server("intruder", Pid, tcp_port=port)
    finally:
        server.close()


def test_limits_are_those_of_each_worker() -> None:
    server = remote_server("limited", Session, limits=Limits(max_sessions=1))
    try:
        with Client(server.addresses[0]) as client:
            client.start("one")
            with pytest.raises(ServiceError, match="too_many_sessions"):
                client.start("two")
    finally:
        server.close()
