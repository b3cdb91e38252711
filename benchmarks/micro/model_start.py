"""Cold start of a model server to its first answer, and its memory: bray serve, mosec, LitServe.

    uv run python -m benchmarks.micro.model_start [--rounds N]

The Atari network, one process that computes. Memory is that of the server and all processes below
it (PSS: shared pages count once) after 200 answers. Medians of the rounds; the frameworks start in
environments that are made before (`uv run --with`).
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

from benchmarks.harness import Report, main
from benchmarks.micro.model_http import await_answer, servers
from benchmarks.micro.networks import exported
from benchmarks.micro.server import free_port, started


def tree(pid: int) -> list[int]:
    """Return a process and those below it."""
    below = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(found for child in below for found in tree(child))]


def memory_mb(pid: int) -> float:
    """Return the proportional set size of a process and those below it."""
    total_kb = 0
    for process in tree(pid):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        total_kb += int(re.search(r"Pss:\s+(\d+)", rollup)[1])
    return total_kb / 1024


def benchmark(options: Namespace, report: Report) -> None:
    """Print the table."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        export, rows = exported("cnn", Path(folder))
        bray, _, _, *frameworks = servers("cnn", export, rows, ["mosec", "litserve"])
        for round_ in range(options.rounds + 1):
            for server in (bray, *frameworks):
                port = free_port()
                began = time.perf_counter()
                with started(server.command(port)) as process:
                    await_answer(process, port, server.request, every_s=0.01)
                    seconds = time.perf_counter() - began
                    ask(port, server.request, 200)
                    if round_:  # the first fills caches
                        found[server.name].append((seconds, memory_mb(process.pid)))
    print(f"{'':24}{'s to the first answer':>24}{'of bray':>9}{'MB':>8}{'of bray':>9}")
    first = None
    for name, figures in found.items():
        seconds, mb = (statistics.median(column) for column in zip(*figures, strict=True))
        first = first or (seconds, mb)
        ratios = seconds / first[0], mb / first[1]
        print(f"{name:24}{seconds:24.2f}{ratios[0]:9.2f}{mb:8.0f}{ratios[1]:9.2f}")


def ask(port: int, request: bytes, times: int) -> None:
    """Send a request so many times."""
    head, _, body = request.partition(b"\r\n\r\n")
    headers = dict(re.findall(r"(?m)^([\w-]+): (.*?)\r?$", head.decode()))
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{head.split()[1].decode()}", body, headers
    )
    for _ in range(times):
        with urllib.request.urlopen(asked, timeout=10) as reply:
            reply.read()


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=5)
