"""Random messages of the Open Inference Protocol, near enough to proper ones to get far.

Run against a server of its own: fuzz_open_inference.py ADDRESS COUNT [SEED], where ADDRESS serves
the models `model` (one input `inputs[0]`, FP32 [B, 4]) and `gru` (the same, with a state).
"""

from __future__ import annotations

import copy
import json
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

_TOGETHER = 32
"""Requests that are sent before their replies are read."""
_ALLOWED = {200, 400, 404, 405, 408, 429}
_ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, 1e308, -0.0,
    float("nan"), float("inf"), "", "x", "é\ud83d\ude00", "\u0000", "FP32", "INT64", "BYTES",
    "inputs[0]", "inputs[1]", "outputs/logits", "outputs/sum", [], [[]], [[[[[]]]]], {}, {"a": []},
    [0] * 5, [[0, 0], [0, 0]], [1, 4], [4, 1], [1], [-1, 4], [10**9, 4], ["a", 1, None], "x" * 300,
]  # fmt: skip
_KEYS = [
    "inputs", "outputs", "id", "parameters", "name", "datatype", "shape", "data", "binary_data",
    "binary_data_size", "binary_data_output", "sequence_id", "sequence_start", "sequence_end",
    "timeout", "classification", "shared_memory_region", "priority", "x",
]  # fmt: skip
_PATHS = ["", "/versions/0", "/versions/9", "/versions/"]


