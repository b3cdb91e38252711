"""Hostile requests of the Open Inference Protocol."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hostile_harness import HostileRequest, Target, check

pytestmark = pytest.mark.long

MIB = 1024**2
_LARGE = 16 * MIB - 4096


def post(body: bytes, headers: str = "") -> bytes:
    """Return a request for inference by the model that the target serves."""
    head = f"POST /v2/models/model/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{headers}\r\n".encode() + body


def message(data: bytes, shape: str = "[1,4]", fields: bytes = b"") -> bytes:
    """Return a message whose only input has some text as its data."""
    head = f'{{"inputs":[{{"name":"inputs[0]","datatype":"FP32","shape":{shape},"data":'
    return head.encode() + data + b"}]" + fields + b"}"


def array(item: bytes) -> bytes:
    """Return an array of as many equal items as a body may hold."""
    return b"[" + (item + b",") * ((_LARGE - 200) // (len(item) + 1)) + item + b"]"


def repeated(key: str, item: bytes) -> bytes:
    """Return a message with a long array as one of its fields."""
    return b'{"inputs":[],"%b":' % key.encode() + array(item) + b"}"


def text_of_different_lengths() -> bytes:
    """Return what once became an array of 5 GB."""
    return json.dumps(["a" * 200_000] + ["b"] * 5000).encode()


def binary(rows: int, nbytes: int) -> bytes:
    """Return a request with its tensor behind the JSON."""
    tensor = {"name": "inputs[0]", "datatype": "FP32", "shape": [rows, 4]}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": nbytes}}]})
    size = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return post(head.encode() + bytes(nbytes), size)


def row(name: str, data: Callable[[], bytes], answer: str = "400") -> HostileRequest:
    """Return a row of the table."""
    return HostileRequest(name=name, port="http", data=data, answer=answer)


_OUTPUT = b'{"name":"outputs/logits"}'
REQUESTS = [
    row("text of different lengths as data", lambda: post(message(text_of_different_lengths()))),
    row("16 MiB of zeros for one row", lambda: post(message(array(b"0")))),
    row("16 MiB of zeros, as many rows", lambda: post(message(array(b"0"), f"[{_LARGE // 8},4]"))),
    row(
        "16,384 rows in 16 MiB",
        lambda: post(message(array(b" " * 254 + b"0")[: 256 * 4 * 16_384 - 4096 - 200 - 256])),
    ),
    row(
        "16,000 rows that fit",
        lambda: post(message(b"[" + b",".join([b" " * 250 + b"0"] * 64_000) + b"]", "[16000,4]")),
        "200",
    ),
    row("16 MiB of empty lists as data", lambda: post(message(array(b"[]")))),
    row("16 MiB of empty objects as data", lambda: post(message(array(b"{}")))),
    row("16 MiB of empty text as data", lambda: post(message(array(b'""')))),
    row("16 MiB of null as data", lambda: post(message(array(b"null")))),
    row("16 MiB of opening brackets", lambda: post(message(b"[" * _LARGE))),
    row("a number of 16 MiB", lambda: post(message(b"[%b]" % (b"9" * _LARGE)))),
    row("16 MiB of space", lambda: post(message(b" " * _LARGE + b"[0]"))),
    row("a shape of 16 MiB", lambda: post(message(b"[0]", array(b"1").decode()))),
    row("a shape of 10^400 rows", lambda: post(message(b"[0]", f"[1{'0' * 400},4]"))),
    row("16 MiB of inputs", lambda: post(b'{"inputs":%b}' % array(b'{"name":""}'))),
    row("16 MiB of numbers as inputs", lambda: post(b'{"inputs":%b}' % array(b"0"))),
    row("16 MiB of outputs", lambda: post(repeated("outputs", _OUTPUT))),
    row("260 KB of one output", lambda: post(message(b"[0,0,0,0]", fields=b',"outputs":[%b]' % (
        b",".join([_OUTPUT] * 10_000))))),
    row("16 MiB of lists in parameters", lambda: post(
        message(b"[0,0,0,0]", fields=b',"parameters":{"x":%b}' % array(b"[]")[:-3000] + b"]")
    )),
    row("16 MiB of keys", lambda: post(b"{" + array(b'"inputs":[]')[1:-1] + b"}")),
    row("an id of 16 MiB", lambda: post(message(
        b"[0,0,0,0]", fields=b',"id":"\\ud83d\\ude00%b"' % (b"x" * (_LARGE - 300))))),
    row("a sequence id of 16 MiB", lambda: post(message(
        b"[0,0,0,0]", fields=b',"parameters":{"sequence_id":"\\ud83d\\ude00%b"}' % (
            b"x" * (_LARGE - 300))))),
    row("16 MiB of binary rows", lambda: binary(MIB - 256, 16 * MIB - 4096)),
    row("16 MiB behind one binary row", lambda: binary(1, 16 * MIB - 4096)),
    row("16 MiB that are no UTF-8", lambda: post(b"\xff" * _LARGE)),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_no_request_costs_more_than_its_size_justifies(
    target: Target, request_: HostileRequest
) -> None:
    check(request_, target.least_cost(request_))
