"""How long `bray trials` takes on a project of many trials, one of them with many episodes.

    python -m benchmarks.micro.trials

Each figure is taken in this process; starting Python and importing come on top. The
peer is what any such command does at least: reading one small file of each trial, or the names in
the folder of episodes.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from pathlib import Path

from benchmarks.harness import Report, argument, in_turns, main, timed_s

from bray.cli.trial_tables import compared, contents, listed
from bray.retention import RetentionPolicy, prune, surplus
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


def benchmark(options: Namespace, report: Report) -> None:
    """Measure and print a table of each question beside what any such command reads at least."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        make(project, options.trials, options.episodes)
        first = Trial(project / "trial-000")
        keep = RetentionPolicy(episodes=max(1, options.episodes // 2))
        some = trials(project)[:10]
        files = {"reading files alone": lambda: [p.read_bytes() for p in project.glob("*/*.json")]}
        names = {"reading names alone": lambda: sorted((first.path / "episodes").iterdir())}
        files["list all"] = lambda: listed(trials(project))
        files["compare 10 of them"] = lambda: compared(some)
        names["show one"] = lambda: contents(first)
        names["what to prune of it"] = lambda: surplus(first.path, keep)
        for title, ways in (
            (f"a project of {options.trials} trials", files),
            (f"a trial of {options.episodes} episodes", names),
        ):
            timed = {name: lambda do=do: 1e3 * timed_s(do) for name, do in ways.items()}
            report.table(
                title, in_turns(timed, options.rounds, warm_up=1), unit="ms", base=next(iter(ways))
            )
        print(f"prune half of them: {1e3 * timed_s(lambda: prune(first.path, keep)):,.1f} ms")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--trials", type=int, default=100),
        argument("--episodes", type=int, default=10_000),
        rounds=3,
    )
