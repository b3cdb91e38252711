"""SAC on a single choice: its losses against sums in numpy, its mask, and a short run."""

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
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

CARTPOLE = read_spaces("CartPole-v1")
MASKED = Spaces.parse(
    "masked",
    {
        "observation": {"observation": {"shape": [2]}, "action_mask": {"multi_binary": 3}},
        "action": {"discrete": 3},
    },
)


class _NoReplay:
    def pop(self, timeout_s: float | None = None) -> Any:
        raise AssertionError


def trainer(spaces: Spaces, **settings: Any) -> sac.SACTrainer:
    algorithm = sac.SAC.of("CartPole-v1", hidden=(8,), **settings)
    model: Any = type("NoModel", (), {"version": 0, "publish": None})()
    made = algorithm.trainer_for(spaces)(spaces, algorithm.parts, 0, model, _NoReplay())
    with torch.no_grad():
        for parameter in [*made.target.parameters(), *made.module["policy"].parameters()]:
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def masked_batch(n: int = 6) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)

    def observation() -> dict[str, torch.Tensor]:
        flags = torch.randint(0, 2, (n, 3), generator=generator, dtype=torch.int8)
        flags[:, 1] = 1
        return {
            "observation": torch.randn(n, 2, generator=generator),
            "action_mask": flags,
        }

    return {
        "observation": observation(),
        "next_observation": observation(),
        "action": torch.ones(n, dtype=torch.int64),
        "reward": torch.randn(n, generator=generator),
        "discount": torch.tensor([0.99, 0.0] * (n // 2)),
    }


def test_the_losses_are_sums_over_the_allowed_actions() -> None:
    made, rows = trainer(MASKED, alpha=0.3), masked_batch()
    losses, _ = made.loss(rows, 0)
    policy, critics = made.module["policy"], made.module["critics"]

    def read(observation: dict[str, torch.Tensor], networks: Any) -> tuple[Any, Any, Any]:
        """Return each row's values `[K, A]`, logits and allowed actions, as numpy."""
        seen = observation["observation"]
        with torch.no_grad():
            q = np.stack([member(seen).numpy() for member in networks.members], 1)
            return q, policy.body(seen).numpy(), observation["action_mask"].numpy() > 0

    def soft(q: Any, logits: Any, allowed: Any) -> tuple[float, float]:
        weights = np.exp(logits.astype(np.float64)) * allowed
        p = weights / weights.sum()
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        return float((p * q.min(0)).sum()) + 0.3 * entropy, entropy

    critic = actor = 0.0
    entropies, aims = [], []
    following = zip(*read(rows["next_observation"], made.target), strict=True)
    current = zip(*read(rows["observation"], critics), strict=True)
    for i, (after, now) in enumerate(zip(following, current, strict=True)):
        y = float(rows["reward"][i]) + float(rows["discount"][i]) * soft(*after)[0]
        critic += sum(0.5 * (q[1] - y) ** 2 for q in now[0]) / 6
        value, entropy = soft(*now)
        actor -= value / 6
        entropies.append(entropy)
        aims.append(0.5 * math.log(now[2].sum()))
    assert float(losses["critics"].detach()) == pytest.approx(critic, rel=1e-4)
    assert float(losses["policy"].detach()) == pytest.approx(actor, rel=1e-4)
    temperature = 0.3 * (np.mean(entropies) - np.mean(aims))
    assert float(losses["temperature"].detach()) == pytest.approx(temperature, abs=1e-5)


def test_an_action_that_is_not_allowed_is_never_likely() -> None:
    policy = trainer(MASKED).module["policy"]
    observation = masked_batch()["observation"]
    p = policy(observation)["logits"].softmax(-1)
    assert (p[observation["action_mask"] == 0] == 0).all()
    assert (p[observation["action_mask"] == 1] > 0).all()


def test_a_row_in_which_nothing_is_allowed_allows_all() -> None:
    policy = trainer(MASKED).module["policy"]
    ended = {"observation": torch.zeros(1, 2), "action_mask": torch.zeros(1, 3)}
    assert policy.allowed(ended).tolist() == [[True] * 3]


def test_the_entropy_to_aim_at_is_a_setting() -> None:
    assert trainer(CARTPOLE, target_entropy=0.1).aim(None) == 0.1  # type: ignore[attr-defined]
    usual = trainer(CARTPOLE).aim(None)  # type: ignore[attr-defined]
    assert usual == pytest.approx(0.5 * math.log(2))


def test_targets_follow_faster_than_those_of_reals() -> None:
    assert trainer(CARTPOLE).tau == 0.02
    assert trainer(CARTPOLE, tau=0.1).tau == 0.1
    assert trainer(read_spaces("Pendulum-v1")).tau == 0.005


def test_several_choices_are_refused() -> None:
    both = Spaces.parse(
        "two", {"observation": {"shape": [2]}, "action": {"multi_discrete": [2, 2]}}
    )
    with pytest.raises(ConfigError, match=r"two: .*DQN or SAC for a single choice"):
        sac.SAC.of("CartPole-v1").policy(both, 0)


@pytest.mark.slow
def test_the_pole_is_balanced(tmp_path: Path) -> None:
    goal = Goal(episode_return=400.0, evaluate_at=300.0, max_frames=80_000, evaluation_episodes=20)
    config: dict[str, Any] = {
        "hidden": (64, 64),
        "batch_size": 128,
        "learning_rate": 3e-4,
        "tau": 0.02,
    }
    with bray.init(tmp_path, "trial") as run:
        assert sac.SAC.of("CartPole-v1", **config).train(run, goal=goal, seed=1).reached
