"""The same ONNX model over HTTP: `bray serve`, mosec, LitServe and Ray Serve with `@serve.batch`.

    uv run python -m benchmarks.micro.model_http
    unshare -n sh -c 'ip link set lo up; exec .venv/bin/python -m benchmarks.micro.model_http'

64 keep-alive connections of a load generator in C++ (needs g++), a row a request. Each server has
one process that computes, with one thread; mosec has its server in Rust beside it, LitServe and Ray
Serve their web processes. `bray serve --workers 2` has as many processes as mosec. One server runs
at a time, because they would take each other's cores; medians of the rounds. All get rows as raw
bytes, but LitServe, which takes JSON (base64). Ray Serve runs only where loopback is the only
interface, for the reason that benchmarks/micro/server.py gives.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.harness import PEERS, Report, argument, compiled_load, main
from benchmarks.micro.networks import NETWORKS, exported
from benchmarks.micro.server import CONNECTIONS, Contender, free_port, load, started

from bray_core.codec import encode

FIRST = "bray, /step"
PACKAGES = {
    "mosec": ["mosec"],
    "litserve": ["litserve"],
    "ray_serve": ["ray[serve]==2.60.0"],
}
_START_S = 180.0
_SETTLE_S = 2.0
"""HAProxy, before Ray Serve, is started anew after the first answers."""


@dataclass(frozen=True)
class Server:
    """What is started, and what is sent to it."""

    name: str
    command: Callable[[int], list[str]]
    request: bytes
    """A whole HTTP request."""


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a whole request."""
    head = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/octet-stream",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def bray(export: Path, workers: int, port: int) -> list[str]:
    """Return the command."""
    main = "import sys; from bray_core.cli import main; sys.exit(main())"
    ports = [f"--http-port={port}", "--tcp-port=0", f"--workers={workers}"]
    return [sys.executable, "-c", main, "serve", str(export), *ports, "--max-batch-size=64"]


def peer(module: str, export: Path, rows: np.ndarray, port: int) -> list[str]:
    """Return the command of a framework in an environment of its own."""
    packages = ["onnxruntime", "numpy", *PACKAGES[module]]
    command = ["uv", "run", "--no-project", "--python", sys.executable]
    command += [part for package in packages for part in ("--with", package)]
    shape = ",".join(map(str, rows.shape[1:]))
    command += ["python", str(PEERS / "model_servers.py"), module, str(port)]
    return [*command, str(export / "model.onnx"), rows.dtype.name, shape]


def v2(name: str, rows: np.ndarray) -> bytes:
    """Return a request of the Open Inference Protocol, tensors in binary."""
    kind = {"float32": "FP32", "uint8": "UINT8"}[rows.dtype.name]
    tensor = {
        "name": "inputs[0]",
        "datatype": kind,
        "shape": rows.shape,
        "parameters": {"binary_data_size": rows.nbytes},
    }
    message = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(message).encode()
    size = f"Inference-Header-Content-Length: {len(head)}"
    return post(f"/v2/models/{name}/infer", head + rows.tobytes(), size)


def servers(name: str, export: Path, rows: np.ndarray, peers: list[str]) -> list[Server]:
    """Return who is measured."""
    step, raw = post("/step", encode([rows[0]])), post("/step", rows.tobytes())
    coded = json.dumps({"x": base64.b64encode(rows.tobytes()).decode()}).encode()
    requests = {
        "mosec": raw,
        "ray_serve": raw,
        "litserve": raw.partition(b"\r\n\r\n")[0]
        .replace(b"application/octet-stream", b"application/json")
        .replace(b"Content-Length: %d" % rows.nbytes, b"Content-Length: %d" % len(coded))
        + b"\r\n\r\n"
        + coded,
    }
    return [
        Server(FIRST, partial(bray, export, 1), step),
        Server("bray, /v2", partial(bray, export, 1), v2(name, rows)),
        Server("bray, /step, 2 workers", partial(bray, export, 2), step),
        *(
            Server(module, partial(peer, module, export, rows), requests[module])
            for module in peers
        ),
    ]


def await_answer(
    process: subprocess.Popen[str], port: int, request: bytes, every_s: float = 0.1
) -> None:
    """Wait until the request is answered with 200."""
    head, _, body = request.partition(b"\r\n\r\n")
    path = head.split()[1].decode()
    headers = dict(re.findall(r"(?m)^([\w-]+): (.*?)\r?$", head.decode()))
    deadline = time.monotonic() + _START_S
    while True:
        if process.poll() is not None:
            raise OSError(f"it ended with code {process.returncode}")
        try:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
            with urllib.request.urlopen(asked, timeout=5):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"no answer within {_START_S:g} s: {error}") from None
        time.sleep(every_s)


def measure(server: Server, program: Path, folder: Path, seconds: float) -> dict:
    """Start a server, load it, end it. Raises OSError: it does not start or stand the load."""
    port = free_port()
    file = folder / "request"
    file.write_bytes(server.request)
    variables = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
    with started(server.command(port), **variables) as process:
        await_answer(process, port, server.request)
        time.sleep(_SETTLE_S)
        who = Contender(server.name, "whole", port)
        load(program, who, f"@{file}", min(1.0, seconds), CONNECTIONS)
        return load(program, who, f"@{file}", seconds, CONNECTIONS)


def benchmark(options: Namespace, report: Report) -> None:
    """Print the tables."""
    alone = len(socket.if_nameindex()) == 1
    peers = [module for module in options.peers if module != "ray_serve" or alone]
    if peers != options.peers:
        print("\nray_serve: not run: its daemons would listen on all interfaces")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = compiled_load(folder)
        for name in NETWORKS if options.only is None else (options.only,):
            export, rows = exported(name, folder)
            contenders = servers(name, export, rows, peers)
            found: dict[str, list[dict]] = {server.name: [] for server in contenders}
            for _ in range(options.rounds):
                for server in contenders:
                    try:
                        figures = measure(server, program, folder, options.seconds)
                        found[server.name].append(figures)
                    except OSError as error:
                        print(f"{server.name}: not run: {error}", flush=True)
            show(name, found, report)


def show(name: str, found: dict[str, list[dict]], report: Report) -> None:
    """Print one network's tables, beside `bray serve` with one process."""
    stood = {who: figures for who, figures in found.items() if len(figures) == len(found[FIRST])}
    for key, unit in (("per_s", "requests/s"), ("p99_us", "us at the 99th percentile")):
        samples = {who: [one[key] for one in figures] for who, figures in stood.items()}
        report.table(f"{name} over HTTP", samples, unit=unit, base=FIRST)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=NETWORKS, help="one of the networks"),
        argument("--peers", nargs="*", choices=PACKAGES, default=list(PACKAGES)),
        rounds=3,
        seconds=3.0,
    )
