"""Time from a fresh clone to a video of a trained policy, as somebody new to bray would see it.

    uv run python -m benchmarks.training.first_minute
    uv run python -m benchmarks.training.first_minute --rounds 3

Each round clones the checkout's last commit into a folder of its own, and runs what the README
says: `uv sync`, `bray train cartpole`, `bray watch trials/cartpole --save play.gif`. uv's cache is
that of this user: a first round that is not counted fills it. What is printed are wall seconds of
each command, and CPU seconds of all of them beside: on a busy machine these say more.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from benchmarks.harness import ROOT, Report, argument, main

BOUND_S = 90.0
"""Wall seconds of all commands together that a newcomer is promised."""
COMMANDS = {
    "clone": "git clone --quiet {root} bray",
    "uv sync": "uv sync --quiet",
    "train": "uv run bray train cartpole --json",
    "watch": "uv run bray watch trials/cartpole --save play.gif",
}
_OF_THIS_ENVIRONMENT = ("VIRTUAL_ENV", "UV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


def first_minute() -> dict[str, float]:
    """Run the commands in a fresh clone; return the wall seconds of each, and of all the CPU's."""
    env = {name: one for name, one in os.environ.items() if name not in _OF_THIS_ENVIRONMENT}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="first-minute-") as folder:
        clone = Path(folder) / "bray"
        for name, command in COMMANDS.items():
            began = time.perf_counter()
            words = command.format(root=ROOT).split()
            where = clone if clone.exists() else folder
            done = subprocess.run(
                words, cwd=where, env=env, capture_output=True, text=True, check=False
            )
            found[name] = time.perf_counter() - began
            if done.returncode:
                raise SystemExit(f"{command}: {done.stderr[-2000:] or done.stdout[-2000:]}")
        result = json.loads((clone / "trials" / "cartpole" / "result.json").read_text())
        assert result["reached"], result
        assert (clone / "play.gif").stat().st_size > 10_000
        assert len(list((clone / "trials" / "cartpole" / "episodes").iterdir())) >= 2
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, "all": sum(found.values()), "CPU of all": cpu_s}


def benchmark(options: Namespace, report: Report) -> None:
    """Run the rounds, print a table, and say whether the promise holds."""
    if not options.cold:
        first_minute()
    rounds = [first_minute() for _ in range(options.rounds)]
    samples = {name: [one[name] for one in rounds] for name in rounds[0]}
    report.table("from a fresh clone to a policy that plays", samples, unit="s")
    worst = max(samples["all"])
    report.figure("is_promise_kept", worst < BOUND_S)
    verdict = "yes" if worst < BOUND_S else "no"
    print(f"under {BOUND_S:.0f} s: {verdict}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--cold", action="store_true", help="count the first round, too"),
        rounds=1,
    )
