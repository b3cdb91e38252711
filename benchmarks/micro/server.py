"""Ticks per second of bray's server, beside bare event loops and the frameworks.

    uv run python -m benchmarks.micro.server                          # all, about 15 minutes
    uv run python -m benchmarks.micro.server --only tcp --seconds 2
    uv run python -m benchmarks.micro.server --only http --peers aiohttp,fastapi
    unshare -n sh -c 'ip link set lo up; exec python -m benchmarks.micro.server'  # as root

One server process each; a load generator in C++ (load.cpp, needs g++) in another: 64 keep-alive
connections, one request under way on each. All echo the body. Measurements go in turns and the
medians over the rounds are printed. A framework comes in an environment of its own
(`uv run --with`); one that does not start or does not stand the load is printed as not run, with
the reason. Part `workers`: two workers behind one port beside one, on ticks that compute
for 0.2 ms, and what it adds to a tick that it is sent on to the worker that has its session.

Ray's daemons, and HAProxy's ports 8404 and 9101, listen on all interfaces, whatever host is asked
for. So they are only run where loopback is the only one: by the last command above, in a network of
its own. uv needs its packages in the cache then: set UV_OFFLINE=1, and fetch them beforehand with
`uv run --no-project --with 'ray[serve]==2.60.0' python -c ''`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import PEERS, Report, argument, compiled_load, main

SIZES = (256, 4096, 65536)
CONNECTIONS = 64
FRAMEWORKS = {
    "uvicorn ASGI": ("uvicorn", ["uvicorn", "uvloop", "httptools"]),
    "granian ASGI": ("granian", ["granian", "uvloop"]),
    "aiohttp": ("aiohttp", ["aiohttp", "uvloop"]),
    "FastAPI": ("fastapi", ["fastapi", "uvicorn", "uvloop", "httptools"]),
    "Ray Serve": ("ray_serve", ["ray[serve]==2.60.0"]),
    "Ray Serve + HAProxy": ("ray_serve", ["ray[serve]==2.60.0"]),
}


@dataclass(frozen=True)
class Contender:
    """What is measured: its name, the load's protocol and its port."""

    name: str
    protocol: str
    port: int


Found = dict[str, dict[int, list[dict]]]
"""By contender and body size: its figures, of each round."""
Absent = dict[str, str]
"""Who was not measured, and why."""


@contextlib.contextmanager
def started(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server; end it and all that it started, Ray's daemons included."""
    mark = f"BRAY_BENCHMARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=PEERS,
        env={**os.environ, **variables, name: value},
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark.encode() in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def told(process: subprocess.Popen[str]) -> list[int]:
    """Return the ports that a server printed."""
    assert process.stdout is not None
    ports = json.loads(process.stdout.readline())
    return ports if isinstance(ports, list) else [ports]


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def await_echo(process: subprocess.Popen[str], port: int, timeout_s: float) -> None:
    """Wait until a POST is answered."""
    deadline = time.monotonic() + timeout_s
    while True:
        if process.poll() is not None:
            raise OSError(f"it ended with code {process.returncode}")
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/step", b"hello")
            with urllib.request.urlopen(request, timeout=2) as reply:
                if reply.read() == b"hello":
                    return
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"no answer within {timeout_s:g} s: {error}") from None
        time.sleep(0.2)


