"""PPO on a MuJoCo task, with the network on the device: frames a second, and the return reached.

uv run python -m benchmarks.gpu.mujoco [--device cuda|cpu]
"""

from __future__ import annotations

import tempfile
from argparse import Namespace

from benchmarks.gpu.device import DEVICE
from benchmarks.harness import Report, argument, main
from benchmarks.training.atari import Enough, Watch, algorithm_of

import bray
from bray.goal import Goal


def train(task: str, device: str, seconds: float) -> dict[str, float]:
    """Train by PPO for so long; return the figures."""
    algorithm = algorithm_of("ppo", task, [f"device={device}"])
    watch = Watch(seconds, float("inf"))
    goal = Goal(episode_return=1e9, evaluate_at=1e9, max_frames=10**12)
    with tempfile.TemporaryDirectory() as trial:
        try:
            with bray.init(trial, "mujoco", runtime="local") as run:
                run.listen(watch)
                algorithm.train(run, goal=goal, seed=1)
        except Enough:
            pass
    return watch.figures


def benchmark(options: Namespace, report: Report) -> None:
    """Train on the CPU and on the device."""
    devices = dict.fromkeys(("cpu", options.device))
    found = {each: train(options.task, each, options.seconds / len(devices)) for each in devices}
    for device, figures in found.items():
        report.figure(f"{options.task}, {device}", figures)
    rates = {device: [figures["frames_per_s"]] for device, figures in found.items()}
    notes = {
        device: f"mean return {figures['mean_return']:.0f} after {figures['frames']:,.0f} frames"
        for device, figures in found.items()
    }
    report.table(f"PPO on {options.task}", rates, unit="frames/s", base="cpu", notes=notes)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--device", **DEVICE),
        argument("--task", default="HalfCheetah-v5", help="Pendulum-v1 where MuJoCo is not there"),
        seconds=30.0,
    )
