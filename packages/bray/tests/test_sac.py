"""The SAC recipe: its losses against float64, and a short run of the whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms import sac
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


def trainer(**settings: Any) -> sac.SACTrainer:
    parts = sac.SAC.of("Pendulum-v1", hidden=(16,), **settings).parts
    made = sac.SACTrainer(SPACES, parts, 0, Nowhere(), Replay())  # type: ignore[arg-type]
    for parameter in made.target.parameters():  # so that it differs from the critics
        parameter.data.add_(0.05)
    return made


class Nowhere:
    """A model that is never published to."""

    version = 0

    def publish(self, weights: Any) -> int:
        raise AssertionError


def batch(n: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "observation": torch.randn(n, 3, generator=generator),
        "next_observation": torch.randn(n, 3, generator=generator),
        "action": 4 * torch.rand(n, 1, generator=generator) - 2,
        "reward": torch.randn(n, generator=generator),
        "discount": torch.tensor([0.99, 0.0, 0.99, 0.99, 0.0]),
    }


def layers(network: Any, x: torch.Tensor) -> Any:
    """Return what the layers make of vectors, in float64: the network itself reads float32."""
    for layer in network:
        x = layer(x)
    return x


def test_the_losses_are_those_of_the_paper() -> None:
    made, rows = trainer(alpha=0.3, target_entropy=-2.5), batch()
    torch.manual_seed(5)
    losses, terms = made.loss(rows, 0)
    torch.manual_seed(5)  # the same noise again: at the next observations, then at the first
    noise = [torch.randn(5, 1).double() for _ in range(2)]
    policy, critics = (made.module[name].double() for name in ("policy", "critics"))
    target = made.target.double()
    rows = {name: leaf.double() for name, leaf in rows.items()}

    def drawn(observation: torch.Tensor, noise: torch.Tensor) -> tuple[Any, Any]:
        mean, log_std = layers(policy.body, observation).chunk(2, -1)
        before = mean + log_std.exp() * noise
        action = before.tanh()
        normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return action, (normal - torch.log(1 - action**2)).squeeze(-1)

    def each(networks: Any, observation: torch.Tensor, action: torch.Tensor) -> Any:
        pair = torch.cat([observation, action], 1)
        return [layers(member, pair).squeeze(-1) for member in networks.members]

    following, log_prob = drawn(rows["next_observation"], noise[0])
    low = torch.minimum(*each(target, rows["next_observation"], following))
    aim = (rows["reward"] + rows["discount"] * (low - 0.3 * log_prob)).detach()
    judged = each(critics, rows["observation"], rows["action"] / 2)
    assert float(losses["critics"].detach()) == pytest.approx(
        sum(float((0.5 * (q - aim) ** 2).mean().detach()) for q in judged), abs=1e-4
    )
    action, log_prob = drawn(rows["observation"], noise[1])
    low = torch.minimum(*each(critics, rows["observation"], action))
    assert float(losses["policy"].detach()) == pytest.approx(
        float((0.3 * log_prob - low).mean().detach()), abs=1e-5
    )
    assert float(losses["temperature"].detach()) == pytest.approx(
        -0.3 * float((log_prob - 2.5).mean().detach()), abs=1e-5
    )
    assert float(terms["alpha"]) == pytest.approx(0.3)


def test_the_usual_target_entropy_and_the_pace_of_the_targets() -> None:
    made = trainer(tau=0.25)
    assert made.target_entropy == -1.0
    layout = Layout({"x": ArraySpec(np.dtype(np.float32), ())})
    slow, fast = next(made.target.parameters()), next(made.module["critics"].parameters())
    wanted = slow.detach() + 0.25 * (fast.detach() - slow.detach())
    batches = made.handle(Packed(layout, layout.empty(1)))
    before = slow.detach().clone()
    next(iter(batches))
    assert torch.equal(slow, before), "they follow after the step"
    assert list(batches) == []
    torch.testing.assert_close(slow, wanted)


def test_the_policy_says_how_it_is_squashed() -> None:
    outputs = trainer().module["policy"](torch.randn(4, 3))
    assert {name: leaf.shape[0] for name, leaf in outputs.items()} == dict.fromkeys(outputs, 4)
    assert outputs["low"].tolist() == [[-2.0]] * 4
    assert outputs["high"].tolist() == [[2.0]] * 4


@pytest.mark.slow
def test_the_pendulum_is_swung_up(tmp_path: Path) -> None:
    goal = Goal(episode_return=-200.0, evaluate_at=-600.0, max_frames=30_000)
    config: dict[str, Any] = {"hidden": (128, 128), "batch_size": 128}
    with bray.init(tmp_path, "trial") as run:
        assert sac.SAC.of("Pendulum-v1", **config).train(run, goal=goal, seed=1).reached
