"""`bray train arithmetic` over several seeds, and supervised training alone beside it.

    uv run python -m benchmarks.text.arithmetic                 # three seeds of both
    uv run python -m benchmarks.text.arithmetic --seeds 1

Whole commands from process start to exit, one torch thread, in turns. Both begin from the same
first weights and end by the same rule: 94 % of 500 held-out sums right when answers are sampled.
The control gets right answers for as long as it likes; reinforcement learning gets them until one
likeliest answer in ten is right, and from then on only hears which of its own answers were right.
The last line says which took less CPU; the control's settings were not searched.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from benchmarks.harness import Report, argument, main
from benchmarks.training.cartpole import timed

from bray_core.metrics.json_lines import curve

CONTROL = (
    "sft",
    "bray.text.tasks.addition:Addition",
    "trainer.learning_rate=3e-3",
    "trainer.batch_size=128",
    "trainer.warmup_steps=50",
    "trainer.evaluate_every=10000",  # as the template: an evaluation costs both the same
    "goal.episode_return=0.94",
    "goal.evaluation_episodes=500",
    "goal.max_frames=600000",
)
COMMANDS = {"supervised, then GRPO": ("arithmetic",), "supervised alone": CONTROL}


def trained(seed: int, *words: str) -> dict[str, float]:
    """Train once in a fresh trial and return its figures."""
    with tempfile.TemporaryDirectory() as project:
        command = [str(Path(sys.executable).parent / "bray"), "train", *words]
        command += ["--project", project, "--trial", "one", "--seed", str(seed)]
        took, _ = timed(command, check=False)
        trial = Path(project) / "one"
        result = json.loads((trial / "result.json").read_text())
        ends = {
            name: 100 * curve(trial, f"text/evaluation_{name}")[1][-1]
            for name in ("greedy", "sampled")
        }
        _, sampled = curve(trial, "text/samples")
    samples = sampled[-1] if sampled else 0.0
    return {**took, **ends, "labels": result["frames"] - samples, "samples": samples}


def benchmark(options: Namespace, report: Report) -> None:
    """Run both in turns, print one JSON line a run, then medians and ratios."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in COMMANDS}
    for seed in range(1, options.seeds + 1):
        for name in list(COMMANDS) if seed % 2 else list(reversed(COMMANDS)):
            figures = trained(seed, *COMMANDS[name])
            found[name].append(figures)
            load = round(os.getloadavg()[0], 1)
            print(json.dumps({"name": name, "seed": seed, "load": load, **figures}), flush=True)
    for key, title, unit in (
        ("wall_s", "wall, process start to exit", "s"),
        ("cpu_s", "CPU of all processes", "s"),
        ("greedy", "held-out sums right, likeliest answers", "%"),
        ("sampled", "held-out sums right, sampled answers", "%"),
        ("labels", "right answers that were shown", "answers"),
        ("samples", "answers that were sampled and rewarded", "answers"),
    ):
        samples = {name: [one[key] for one in runs] for name, runs in found.items()}
        report.table(title, samples, unit=unit)
    ours, control = (
        sorted(one["cpu_s"] for one in runs)[len(runs) // 2] for runs in found.values()
    )
    winner = "supervised alone" if control < ours else "supervised, then GRPO"
    print(f"less CPU to the same goal: {winner} ({control:.0f} s and {ours:.0f} s)")


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--seeds", type=int, default=3))
