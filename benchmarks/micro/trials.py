"""How long `bray trials` takes on a project of many trials, one of them with many episodes.

    python benchmarks/trials.py

Each figure is the best of three, in this process; starting Python and importing come on top. The
peer is what any such command does at least: reading one small file of each trial, or the names in
the folder of episodes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bray.cli.trial_tables import compared, contents, listed
from bray.retention import Keep, prune, surplus
from bray_core.trials.experiment import Experiment
from bray_core.trials.trial import Trial, trials

_LINES = 2_000
"""Of metrics of each trial."""


def make(project: Path, number: int, episodes: int) -> None:
    """Write trials as runs leave them, and episodes into the first."""
    line = json.dumps({"frames": 512, "values": {f"metric/{i}": i / 7 for i in range(50)}}) + "\n"
    for index in range(number):
        opened = Experiment.open(project, f"trial-{index:03d}", {"seed": index, "rate": index / 3})
        (opened.launch / "metrics.jsonl").write_text(line * _LINES)
        (opened.path / "result.json").write_text('{"reached": true, "frames": 4096}')
        opened.close()
    folder = project / "trial-000" / "episodes"
    for index in range(episodes):
        (folder / f"20260101T000000-1-{index:06d}.episode").write_bytes(bytes(1000))


def best_ms(do: Callable[[], Any]) -> float:
    """Return the shortest of three calls, in ms."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        do()
        took.append(time.perf_counter() - began)
    return 1000 * min(took)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        make(project, options.trials, options.episodes)
        first = Trial(project / "trial-000")
        keep = Keep(episodes=max(1, options.episodes // 2))
        peer = best_ms(lambda: [p.read_bytes() for p in project.glob("*/result.json")])
        names = best_ms(lambda: sorted((first.path / "episodes").iterdir()))
        some = trials(project)[:10]
        rows = [
            (f"list {options.trials} trials", best_ms(lambda: listed(trials(project))), peer),
            ("compare 10 of them", best_ms(lambda: compared(some)), peer),
            (f"show one of {options.episodes} episodes", best_ms(lambda: contents(first)), names),
            ("what to prune of it", best_ms(lambda: surplus(first.path, keep)), names),
        ]
        began = time.perf_counter()
        prune(first.path, keep)
        rows.append(("prune half of them", 1000 * (time.perf_counter() - began), names))
    for what, ms, peer in rows:
        print(f"{what:32} {ms:8.1f} ms   {ms / peer:6.1f}× reading files or names alone")


if __name__ == "__main__":
    main()
