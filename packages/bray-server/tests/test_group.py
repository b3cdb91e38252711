"""Workers that share a port: real processes, real kills."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from server_services import Counter, Launch

from bray_core.errors import ConfigError, ServiceError
from bray_server import Client, Request, Server
from bray_server.hosting.group import WorkerGroup


@pytest.fixture
def workers(launch: Launch, tmp_path: Path) -> list[tuple[Any, list[str]]]:
    """Two workers: each with its process and [tcp, http, own tcp] addresses."""
    group = str(tmp_path / "group")
    options = {"group": group, "limits": {"idle_timeout_s": 30.0}}
    first = launch("Counter", http_port=0, **options)
    tcp, http = (int(address.rpartition(":")[2]) for address in first[1][:2])
    second = launch("Counter", tcp_port=tcp, http_port=http, **options)
    assert first[1][:2] == second[1][:2]
    return [first, second]


def code_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ServiceError) as caught:
        call(*arguments)
    return caught.value.code


def test_any_worker_answers_for_any_session(workers: list[Any]) -> None:
    (one, (*_, first)), (_, (*_, second)) = workers
    with Client(first) as owner, Client(second) as stranger:
        assert int(owner.start("a")) == one.pid
        assert owner.tick("a", b"") == b"1"
        assert stranger.tick("a", b"") == b"2"
        assert owner.tick("a", b"") == b"3"
        assert code_of(stranger.start, "a") == "session_exists"
        replies = stranger.exchange([Request("tick", "a", b"sleep 0.1"), Request("tick", "a", b"")])
        assert [getattr(reply, "code", reply) for reply in replies] == [b"4", "busy"]
        assert stranger.end("a") == b"ended"
        assert code_of(owner.tick, "a", b"") == "unknown_session"
        assert code_of(stranger.tick, "a", b"") == "unknown_session"
        stranger.start("a")
        assert owner.tick("a", b"") == b"1", "the other way round"
        assert code_of(owner.tick, "never", b"") == "unknown_session"


def test_sessions_over_http_go_to_any_worker(workers: list[Any]) -> None:
    http = workers[0][1][1]
    with Client(http) as client:
        client.start("web")
    for number in range(1, 30):  # a connection each: the kernel chooses the worker
        with Client(http) as client:
            assert client.tick("web", b"") == str(number).encode()


def test_a_killed_worker_takes_only_its_own_sessions_along(
    workers: list[Any], launch: Launch, tmp_path: Path
) -> None:
    (victim, (*_, first)), (_, (*_, second)) = workers
    names = [f"spared-{number}" for number in range(200)]
    with Client(second) as spared, Client(first) as doomed:
        spared.exchange([Request("start", name, b"") for name in names])
        doomed.start("lost")
        doomed.start("lost too")
        for number in range(1, 11):
            if number == 5:
                victim.kill()
            ticks = spared.exchange([Request("tick", name, b"") for name in names])
            assert ticks == [str(number).encode()] * 200
        with pytest.raises(ServiceError, match="worker_lost: session 'lost' is lost, its worker"):
            spared.tick("lost", b"")
        assert code_of(spared.tick, "lost", b"") == "unknown_session", "told once"
        spared.start("lost too")
        _, (*_, third) = launch("Counter", tcp_port=0, group=str(tmp_path / "group"))
        with Client(third) as newcomer:
            assert newcomer.tick("spared-7", b"") == b"11"
            assert newcomer.tick("lost too", b"") == b"1"


def test_metrics_are_those_of_all_workers(workers: list[Any]) -> None:
    (_, (_, http, first)), (_, (*_, second)) = workers
    with Client(first) as one, Client(second) as other:
        one.start("a")
        other.tick("a", b"")
        with urllib.request.urlopen(f"{http}/metrics") as response:
            lines = response.read().decode().splitlines()
    sessions = [line for line in lines if line.startswith("bray_sessions{")]
    assert sorted(line.split()[1] for line in sessions) == ["0", "1"]
    forwarded = [line for line in lines if line.startswith("bray_forwarded_total{")]
    assert sorted(line.split()[1] for line in forwarded) == ["0", "1"]
    assert len({line.partition("worker=")[2] for line in sessions}) == 2
    (ticked,) = [line for line in lines if line.startswith("bray_counter_ticks_total{")]
    assert ticked.split()[1] == "1", "what a worker's process records is there too"


def test_a_stopped_worker_leaves_nothing_behind(workers: list[Any], tmp_path: Path) -> None:
    for process, (*_, address) in workers:
        with Client(address) as client:
            client.start(str(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert [path.name for path in (tmp_path / "group").rglob("*") if path.is_symlink()] == []
    assert list((tmp_path / "group").glob("*.sock")) == []


async def test_dead_workers_are_forgotten_in_time(tmp_path: Path) -> None:
    dead, alive = WorkerGroup(tmp_path, 60), WorkerGroup(tmp_path, 0.0)
    dead.claim(b"s")
    (tmp_path / f"{dead.name}.sock").touch()  # a socket that nobody listens at
    await alive.sweep()
    with pytest.raises(ServiceError, match="worker_lost"):
        await alive.forward(2, b"s", b"")
    dead.claim(b"t")
    await alive.sweep()
    left = await asyncio.to_thread(lambda: [*tmp_path.glob("sessions/*"), *tmp_path.glob("*.dead")])
    assert left == []


async def test_a_claim_is_exclusive_and_survives_odd_names(tmp_path: Path) -> None:
    one = WorkerGroup(tmp_path, 60)
    for name in (b"../../etc/passwd", b"\0", b"x" * 5000, "säule".encode()):
        one.claim(name)
        with pytest.raises(ServiceError, match="session_exists"):
            one.claim(name)
        one.release(name)
        one.release(name)
    assert list((tmp_path / "sessions").iterdir()) == []


async def test_strangers_cannot_look_into_the_folder(tmp_path: Path) -> None:
    server = Server(Counter, group=tmp_path / "group")
    await server.start()
    assert (tmp_path / "group").stat().st_mode & 0o077 == 0
    await server.stop(0)
    with pytest.raises(ConfigError, match="group: expected a shorter path"):
        Server(Counter, group=tmp_path / ("x" * 100))


def test_figures_are_not_for_clients(workers: list[Any]) -> None:
    """The frame by which workers ask each other is an ordinary ping on the public port."""
    import socket

    from bray_server.wire.frames import Kind, pack

    port = int(workers[0][1][0].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), 5) as raw:
        raw.sendall(pack(Kind.PING, 1, "figures", b""))
        assert raw.recv(1000) == pack(Kind.PONG, 1, "", b"")
