"""Sends a hostile request to a server in a process of its own, and measures what it cost there."""

from __future__ import annotations

import functools
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bray_server.wire.frames import FrameParser, Kind, unpack_error

WITNESS = Path(__file__).with_name("hostile_witness.py")
TABLE_VARIABLE = "HOSTILE_TABLE"
"""Environment variable: a file to which each request's row is appended."""
WITNESS_TOKEN_VARIABLE = "HOSTILE_WITNESS_TOKEN"
"""Environment variable: the token that the witness says, if it is set."""
MAX_STALL_S = 0.1
"""Longest stall on a core that needs `_LOOPS_S` for `_LOOPS` turns of a loop."""
MAX_GROWTH = 8
"""Bytes of memory that one byte of a request may cost."""
SLACK_BYTES = 8 * 1024**2
"""Growth of a process that says nothing: an arena, a pool's first thread."""
_DEADLINE_S = 60.0
_GIVEN_BACK_S, _LOOK_S = 10.0, 0.1
_MIB = 1024**2
_TRIES = 3
_LOOPS, _LOOPS_S = 300_000, 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class HostileRequest:
    """One attack: what each of its connections sends, and the only answers that are right."""

    name: str
    port: Literal["tcp", "http", "admin"]
    data: Callable[[], bytes]
    answer: str
    """Regular expression for the last answer of each connection: `400 bad_request` over HTTP,
    `error bad_request` or `reply` over TCP, and `closed` where none came."""
    num_answers: int = 1
    """Answers of one connection; the last one is judged."""
    connections: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one attack cost the server."""

    sent_bytes: int
    stall_s: float
    """Longest interval between two answers to another session, in CPU time of the server."""
    stall_wall_s: float
    added_bytes: int
    """Peak of resident memory above that before the attack."""
    kept_bytes: int
    """Resident memory above that before, once it is within its bound or some seconds have passed:
    memory is given back after a while."""
    answers: tuple[str, ...]

    def row(self, name: str) -> str:
        """Return a row of the table: request, bytes, memory, time on the loop, answer."""
        answers = ", ".join(sorted(set(self.answers)))
        return (
            f"| {name} | {self.sent_bytes:,} | {self.added_bytes / _MIB:.1f} MiB "
            f"| {self.kept_bytes / _MIB:.1f} MiB | {self.stall_s * 1e3:.0f} ms "
            f"| {self.stall_wall_s * 1e3:.0f} ms | {answers} |\n"
        )


class Target:
    """A server's process and the witness that watches it from a session of its own.

    Args:
        process: the server.
        addresses: its ports, such as `{"tcp": "tcp://127.0.0.1:7300"}`.
    """

    def __init__(self, process: subprocess.Popen[str], addresses: dict[str, str]) -> None:
        self.process = process
        self.addresses = addresses
        self._witness = subprocess.Popen(
            [sys.executable, str(WITNESS), addresses["tcp"], str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._longest_stall()

    def close(self) -> None:
        """End the witness, then the server."""
        assert self._witness.stdin is not None
        assert self._witness.stdout is not None
        self._witness.stdin.close()
        self._witness.wait(30)
        self._witness.stdout.close()
        self.process.kill()
        self.process.communicate()

    def attack(self, request: HostileRequest) -> Cost:
        """Send a request on all its connections at once, wait for the answers, and measure."""
        data = request.data()
        before = self._memory("VmRSS")
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        self._longest_stall()
        answers = _exchange(self.addresses[request.port], data, request)
        longest, cpu = self._longest_stall()
        cost = Cost(
            sent_bytes=len(data) * request.connections,
            stall_s=cpu,
            stall_wall_s=longest,
            added_bytes=self._memory("VmHWM") - before,
            kept_bytes=self._kept(before, len(data) * request.connections + SLACK_BYTES),
            answers=tuple(answers),
        )
        if table := os.environ.get(TABLE_VARIABLE):
            with Path(table).open("a") as file:
                file.write(cost.row(request.name))
        assert self.process.poll() is None, "the server has ended"
        return cost

    def least_cost(self, request: HostileRequest) -> Cost:
        """Attack until the stall is within its bound, a few times at most.

        What a request costs by itself it costs each time; what other programs of this machine add,
        by the caches and cores that they share with the server, is there in one try and not in
        the next.
        """
        bound_s = max_stall_s()
        costs = [self.attack(request)]
        while costs[-1].stall_s > bound_s and len(costs) < _TRIES:
            costs.append(self.attack(request))
        return min(costs, key=lambda cost: cost.stall_s)

    def _kept(self, before: int, allowed: int) -> int:
        """Wait until the server keeps no more memory than it may, or its time for that is over."""
        deadline = time.monotonic() + _GIVEN_BACK_S
        while (kept := self._memory("VmRSS") - before) > allowed and time.monotonic() < deadline:
            time.sleep(_LOOK_S)  # nothing tells when pages go back to the system
        return kept

    def _longest_stall(self) -> tuple[float, float]:
        assert self._witness.stdin is not None
        assert self._witness.stdout is not None
        self._witness.stdin.write("\n")
        self._witness.stdin.flush()
        line = self._witness.stdout.readline()
        assert line, "the witness was not answered"
        wall, cpu = json.loads(line)
        return wall, cpu

    def _memory(self, key: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{key}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@functools.cache
def max_stall_s() -> float:
    """Return the bound of a stall on this machine: `MAX_STALL_S`, and more on a slower core."""
    return MAX_STALL_S * max(1.0, min(_loops_s() for _ in range(5)) / _LOOPS_S)


def _loops_s() -> float:
    began, total = time.process_time(), 0
    for number in range(_LOOPS):
        total += number & 7
    return time.process_time() - began


def check(request: HostileRequest, cost: Cost) -> None:
    """Hold what an attack cost against the bounds that no request may pass."""
    for answer in cost.answers:
        assert re.fullmatch(request.answer, answer), f"{request.name}: answered {answer!r}"
    assert cost.stall_s <= max_stall_s(), f"{request.name}: {cost}"
    assert cost.added_bytes <= MAX_GROWTH * cost.sent_bytes + SLACK_BYTES, f"{request.name}: {cost}"
    assert cost.kept_bytes <= cost.sent_bytes + SLACK_BYTES, f"{request.name}: {cost}"


class _Connection:
    """One connection of an attack: sends what it can, reads what comes."""

    def __init__(self, address: str, data: bytes, num_answers: int) -> None:
        scheme, _, where = address.partition("://")
        host, _, port = where.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 10)
        self.socket.setblocking(False)
        self.rest = memoryview(data)
        self._received = bytearray()
        self._read = _tcp_answers if scheme == "tcp" else _http_answers
        self._num_answers = num_answers
        self.answer: str | None = None

    def ready(self, events: int) -> None:
        """Go on; sets `answer` when the last one has come, or the server has closed."""
        closed = False
        try:
            if events & selectors.EVENT_READ:
                part = self.socket.recv(1 << 18)
                self._received += part
                closed = not part
            if events & selectors.EVENT_WRITE and self.rest:
                self.rest = self.rest[self.socket.send(self.rest[: 1 << 18]) :]
        except OSError:
            closed = True
        answers = self._read(bytes(self._received))
        if len(answers) >= self._num_answers or closed:
            self.answer = answers[-1] if answers else "closed"


def _exchange(address: str, data: bytes, request: HostileRequest) -> list[str]:
    """Send on all connections side by side; returns the last answer of each."""
    connections = [
        _Connection(address, data, request.num_answers) for _ in range(request.connections)
    ]
    deadline = time.monotonic() + _DEADLINE_S
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, 3, connection)
        while selector.get_map():
            assert time.monotonic() < deadline, f"{request.name}: no answer in {_DEADLINE_S} s"
            for key, events in selector.select(1.0):
                connection = key.data
                connection.ready(events)
                if connection.answer is not None:
                    selector.unregister(connection.socket)
                elif not connection.rest:
                    selector.modify(connection.socket, selectors.EVENT_READ, connection)
    for connection in connections:
        connection.socket.close()
    return [connection.answer or "" for connection in connections]


def _tcp_answers(data: bytes) -> list[str]:
    answers = []
    for kind, _, _, _, body in FrameParser(1 << 30, 1 << 16).feed(data):
        answers.append(
            f"error {unpack_error(body)[0]}" if kind == Kind.ERROR else Kind(kind).name.lower()
        )
    return answers


def _http_answers(data: bytes) -> list[str]:
    answers = []
    while match := re.match(rb"HTTP/1\.1 (\d+)[^\r]*\r\n(.*?)\r\n\r\n", data, re.S):
        status, head = match[1].decode(), match[2]
        size = re.search(rb"(?i)^content-length: *(\d+)", head, re.M)
        end = match.end() + (int(size[1]) if size else 0)
        if len(data) < end:
            break
        if status != "100":
            answers.append(f"{status} {_code(data[match.end() : end])}".strip())
        data = data[end:]
    return answers


def _code(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""