class Fuzzer:
    """Makes requests.

    Args:
        seed: of its random numbers.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> bytes:
        """Return one request over HTTP, whole and well-formed as such."""
        pick = self._random
        model = pick.choice(
            ["model", "gru", "gru", "nobody"] if pick.random() < 0.1 else ["model", "gru"]
        )
        body, headers = self._body(model)
        path = f"/v2/models/{model}"
        if pick.random() < 0.1:
            path += pick.choice(_PATHS)
        path += pick.choice(["/infer"] * 20 + ["", "/ready", "/config", "/infer/x", "/%00"])
        if pick.random() < 0.02:
            path = pick.choice(["/v2", "/v2/health/ready", "/v2/repository/index", "/v2/x"])
        method = "POST" if pick.random() < 0.97 else pick.choice(["GET", "PUT", "HEAD"])
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _body(self, model: str) -> tuple[bytes, str]:
        pick = self._random
        message, tail = self._message(model)
        for _ in range(pick.choice([0, 0, 1, 1, 1, 2, 4])):
            self._mutate(message)
        text = json.dumps(message, ensure_ascii=pick.random() < 0.5)
        body = bytearray(text.encode(errors="surrogatepass"))
        if pick.random() < 0.1:
            body = self._text_mutated(body)
        headers, size = "", len(body)
        if tail or pick.random() < 0.05:
            said = (
                size if pick.random() < 0.8 else pick.choice([0, -1, size + 1, size // 2, 10**30])
            )
            headers = f"Inference-Header-Content-Length: {said}\r\n"
            keep = len(tail) if pick.random() < 0.8 else pick.randrange(len(tail) + 1)
            body += tail[:keep]
        if pick.random() < 0.01:
            headers += "Content-Encoding: gzip\r\n"
        return bytes(body), headers

    def _message(self, model: str) -> tuple[dict[str, Any], bytes]:
        """Return a proper message, and what follows it."""
        pick = self._random
        rows = pick.choice([1, 1, 1, 2, 7])
        sequence = model == "gru" and pick.random() < 0.8
        rows = 1 if sequence else rows
        values = [pick.choice([0, 1.5, -2e3, 3]) for _ in range(rows * 4)]
        tensor: dict[str, Any] = {"name": "inputs[0]", "datatype": "FP32", "shape": [rows, 4]}
        message: dict[str, Any] = {"inputs": [tensor]}
        tail = b""
        if pick.random() < 0.3:
            tensor["parameters"] = {"binary_data_size": rows * 16}
            tail = pick.randbytes(rows * 16)
        elif pick.random() < 0.5:
            tensor["data"] = values
        else:
            tensor["data"] = [values[row * 4 : row * 4 + 4] for row in range(rows)]
        if model == "gru" and not sequence:
            state = {"name": "inputs[1]", "datatype": "FP32", "shape": [rows, 4]}
            message["inputs"].append({**state, "data": [0] * rows * 4})
        if sequence:
            name = pick.choice([*range(1, 9), "a", "b"])
            marks = {mark: pick.random() < 0.3 for mark in ("sequence_start", "sequence_end")}
            message["parameters"] = {"sequence_id": name, **marks}
        elif pick.random() < 0.3:
            message["parameters"] = {"binary_data_output": pick.random() < 0.5, "timeout": 10**6}
        if pick.random() < 0.3:
            name = "outputs/logits" if model == "model" else "outputs/sum"
            message["outputs"] = [{"name": name, "parameters": {"binary_data": True}}]
        return message, tail

    def _mutate(self, message: dict[str, Any]) -> None:
        """Change one place of a message, which may be any."""
        pick = self._random
        places = list(_places(message))
        if not places:
            return
        node, key = pick.choice(places)
        act = pick.randrange(5)
        if act == 0:
            node[key] = copy.deepcopy(pick.choice(_ODD))
        elif act == 1 and isinstance(node, dict):
            del node[key]
        elif act == 2 and isinstance(node, dict):
            node[pick.choice(_KEYS)] = copy.deepcopy(pick.choice(_ODD))
        elif act == 3 and isinstance(node, list):
            node.extend(copy.deepcopy([node[key]] * pick.choice([1, 2, 40])))
        else:
            other, where = pick.choice(places)
            node[key] = copy.deepcopy(other[where])

    def _text_mutated(self, text: bytearray) -> bytearray:
        pick = self._random
        at = pick.randrange(len(text) + 1)
        act = pick.randrange(4)
        if act == 0:
            return text[:at]
        if act == 1:
            return text[:at] + pick.randbytes(pick.choice([1, 4, 300])) + text[at:]
        if act == 2:
            return text[:at] + bytes(pick.choice(b'[]{}",:0') for _ in range(5)) + text[at:]
        stop = pick.randrange(at, len(text) + 1)
        return text[:at] + text[at:stop] * 3 + text[stop:]


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield node, key
        if isinstance(node[key], dict | list) and node[key]:
            yield from _places(node[key])


def fuzz(address: str, count: int, seed: int = 0) -> Counter[int]:
    """Send random requests on connections that are used again; returns how many had each status.

    Raises:
        AssertionError: an answer is none that a client may get; holds the request.
    """
    fuzzer = Fuzzer(seed)
    host, _, port = address.partition("://")[2].rpartition(":")
    statuses: Counter[int] = Counter()
    with socket.create_connection((host, int(port)), 60) as connection:
        stream = connection.makefile("rb")
        for start in range(0, count, _TOGETHER):
            requests = [fuzzer.request() for _ in range(min(_TOGETHER, count - start))]
            connection.sendall(b"".join(requests))
            for request in requests:
                status, body, is_head = *_reply(stream, request), request.startswith(b"HEAD")
                statuses[status] += 1
                assert status in _ALLOWED, (status, body, request)
                if status != 200 and not is_head:
                    error = json.loads(body)["error"]
                    assert isinstance(error, str), (body, request)
                    assert len(error) < 2000, (body, request)
    return statuses


def _reply(stream: Any, request: bytes) -> tuple[int, bytes]:
    line = stream.readline()
    assert line.startswith(b"HTTP/1.1 "), (line, request)
    size = 0
    while (header := stream.readline()) not in (b"\r\n", b""):
        if found := re.match(rb"(?i)content-length: *(\d+)", header):
            size = int(found[1])
    return int(line[9:12]), b"" if request.startswith(b"HEAD") else stream.read(size)


if __name__ == "__main__":
    print(dict(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)))
