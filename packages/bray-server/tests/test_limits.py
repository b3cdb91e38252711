"""What a client gets that wants too much, stalls, or reads nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from server_services import Counter, Echo, Launch

from bray_core.errors import ConfigError, ServiceError
from bray_server import AsyncClient, Client, Limits, Request, ServerThread
from bray_server.wire.frames import HEADER, FrameParser, Kind, pack, unpack_error


def connect(address: str) -> socket.socket:
    host, _, port = address.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), 5)


def read_all(raw: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := raw.recv(65536):
            received += data
    return received


def error_of(data: bytes) -> str:
    """Return the code of the last frame, an error."""
    kind, _, _, _, body = FrameParser(1 << 20, 100).feed(data)[-1]
    assert kind == Kind.ERROR
    return unpack_error(body)[0]


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_requests_beyond_the_queue_are_refused_at_once() -> None:
    server = ServerThread(Counter, limits=Limits(max_requests=10, tick_timeout_s=5))
    with Client(server.addresses[0]) as client:
        names = [str(number) for number in range(15)]
        client.exchange([Request("start", name, b"") for name in names[:8]])
        client.exchange([Request("start", name, b"") for name in names[8:]])
        replies = client.exchange([Request("tick", name, b"sleep 0.6") for name in names])
        codes = [reply.code if isinstance(reply, ServiceError) else "" for reply in replies]
        assert codes == [""] * 10 + ["overloaded"] * 5
        assert client.tick("14", b"") == b"1", "the session is as it was"
    server.close(0)


def test_a_connection_with_too_much_under_way_is_not_read_until_it_is_answered() -> None:
    server = ServerThread(Counter, limits=Limits(max_requests_per_connection=4))
    with Client(server.addresses[0]) as client:
        names = [str(number) for number in range(12)]
        for name in names:
            client.start(name)
        replies = client.exchange([Request("tick", name, b"sleep 0.05") for name in names])
        assert replies == [b"1"] * 12, "late, but none is lost"
    server.close(0)


@pytest.mark.parametrize(("option", "connections"), [("S", 150), ("", 36)])
def test_open_files_allow_the_connections_or_bound_them(option: str, connections: int) -> None:
    """A shell's soft limit is raised; with a hard one, connections beyond it are refused."""
    program = str(Path(__file__).parent / "server_services.py")
    options = json.dumps({"http_port": 0, "limits": {"max_client_share": 1.0}})
    limited = ["sh", "-c", f'ulimit -{option}n 100; exec "$@"', "sh"]
    command = [*limited, sys.executable, program, "Counter", options]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as server:
        with contextlib.ExitStack() as stack:
            stack.callback(server.kill)
            tcp = json.loads(server.stdout.readline())[0]
            kept = [stack.enter_context(Client(tcp)) for _ in range(connections)]
            for number, client in enumerate(kept):
                client.start(str(number))
            if not option:
                with connect(tcp) as refused:
                    assert read_all(refused) == b""
            assert kept[0].tick("0", b"") == b"1"
        is_told = "may have files for 36 only" in server.stderr.read()
    assert is_told == (not option)


def test_connections_beyond_the_limit_are_closed_and_counted() -> None:
    server = ServerThread(Counter, http_port=0, limits=Limits(max_connections=3))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server.addresses[0])) for _ in range(3)]
        clients[0].start("s")
        with connect(server.addresses[0]) as refused:
            assert read_all(refused) == b""
        assert clients[0].tick("s", b"") == b"1"
    with Client(server.addresses[0]) as client:
        deadline = time.monotonic() + 5
        while True:  # until the server has noticed that the others are gone
            with contextlib.suppress(ServiceError):
                client.start("after")
                break
            assert time.monotonic() < deadline
    server.close(0)


def test_a_frame_that_never_becomes_whole_is_ended() -> None:
    server = ServerThread(Counter, limits=Limits(receive_timeout_s=0.3))
    frame = pack(Kind.START, 1, "s", b"body")
    with Client(server.addresses[0]) as client:
        client.start("other")
        for begun in (b"", frame[:1], frame[:20], frame + frame[:-1]):
            with connect(server.addresses[0]) as raw:
                raw.sendall(begun)
                assert error_of(read_all(raw)) == "deadline"
        assert client.tick("other", b"") == b"1", "a connection that rests is left alone"
    server.close(0)


