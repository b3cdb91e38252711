"""Every algorithm trains on a GPU, goes on there, and its trial goes on without one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from old_trials import make

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("evaluated_here")]

ROWS = {name: row for name, row in make.TRIALS.items() if row[0] != "es"}
"""Evolution strategies have no gradient: their workers' CPUs are all that computes."""
NORMALISED = "normalize_observation=true normalize_reward=true"
ROWS |= {
    "curious-ppo": ("ppo", "CartPole-v1", f"{make.PPO} curiosity=0.1"),
    "half-ppo": ("ppo", "CartPole-v1", f"{make.PPO} precision=bf16"),
    "scaled-ppo": ("ppo", "Pendulum-v1", f"{make.PPO} {NORMALISED}"),
    "scaled-sac": ("sac", "Pendulum-v1", f"{make.OFF_POLICY} {NORMALISED}"),
    "remembering-dqn": ("dqn", "CartPole-v1", f"{make.OFF_POLICY} memory_size=4"),
    "atari-appo": ("appo", "ALE/Breakout-v5", f"{make.ON_POLICY} minibatches=2"),
    "atari-dqn": ("dqn", "ALE/Breakout-v5", f"{make.OFF_POLICY} variant=rainbow num_atoms=11"),
}
LAUNCHES = ((1, "cuda"), (2, "cuda"), (3, "cpu"))
"""Launches of a trial, each for as much again as those before, and where."""


def begin(name: str) -> None:
    """Make in the working directory what a row of `ROWS` learns from."""
    algorithm, _, settings = ROWS[name]
    if "demonstrations" in settings or algorithm in ("bc", "cql", "iql", "rl_imitation"):
        make.make_demonstrations()


def train(name: str, times: int, device: str) -> None:
    """Train a row of `ROWS` for as much again, in the working directory."""
    make.train(ROWS[name], name, f"device={device}", times=times)


@pytest.mark.parametrize("name", ROWS)
def test_it_trains_there_and_goes_on_there_and_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(name)
    for times, device in LAUNCHES:
        before = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        train(name, times, device)
        used = torch.cuda.memory_stats().get("allocation.all.allocated", 0) - before
        assert used > 0 or device == "cpu", f"launch {times} used nothing of the GPU"
