"""Random bodies of sessions, in the codec and in JSON, and of the admin port: each is answered.

`FUZZ_COUNT=100000` sends as many to each.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_harness import Target

from bray_core import codec
from bray_server.wire.frames import JSON, FrameParser, Kind, pack, unpack_error

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("FUZZ_COUNT", "3000"))
MAX_GROWTH_BYTES = 30 * 1024**2
_TOGETHER = 32
_CLIENTS_FAULTS = {"bad_request", "unknown_session", "session_exists", "busy", "deadline"}
_ODD: list[Any] = [
    None, True, 0, -1, 2**63 - 1, 1e308, -0.0, "", "x", "é", "\u0000", "k" * 2000, [], [[]], {},
    {"a": []},
    [0] * 5, [0.5] * 4, [[0] * 4] * 2, [1, [2]], ["a" * 500, "b"], {"k" * 900: {"k" * 900: 1}},
]  # fmt: skip
_ODD_ARRAYS = [
    np.zeros(4, np.float32), np.full(4, np.nan, np.float32), np.full(4, 1e300), np.zeros((2, 4)),
    np.zeros(0), np.array(0.5), np.zeros(4, np.complex64), np.ones(4, bool), np.zeros((1,) * 32),
]  # fmt: skip
_KEYS = [
    "observation", "reward", "terminated", "truncated", "metrics", "score", "policy", "agent",
    "match", "side", "sides", "lane", "spaces", "tags", "x",
]  # fmt: skip


def message(pick: random.Random, kind: Kind, is_json: bool) -> Any:
    """Return what a request of a session holds, with some of it changed."""
    seen = [0.0, 0.5, -1.0, 2.0]
    made: dict[str, Any] = {"observation": seen if is_json else np.array(seen, np.float32)}
    made |= {"reward": 1.0} if kind != Kind.START else {"agent": "a", "lane": 0, "tags": {}}
    made |= {"truncated": True, "metrics": {"won": 1.0}} if kind == Kind.END else {}
    odd = _ODD if is_json else [*_ODD, *_ODD_ARRAYS, b"", b"\0" * 300]
    for _ in range(pick.choice([0, 0, 1, 1, 2, 4])):
        key = pick.choice([*made, *_KEYS])
        if pick.random() < 0.2:
            made.pop(key, None)
        else:
            made[key] = copy.deepcopy(pick.choice(odd))
    return made if pick.random() < 0.95 else pick.choice(odd)


def damaged(pick: random.Random, body: bytes) -> bytes:
    """Return bytes of which some are cut out, put in or doubled, now and then."""
    if pick.random() < 0.8:
        return body
    at = pick.randrange(len(body) + 1)
    act = pick.randrange(3)
    if act == 0:
        return body[:at]
    if act == 1:
        return body[:at] + pick.randbytes(pick.choice([1, 4, 40])) + body[at:]
    return body[:at] + body[at : at + 40] * 3 + body[at:]


def frame(pick: random.Random, number: int) -> bytes:
    """Return a frame whose body may be anything."""
    kind = pick.choice([Kind.START, Kind.TICK, Kind.TICK, Kind.TICK, Kind.END])
    is_json = pick.random() < 0.5
    content = message(pick, kind, is_json)
    body = json.dumps(content).encode() if is_json else codec.encode(content)
    session = pick.choice("abcdefgh")
    return pack(kind, number, session, damaged(pick, body), JSON if is_json else 0)


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def connected(address: str) -> socket.socket:
    host, _, port = address.partition("://")[2].rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def fuzz_bodies(address: str, count: int, seed: int) -> Counter[str]:
    """Send frames on one connection; returns how many had each answer."""
    pick, answers, parser = random.Random(seed), Counter[str](), FrameParser(1 << 24, 1 << 16)
    with connected(address) as connection:
        for start in range(0, count, _TOGETHER):
            frames = [frame(pick, start + number) for number in range(_TOGETHER)]
            connection.sendall(b"".join(frames))
            missing = len(frames)
            while missing:
                part = connection.recv(1 << 16)
                assert part, "the connection was closed"
                for kind, _, _, _, body in parser.feed(part):
                    missing -= 1
                    code = unpack_error(body)[0] if kind == Kind.ERROR else "reply"
                    answers[code] += 1
                    assert code == "reply" or code in _CLIENTS_FAULTS, body
    return answers


def test_random_bodies_are_answered_and_leave_nothing(target: Target) -> None:
    pid = target.process.pid
    fuzz_bodies(target.addresses["tcp"], 512, seed=1)
    before = resident_bytes(pid)
    answers = fuzz_bodies(target.addresses["tcp"], COUNT, seed=2)
    assert resident_bytes(pid) - before < MAX_GROWTH_BYTES
    assert answers["reply"] > COUNT // 20, "they are near enough to proper ones"
    assert answers["bad_request"] > COUNT // 20


def admin_request(pick: random.Random) -> bytes:
    """Return a request to the admin port."""
    leaves: dict[str, Any] = {"trunk.0.weight": np.zeros((8, 4), np.float32)}
    for _ in range(pick.randrange(3)):
        leaves[pick.choice(["x", "trunk.0.bias", "k" * 1100])] = pick.choice([*_ODD, *_ODD_ARRAYS])
    body = damaged(pick, codec.encode(leaves))
    method = pick.choice(["PUT", "PUT", "PUT", "POST", "GET", "DELETE"])
    names = ["policy", "model", "policy%00", "..%2f..", "%ff", "x" * 300]
    path = f"/models/{pick.choice(names)}{pick.choice(['/weights', '/weights', '', '/x'])}"
    path += pick.choice(["", "", "?version=1", "?version=-1", "?version=nan", f"?version={10**40}"])
    extra = pick.choice(["", "", "Origin: http://evil.example\r\n", "Host: evil.example\r\n"])
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def fuzz_admin(address: str, count: int, seed: int) -> Counter[int]:
    """Send requests, each on a connection of its own; returns how many had each status."""
    pick, statuses = random.Random(seed), Counter[int]()
    for _ in range(count):
        request = admin_request(pick)
        with connected(address) as connection:
            connection.sendall(request)
            reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert reply.startswith(b"HTTP/1.1 "), request
        status = int(reply[9:12])
        statuses[status] += 1
        assert 200 <= status < 500, (reply, request)
    return statuses


def test_random_requests_to_the_admin_port_are_answered(target: Target) -> None:
    pid = target.process.pid
    count = COUNT // 10
    fuzz_admin(target.addresses["admin"], 100, seed=1)
    before = resident_bytes(pid)
    statuses = fuzz_admin(target.addresses["admin"], count, seed=2)
    assert resident_bytes(pid) - before < MAX_GROWTH_BYTES
    assert statuses[400] > count // 10
    assert statuses[403] > count // 20
