"""What DQN, SAC and TD3 share: settings, pace, bounds, critics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bray.algorithms import dqn, sac, td3
from bray.policies.continuous import ActionBounds, Critics
from bray.sources.environments import Spaces
from bray.training.off_policy import OffPolicyConfig
from bray_core.errors import ConfigError


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        (dqn, {"gamma": 1.5}, "gamma: expected 0 to 1, got 1.5"),
        (dqn, {"batch_size": 0}, "batch_size: expected more than 0, got 0"),
        (dqn, {"steps_per_collect": -1}, "steps_per_collect: expected more than 0, got -1"),
        (dqn, {"warmup_frames": 9, "capacity": 8}, "warmup_frames: expected at most the capacity"),
        (dqn, {"hidden": ()}, r"hidden: expected one or more positive sizes, got \(\)"),
        (dqn, {"epsilon_end": 2.0}, "epsilon_end: expected 0 to 1, got 2"),
        (dqn, {"learning_rate": float("nan")}, "learning_rate: expected more than 0, got nan"),
        (dqn, {"target_every": 0}, "target_every: expected more than 0, got 0"),
        (sac, {"num_envs": 0}, "num_envs: expected more than 0, got 0"),
        (sac, {"tau": 1.5}, "tau: expected 0 to 1, got 1.5"),
        (sac, {"alpha": 0.0}, "alpha: expected more than 0, got 0.0"),
        (sac, {"hidden": (8, 0)}, r"hidden: expected one or more positive sizes, got \(8, 0\)"),
        (td3, {"tau": 0.0}, "tau: expected more than 0, got 0.0"),
        (td3, {"delay": 0}, "delay: expected more than 0, got 0"),
        (td3, {"exploration_noise": -0.1}, "exploration_noise: expected more than 0, got -0.1"),
    ],
)
def test_settings_out_of_range_are_named(recipe: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe.Config(**settings)


def test_only_on_ray_the_replay_keeps_the_proportion() -> None:
    config = OffPolicyConfig(
        num_envs=4, steps_per_collect=8, replays_per_collect=16, batch_size=64, n_step=2
    )
    assert config.replay(is_local=True).samples_per_insert is None
    replay = config.replay(is_local=False, prioritized=True)
    assert replay.samples_per_insert == 16 * 64 / (4 * 8)
    assert (replay.sampler, replay.n_step, replay.min_size) == ("prioritized", 2, 1_000)


def test_what_was_restored_counts_towards_the_warm_up() -> None:
    class Replay:
        def __init__(self, queued: int) -> None:
            self.queued = queued

        def stats(self) -> dict[str, float]:
            return {"queued": self.queued}

    config = OffPolicyConfig(warmup_frames=100)
    assert [config.pace(Replay(n)).warmup_frames for n in (0, 60, 5_000)] == [100, 40, 0]


def test_actions_are_scaled_both_ways() -> None:
    bounds = ActionBounds(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 0.5]))
    action = torch.tensor([[-2.0, 0.5], [1.0, 0.125], [0.0, 0.25]])
    unit = bounds.unit(action)
    assert unit.tolist() == [[-1.0, 1.0], [0.5, -0.5], [0.0, 0.0]]
    assert torch.equal(bounds.scale(unit), action)
    assert bounds.unit(torch.tensor([9.0, -9.0])).tolist() == [1.0, -1.0]


def test_actions_without_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1: expected actions that are a Box of one"):
        ActionBounds.of(Spaces.of("CartPole-v1"))
    box = np.array([np.inf], np.float32)
    spaces = Spaces.of("Pendulum-v1")
    from gymnasium.spaces import Box

    endless = Spaces("Endless", spaces.observation, spaces.action, Box(-box, box))
    with pytest.raises(ConfigError, match="Endless: expected bounded actions, got Box"):
        ActionBounds.of(endless)
    with pytest.raises(ConfigError, match="Pendulum-v1: expected Discrete actions, got Box"):
        dqn.policy(spaces, dqn.DQN.of("CartPole-v1").parts, 0)


def test_critics_are_several_functions_of_observation_and_action() -> None:
    torch.manual_seed(0)
    critics = Critics(3, 2, (8,), count=4)
    observation, action = torch.randn(5, 3), torch.randn(5, 2)
    values = critics(observation, action)
    assert values.shape == (4, 5)
    assert torch.equal(critics.first(observation, action), values[0])
    assert not torch.equal(values[0], values[1])