def load(program: Path, who: Contender, size: int, seconds: float, connections: int) -> dict:
    """Run the load generator once; OSError if the server did not stand it."""
    command = [str(program), who.protocol, str(who.port), str(connections), str(size), str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{who.name}, {size} B: the load did not end") from error
    if done.returncode:
        raise OSError(f"{who.name}, {size} B: {done.stderr.strip()}")
    figures = json.loads(done.stdout)
    if figures["errors"] or not figures["requests"]:
        raise OSError(
            f"{who.name}, {size} B: {figures['errors']} errors, {figures['requests']} replies"
        )
    return figures


def measure(
    program: Path, contenders: list[Contender], options: Namespace, absent: Absent
) -> Found:
    """Measure in turns, each size after the other.

    Who does not stand the load is noted in `absent`; for the first contender it is an error.
    """
    found: Found = {}
    for _ in range(options.rounds):
        for size in SIZES:
            for who in contenders:
                if who.name in absent:
                    continue
                try:
                    mine = load(program, who, size, options.seconds, CONNECTIONS)
                except OSError as error:
                    if who is contenders[0]:
                        raise
                    absent[who.name] = str(error)
                    found.pop(who.name, None)
                    continue
                found.setdefault(who.name, {}).setdefault(size, []).append(mine)
    return found


def show(title: str, found: Found, report: Report) -> None:
    """Print a table of each size, beside the first contender."""
    for size in SIZES:
        for key, unit in (("per_s", "requests/s"), ("p99_us", "us at the 99th percentile")):
            samples = {name: [one[key] for one in sizes[size]] for name, sizes in found.items()}
            report.table(f"{title}, {size:,} B", samples, unit=unit, base=next(iter(found)))


def python(name: str, *arguments: str) -> list[str]:
    """Return the command of a server of this environment."""
    return [sys.executable, str(PEERS / f"{name}.py"), *arguments]


def tcp(program: Path, options: Namespace, report: Report) -> None:
    """Print bray's TCP beside a bare uvloop protocol."""
    with (
        started(python("echo_tcp")) as bare,
        started(python("bray_service", "Echo")) as ticks,
        started(python("bray_service", "Call")) as calls,
    ):
        contenders = [
            Contender("uvloop, bare", "raw", told(bare)[0]),
            Contender("bray, ticks of sessions", "tcp", told(ticks)[0]),
            Contender("bray, calls", "call", told(calls)[0]),
        ]
        show("TCP", measure(program, contenders, options, {}), report)


def http(program: Path, options: Namespace, report: Report) -> None:
    """Print bray's HTTP beside httptools on uvloop and the frameworks."""
    with contextlib.ExitStack() as running:
        bare = running.enter_context(started(python("echo_http")))
        ticks = running.enter_context(started(python("bray_service", "Echo")))
        calls = running.enter_context(started(python("bray_service", "Call")))
        contenders = [
            Contender("httptools + uvloop, bare", "post", told(bare)[0]),
            Contender("bray, ticks of sessions", "http", told(ticks)[1]),
            Contender("bray, calls", "post", told(calls)[1]),
        ]
        absent: Absent = {}
        for name, (module, packages) in FRAMEWORKS.items():
            if options.peers is not None and module not in options.peers:
                continue
            port = free_port()
            command = ["uv", "run", "--no-project", "--python", sys.executable]
            command += [part for package in packages for part in ("--with", package)]
            command += ["python", "frameworks.py", module, str(port)]
            variables = {
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
                "RAY_SERVE_ENABLE_HA_PROXY": str(int("HAProxy" in name)),
            }
            if module == "ray_serve" and len(socket.if_nameindex()) > 1:
                absent[name] = (
                    "its daemons would listen on all interfaces: run as the docstring says"
                )
                continue
            if module == "ray_serve":  # alone: idle, it still takes processor time
                with started(command, **variables) as process:
                    try:
                        await_echo(process, port, 180)
                    except OSError as error:
                        absent[name] = str(error)
                        continue
                    alone = [contenders[0], Contender(name, "post", port)]
                    show("HTTP, alone", measure(program, alone, options, absent), report)
                continue
            process = running.enter_context(started(command, **variables))
            try:
                await_echo(process, port, 120)
            except OSError as error:
                absent[name] = str(error)
                continue
            contenders.append(Contender(name, "post", port))
        show("HTTP", measure(program, contenders, options, absent), report)
    for name, reason in absent.items():
        print(f"{name}: not run: {reason}", flush=True)


def workers(program: Path, options: Namespace, report: Report) -> None:
    """Print two workers beside one, and the cost of sending a tick on."""
    from bray_server import Client

    rates: dict[str, list[float]] = {"one worker": [], "two workers": []}
    for _ in range(options.rounds):
        for count, name in enumerate(rates, 1):
            with tempfile.TemporaryDirectory() as group, contextlib.ExitStack() as running:
                port = free_port()
                for _ in range(count):
                    command = python("bray_service", "Busy", group, str(port))
                    told(running.enter_context(started(command)))
                who = Contender("busy", "tcp", port)
                rates[name].append(load(program, who, 256, options.seconds, 256)["per_s"])
    report.table("ticks of 0.2 ms, 256 connections", rates, unit="ticks/s", base="one worker")

    with tempfile.TemporaryDirectory() as group, contextlib.ExitStack() as running:
        port, direct = free_port(), []
        for _ in range(2):
            command = python("bray_service", "Echo", group, str(port))
            direct.append(told(running.enter_context(started(command)))[-1])
        owner, other = (
            running.enter_context(Client(f"tcp://127.0.0.1:{direct[i]}")) for i in range(2)
        )
        owner.start("s")
        spent: dict[str, list[float]] = {"the worker that has its session": [], "the other": []}
        for _ in range(5000):
            for client, times in zip((owner, other), spent.values(), strict=True):
                began = time.perf_counter()
                client.tick("s", bytes(256))
                times.append((time.perf_counter() - began) * 1e6)
    medians = {name: [statistics.median(times)] for name, times in spent.items()}
    report.table("a tick at", medians, unit="us")


PARTS = {"tcp": tcp, "http": http, "workers": workers}


def benchmark(options: Namespace, report: Report) -> None:
    """Run the parts."""
    known = sorted({module for module, _ in FRAMEWORKS.values()})
    if unknown := set(options.peers or ()) - set(known):
        raise SystemExit(f"--peers: expected some of {', '.join(known)}, got {min(unknown)!r}")
    with tempfile.TemporaryDirectory() as folder:
        program = compiled_load(Path(folder))
        for name, part in PARTS.items():
            if options.only in (None, name):
                part(program, options, report)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=PARTS),
        argument("--peers", type=lambda text: text.split(","), help="of the frameworks"),
        rounds=3,
        seconds=5.0,
    )
