"""1,000 publishes under full load: failed forwards, and answers of mixed weights.

    uv run python -m benchmarks.micro.model_load [--publishes N]

All 1.7 M weights are equal to the version's number, and the network answers with the smallest and
the largest of them: an answer whose two numbers are not those of its version is a mixture.
In one process 64 callers ask while a thread publishes. Over HTTP `bray serve` is asked on 64
connections while its admin port is given new weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import aiohttp
import numpy as np
import safetensors.numpy
import torch
import uvloop
from benchmarks.harness import Report, argument, main
from benchmarks.micro.server import started

from bray_core.codec import decode, encode
from bray_model import Model

CALLERS = 64
SIZE = 1300
ROW = np.zeros(1, np.float32)


class Extremes(torch.nn.Module):
    """Answers with the smallest and the largest of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(SIZE, SIZE))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        """`[B, 1]` → `[B, 2]`."""
        return torch.stack([self.weight.min(), self.weight.max()]) + 0 * row


def weights(version: int) -> dict[str, np.ndarray]:
    """Return those of a version."""
    return {"weight": np.full((SIZE, SIZE), version, np.float32)}


class Tally:
    """Counts answers."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.versions: set[int] = set()

    def note(self, outputs: np.ndarray, version: int) -> None:
        """Count an answer."""
        self.kinds["whole" if (outputs == version).all() else "mixed"] += 1
        self.versions.add(version)


def publish_all(publish: Callable[[int], None], count: int, seconds: list[float]) -> None:
    """Publish so many versions as fast as it goes."""
    for version in range(1, count + 1):
        began = time.perf_counter()
        publish(version)
        seconds.append(time.perf_counter() - began)


async def ask_all(ask: Callable[[], object], publishing: threading.Thread, tally: Tally) -> None:
    """Ask from all callers until everything is published."""

    async def caller() -> None:
        while publishing.is_alive():
            try:
                tally.note(*await ask())
            except Exception as error:  # noqa: BLE001  counted by its name
                tally.kinds[f"failed: {type(error).__name__}"] += 1

    publishing.start()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    publishing.join()


def show(where: str, tally: Tally, count: int, seconds: list[float]) -> None:
    """Print a line."""
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(tally.kinds.items()))
    print(
        f"{where}: {count} publishes of {weights(0)['weight'].nbytes / 1e6:.1f} MB, "
        f"{statistics.median(seconds) * 1e3:.1f} ms each; answers: {kinds}; "
        f"{len(tally.versions)} versions seen",
        flush=True,
    )


def here(export: Path, count: int) -> None:
    """Measure in one process."""
    tally, seconds = Tally(), list[float]()
    with Model(export) as model:

        async def ask() -> tuple[np.ndarray, int]:
            answer = await model.infer(ROW)
            return answer.outputs, answer.version

        def publish(version: int) -> None:
            model.publish(weights(version))

        thread = threading.Thread(target=publish_all, args=(publish, count, seconds))
        uvloop.run(ask_all(ask, thread, tally))
    show("in one process", tally, count, seconds)


def served(export: Path, count: int, workers: int) -> None:
    """Measure over HTTP."""
    import urllib.request

    main = "import sys; from bray_core.cli import main; sys.exit(main())"
    ports = ["--tcp-port=0", "--http-port=0", "--admin-port=0", f"--workers={workers}"]
    tally, seconds = Tally(), list[float]()
    with started([sys.executable, "-c", main, "serve", str(export), *ports]) as process:
        assert process.stdout is not None
        text = process.stdout.readline() + process.stdout.readline()
        *_, step, admin = re.findall(r"http://[\d.:]+", text)

        def publish(version: int) -> None:
            body = safetensors.numpy.save(weights(version))
            address = f"{admin}/models/model/weights"
            kind = {"Content-Type": "application/octet-stream"}  # urllib's own is a form's: refused
            request = urllib.request.Request(address, body, kind, method="PUT")
            with urllib.request.urlopen(request, timeout=60) as reply:
                assert f'"version":{version}' in reply.read().decode()

        async def run() -> None:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:

                async def ask() -> tuple[np.ndarray, int]:
                    async with session.post(f"{step}/step", data=encode([ROW])) as reply:
                        reply.raise_for_status()
                        answer = decode(await reply.read())
                    return answer["outputs"], answer["version"]

                thread = threading.Thread(target=publish_all, args=(publish, count, seconds))
                await ask_all(ask, thread, tally)

        uvloop.run(run())
        with contextlib.suppress(OSError):
            process.terminate()
    show(f"bray serve, {workers} process(es), HTTP", tally, count, seconds)


def benchmark(options: Namespace, report: Report) -> None:
    """Print a line for each way."""
    count = options.publishes
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "model"
        with Model(Extremes(), ROW[None]) as model:
            model.export(export)
        here(export, count)
        for workers in (1, 2):
            served(export, count, workers)


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--publishes", type=int, default=1000))
