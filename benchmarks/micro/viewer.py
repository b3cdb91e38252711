"""How quick the viewer is on a large project: seconds and bytes of each question, cold and again.

python -m benchmarks.micro.viewer                  # 100 trials of 5,000 lines, 10,000 episodes
uv run python -m benchmarks.micro.viewer --trials 20
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from benchmarks.harness import Report, argument, main

from bray.viewer.server import Viewer
from bray_actor import Actor, Recorder
from bray_core import codec

METRICS = [f"trainer/metric_{n}" for n in range(20)]


def write_trials(project: Path, number: int, lines: int) -> None:
    """Write one long file of metrics, the same for each trial."""
    first = project / "source.jsonl"
    noise = np.random.default_rng(0).normal(size=(lines, len(METRICS)))
    with first.open("w") as file:
        for row in range(lines):
            values = dict(zip(METRICS, (noise[row] + math.log1p(row)).tolist(), strict=True))
            axes = {"frames": 512 * row, "steps": 8 * row, "policy_version": row, "seconds": row}
            file.write(json.dumps({**axes, "wall_time_s": 1.8e9 + row, "values": values}) + "\n")
    for trial in range(number):
        launch = project / f"trial-{trial:03d}" / "launches" / "20260101-000000"
        launch.mkdir(parents=True)
        os.link(first, launch / "metrics.jsonl")


class Silent(Actor):
    """Answers nothing."""

    def __init__(self, session: str) -> None: ...

    async def tick(self, body: bytes) -> bytes:
        """Answer a tick."""
        return codec.encode({"action": np.int64(0)})


def write_episodes(trial: Path, number: int, ticks: int) -> None:
    """Record one episode of 84×84 frames and link it under many names."""
    recorder = Recorder(trial / "episodes", every=1)

    async def play() -> None:
        actor = recorder.record(Silent)("session")
        pixels = np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)
        for tick in range(ticks):
            observation = np.roll(pixels, tick, 0)
            await actor.tick(codec.encode({"observation": observation, "reward": 1.0}))
        await actor.end(codec.encode({}))

    asyncio.run(play())
    recorder.close()
    (made,) = (trial / "episodes").iterdir()
    for n in range(number - 1):
        os.link(made, made.with_name(f"20250101T000000-1-{n:06d}.episode"))


def read_plainly(log: Path, times: int) -> int:
    """Read a file of metrics as `json` does; return the bytes read."""
    for _ in range(times):
        for line in log.read_text().splitlines():
            json.loads(line)
    return times * log.stat().st_size


def timed(ask: Callable[[], int]) -> tuple[float, int]:
    """Return seconds and bytes."""
    started = time.perf_counter()
    size = ask()
    return time.perf_counter() - started, size


def benchmark(options: Namespace, report: Report) -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        write_trials(project, options.trials, options.lines)
        write_episodes(project / "trial-000", options.episodes, options.ticks)
        viewer = Viewer(project)
        measure(viewer, options.trials, options.episodes)
        log = project / "trial-000" / "launches" / "20260101-000000" / "metrics.jsonl"
        plain, size = timed(lambda: read_plainly(log, 5))
        print(
            f"{'beside it, json.loads of the lines of five trials':44} {plain * 1e3:.0f}ms {size:,}"
        )
        viewer.close()


def measure(viewer: Viewer, num_trials: int, num_episodes: int) -> None:
    """Ask each question twice."""

    def get(path: str) -> int:
        request = urllib.request.Request(viewer.address + path, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request) as response:
            return len(response.read())

    every = [("trial", f"trial-{n:03d}") for n in range(num_trials)]
    episodes = "/api/trials/trial-000/episodes"
    with urllib.request.urlopen(f"{viewer.address}{episodes}?number=1") as response:
        newest = json.load(response)["episodes"][0]["name"]
    curve = f"/api/curves?metric={METRICS[0]}&points=600&smoothing=0.6&"
    questions = {
        "the table of trials": "/api/trials",
        "curves of five trials": curve + urlencode(every[:5]),
        "curves of all trials": curve + urlencode(every),
        "the loop": "/api/trials/trial-000/loop",
        "a page of episodes": f"{episodes}?start={num_episodes // 2}",
        "an episode": f"{episodes}/{newest}",
        "a step": f"{episodes}/{newest}/steps/7",
        "its picture": f"{episodes}/{newest}/steps/7/picture",
        "a WebP of the episode": f"{episodes}/{newest}/video",
    }
    print(f"{'':24} {'first':>9} {'again':>9} {'bytes':>10}")
    for words, path in questions.items():
        first, _ = timed(lambda path=path: get(path))
        again, size = timed(lambda path=path: get(path))
        print(f"{words:24} {first * 1e3:7.0f}ms {again * 1e3:7.0f}ms {size:10,}")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--trials", type=int, default=100),
        argument("--lines", type=int, default=5000),
        argument("--episodes", type=int, default=10_000),
        argument("--ticks", type=int, default=500),
    )
