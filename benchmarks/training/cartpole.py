"""Wall time to a mean return of 475 on CartPole-v1, beside Stable-Baselines3's PPO.

    uv run python -m benchmarks.training.cartpole                  # bray, five seeds
    python -m benchmarks.training.cartpole --peer sb3       # beside SB3, in its own environment
    uv run python -m benchmarks.training.cartpole --runtime ray

Both stop by one rule: the greedy policy's mean return over 100 episodes is at least 475, tested
whenever the mean of the last 100 training episodes is at least 400. Wall time is the whole
command, from process start to exit, so bray's includes the export and SB3's does not have one.
Runs alternate (bray, peer, bray, peer, …), so that a noisy machine treats both alike. One JSON
line a run, then the medians and the ratio.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from benchmarks.harness import PEERS, Report, argument, main

PEER_PACKAGES = ("stable-baselines3==2.9.2", "gymnasium", "torch", "numpy")


def bray(seed: int, runtime: str) -> dict[str, float | str]:
    """Train once with bray in a fresh trial and return its figures."""
    with tempfile.TemporaryDirectory() as project:
        command = [sys.executable, "-m", "bray_core.cli", "train", "cartpole"]
        command += ["--project", project, "--seed", str(seed), "--runtime", runtime]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall_s = time.perf_counter() - started
        result = json.loads((Path(project) / "cartpole" / "result.json").read_text())
    del result["episode_returns"]
    return {"name": f"bray ({runtime})", "seed": seed, "wall_s": wall_s, **result}


def sb3(seed: int) -> dict[str, float | str]:
    """Train once with Stable-Baselines3 and return its figures."""
    script = [str(PEERS / "sb3_cartpole.py"), "--seed", str(seed)]
    command = ["uv", "run", "--no-project", "--python", sys.executable]
    command += [part for package in PEER_PACKAGES for part in ("--with", package)]
    started = time.perf_counter()
    done = subprocess.run([*command, *script], check=True, capture_output=True, text=True)
    wall_s = time.perf_counter() - started
    return {"name": "sb3", "seed": seed, "wall_s": wall_s, **json.loads(done.stdout)}


def benchmark(options: Namespace, report: Report) -> None:
    """Run, print one JSON line a run, then the medians and ratios."""
    if options.peer:  # not counted: builds the peer's environment
        subprocess.run(
            ["uv", "run", "--no-project", "--python", sys.executable]
            + [part for package in PEER_PACKAGES for part in ("--with", package)]
            + ["python", "-c", "import stable_baselines3"],
            check=True,
        )
    runs: dict[str, list[dict[str, float | str]]] = {}
    for seed in range(1, options.seeds + 1):
        for run in [lambda s: bray(s, options.runtime)] + ([sb3] if options.peer else []):
            figures = run(seed)
            print(json.dumps(figures), flush=True)
            runs.setdefault(str(figures["name"]), []).append(figures)
    medians = {}
    for name, figures_of in runs.items():
        median = {
            key: statistics.median(float(f[key]) for f in figures_of)
            for key in ("wall_s", "seconds", "frames", "frames_per_s", "evaluation_return")
        }
        medians[name] = median
        print(f"{name:14} median: " + "  ".join(f"{k} {v:,.1f}" for k, v in median.items()))
    names = list(medians)
    if len(names) == 2:
        ours, peer = (medians[name] for name in names)
        print(
            f"{names[1]} / {names[0]}: wall {peer['wall_s'] / ours['wall_s']:.2f}×, "
            f"frames to the goal {peer['frames'] / ours['frames']:.2f}×; "
            f"{names[0]} / {names[1]}: frames/s {ours['frames_per_s'] / peer['frames_per_s']:.2f}×"
        )


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--seeds", type=int, default=5),
        argument("--runtime", choices=("local", "ray"), default="local"),
        argument("--peer", choices=("sb3",)),
    )