def test_idle_http_connections_are_closed_and_opened_again_unnoticed() -> None:
    server = ServerThread(Echo(), http_port=0, limits=Limits(idle_timeout_s=0.3, send_timeout_s=1))
    with Client(server.addresses[1]) as client, connect(server.addresses[1]) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        assert client.call(b"1") == b"1"
        read_all(raw)  # ends when the server closes it
        assert client.call(b"2") == b"2"
    server.close(0)


@pytest.mark.parametrize("scheme", ["tcp", "http"])
def test_who_reads_nothing_does_not_grow_the_server(scheme: str, launch: Launch) -> None:
    """A thousand requests of a few bytes ask for a megabyte each."""
    process, addresses = launch("Echo", http_port=0, limits={"send_timeout_s": 1.0})
    (address,) = [a for a in addresses[:2] if a.startswith(scheme)]
    wanted = b"times 1000000"
    frame = pack(Kind.CALL, 1, "", wanted)
    http = b"POST /step HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(wanted), wanted)
    with Client(address) as bystander, connect(address) as raw:
        bystander.call(wanted)
        before = rss_bytes(process.pid)
        raw.settimeout(0.5)
        with contextlib.suppress(TimeoutError, OSError):
            raw.sendall((frame if scheme == "tcp" else http) * 1000)
        assert bystander.call(b"here") == b"here"
        assert rss_bytes(process.pid) - before < 30_000_000
        deadline = time.monotonic() + 10
        with Client(addresses[1]) as pages:  # until the server has cut it off
            while b"bray_slow_readers_total 1" not in fetch(addresses[1], "/metrics"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            del pages
        assert bystander.call(b"still") == b"still"


def fetch(address: str, path: str) -> bytes:
    with connect(address) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        return read_all(raw)


def test_a_reader_that_is_only_slow_gets_everything() -> None:
    """One that needs longer for what the kernel holds than a reader may stand still."""
    server = ServerThread(Echo(), limits=Limits(send_timeout_s=1.0))
    try:
        with connect(server.addresses[0]) as raw:
            calls = pack(Kind.CALL, 1, "", b"times 300000") * 20
            sender = threading.Thread(target=raw.sendall, args=(calls,))
            sender.start()
            wanted, got = 20 * (HEADER.size + 300_000), 0
            began = time.monotonic()
            while got < wanted:
                data = raw.recv(50_000)
                assert data, "cut off"
                got += len(data)
                time.sleep(0.03)  # the server waits for us most of the time
            assert time.monotonic() - began > 3.0
            sender.join()
    finally:
        server.close(0)


async def test_ticks_that_wait_do_not_hold_up_those_that_do_not() -> None:
    opened = asyncio.Event()

    class Gate(Counter):
        async def tick(self, body: bytes) -> bytes:
            if body == b"wait":
                await opened.wait()
            elif body == b"open":
                opened.set()
            return await super().tick(b"")

    server = ServerThread(Gate)
    async with await AsyncClient.connect(server.addresses[0]) as client:
        await client.exchange([Request("start", str(number), b"") for number in range(50)])
        slow = [asyncio.create_task(client.tick(str(n), b"wait")) for n in range(49)]
        await asyncio.sleep(0)
        for _ in range(100):
            await client.tick("49", b"")
        assert not any(task.done() for task in slow)
        assert await client.tick("49", b"open") == b"101"
        assert await asyncio.gather(*slow) == [b"1"] * 49
    await asyncio.to_thread(server.close, 0)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_requests: expected a whole number, got '3'"):
        Limits(max_requests="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="send_timeout_s: expected more than 0, got nan"):
        Limits(send_timeout_s=float("nan"))
    with pytest.raises(ConfigError, match="max_sessions: expected a whole number, got True"):
        Limits(max_sessions=True)
