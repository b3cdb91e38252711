"""The TD3 recipe: its losses by hand, what is delayed, and a short run of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import td3
from bray.goal import Goal
from bray.sources.environments import read_spaces
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec

SPACES = read_spaces("Pendulum-v1")
SMALL = {
    "hidden": (16,),
    "num_envs": 2,
    "steps_per_collect": 8,
    "replays_per_collect": 4,
    "warmup_frames": 32,
}


class Replay:
    """A replay that is never popped."""

    def pop(self, timeout_s: float | None = None) -> Packed:
        raise AssertionError


class Nowhere:
    """A model that is never published to."""

    version = 0

    def publish(self, weights: Any) -> int:
        raise AssertionError


def trainer(**settings: Any) -> td3.TD3Trainer:
    parts = td3.TD3.of("Pendulum-v1", hidden=(16,), **settings).parts
    made = td3.TD3Trainer(SPACES, parts, 0, Nowhere(), Replay())  # type: ignore[arg-type]
    for parameter in made.target.parameters():  # so that it differs from what is trained
        parameter.data.add_(0.05)
    return made


def batch(n: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "observation": torch.randn(n, 3, generator=generator),
        "next_observation": torch.randn(n, 3, generator=generator),
        "action": torch.tensor([[-9.0], [-2.0], [0.5], [1.0], [9.0]]),  # two as drawn, not clipped
        "reward": torch.randn(n, generator=generator),
        "discount": torch.tensor([0.99, 0.0, 0.99, 0.99, 0.0]),
    }


def layers(network: Any, x: torch.Tensor) -> Any:
    """Return what the layers make of vectors, in float64: the network itself reads float32."""
    for layer in network:
        x = layer(x)
    return x


def test_the_losses_are_those_of_the_paper() -> None:
    made, rows = trainer(target_noise=0.4, noise_clip=0.3), batch()
    torch.manual_seed(5)
    losses, _ = made.loss(rows, 1)
    torch.manual_seed(5)
    noise = (0.4 * torch.randn(5, 1)).clamp(-0.3, 0.3).double()
    module, target = made.module.double(), made.target.double()
    rows = {name: leaf.double() for name, leaf in rows.items()}

    def each(networks: Any, observation: torch.Tensor, action: torch.Tensor) -> Any:
        pair = torch.cat([observation, action], 1)
        return [layers(member, pair).squeeze(-1) for member in networks.members]

    following = layers(target["policy"].body, rows["next_observation"]).tanh() + noise
    low = torch.minimum(*each(target["critics"], rows["next_observation"], following.clamp(-1, 1)))
    aim = (rows["reward"] + rows["discount"] * low).detach()
    judged = each(module["critics"], rows["observation"], (rows["action"] / 2).clamp(-1, 1))
    assert float(losses["critics"].detach()) == pytest.approx(
        sum(float(((q - aim) ** 2).mean().detach()) for q in judged), abs=1e-4
    )
    action = layers(module["policy"].body, rows["observation"]).tanh()
    first, _ = each(module["critics"], rows["observation"], action)
    assert float(losses["policy"].detach()) == pytest.approx(
        -float(first.mean().detach()), abs=1e-5
    )


def test_policy_and_targets_learn_in_each_third_step() -> None:
    made = trainer(delay=3, tau=0.25)
    layout = Layout({"x": ArraySpec(np.dtype(np.float32), ())})
    learnt, followed = [], []
    for step in range(6):
        made.steps = step
        learnt.append("policy" in made.loss(batch(), step)[0])
        before = next(made.target.parameters()).detach().clone()
        list(made.handle(Packed(layout, layout.empty(1))))
        followed.append(not torch.equal(next(made.target.parameters()), before))
    assert learnt == followed == [False, False, True] * 2


def test_exploration_noise_is_published_and_less_after_the_warm_up() -> None:
    made = trainer(warmup_noise=0.8, exploration_noise=0.1)
    observation = torch.randn(4, 3)
    outputs = made.module["policy"](observation)
    std = outputs["log_std"].exp()
    torch.testing.assert_close(std, torch.full((4, 1), 1.6))  # in half ranges of [-2, 2]
    layout = Layout({"x": ArraySpec(np.dtype(np.float32), ())})
    next(iter(made.handle(Packed(layout, layout.empty(1)))))
    std = made.module["policy"](observation)["log_std"].exp()
    torch.testing.assert_close(std, torch.full((4, 1), 0.2))
    assert "noise" in made.module["policy"].state_dict()


@pytest.mark.slow
def test_the_pendulum_is_swung_up(tmp_path: Path) -> None:
    goal = Goal(episode_return=-200.0, evaluate_at=-600.0, max_frames=30_000)
    config: dict[str, Any] = {"hidden": (128, 128), "batch_size": 128}
    with bray.init(tmp_path, "trial") as run:
        assert td3.TD3.of("Pendulum-v1", **config).train(run, goal=goal, seed=1).reached
