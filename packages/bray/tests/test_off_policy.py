"""What DQN, SAC and TD3 share: settings, pace, bounds, critics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bray.algorithms.dqn import DQN
from bray.algorithms.sac import SAC
from bray.algorithms.td3 import TD3
from bray.policies.config import TrunkConfig
from bray.policies.continuous import ActionBounds, Critics
from bray.sources.environments import read_spaces
from bray.training.combination import refusal
from bray_core.errors import ConfigError
from bray_core.spaces import LeafSpace, Spaces


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (DQN, {"gamma": 1.5}, "gamma: expected 0 to 1, got 1.5"),
        (DQN, {"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        (DQN, {"steps_per_collect": -1}, "steps_per_collect: expected 1 or more, got -1"),
        (DQN, {"warmup_frames": 9, "capacity": 8}, "warmup_frames: expected at most the capacity"),
        (DQN, {"hidden": ()}, r"hidden: expected one or more numbers, got \(\)"),
        (DQN, {"epsilon_end": 2.0}, "epsilon_end: expected 0 to 1, got 2"),
        (DQN, {"learning_rate": float("nan")}, "learning_rate: expected more than 0, got nan"),
        (DQN, {"target_every": 0}, "target_every: expected 1 or more, got 0"),
        (SAC, {"num_envs": 0}, "num_envs: expected 1 or more, got 0"),
        (SAC, {"tau": 1.5}, "tau: expected more than 0 and at most 1, got 1.5"),
        (SAC, {"alpha": 0.0}, "alpha: expected more than 0, got 0.0"),
        (SAC, {"hidden": (8, 0)}, r"hidden: expected numbers of 1 or more, got \(8, 0\)"),
        (TD3, {"tau": 0.0}, "tau: expected more than 0 and at most 1, got 0.0"),
        (TD3, {"delay": 0}, "delay: expected 1 or more, got 0"),
        (TD3, {"exploration_noise": -0.1}, "exploration_noise: expected more than 0, got -0.1"),
    ],
)
def test_settings_out_of_range_are_named(algorithm: Any, settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm.of(algorithm.example, **settings)


def test_only_on_ray_the_replay_keeps_the_proportion() -> None:
    settings = {"steps_per_collect": 8, "replays_per_collect": 16, "batch_size": 64, "n_step": 2}
    algorithm = DQN.of("CartPole-v1", num_envs=4, prioritized=True, **settings)
    assert algorithm.buffer(is_local=True).samples_per_insert is None
    replay = algorithm.buffer(is_local=False)
    assert replay.samples_per_insert == 16 * 64 / (4 * 8)
    assert (replay.sampler, replay.n_step, replay.min_size) == ("prioritized", 2, 1_000)


def test_what_was_restored_counts_towards_the_warm_up() -> None:
    class Replay:
        def __init__(self, queued: int) -> None:
            self.queued = queued

        def stats(self) -> dict[str, float]:
            return {"queued": self.queued}

    algorithm = DQN.of("CartPole-v1", warmup_frames=100)
    assert [algorithm.turn(Replay(n)).warmup_frames for n in (0, 60, 5_000)] == [100, 40, 0]


def test_actions_are_scaled_both_ways() -> None:
    bounds = ActionBounds(torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 0.5]))
    action = torch.tensor([[-2.0, 0.5], [1.0, 0.125], [0.0, 0.25]])
    unit = bounds.unit(action)
    assert unit.tolist() == [[-1.0, 1.0], [0.5, -0.5], [0.0, 0.0]]
    assert torch.equal(bounds.scale(unit), action)
    assert bounds.unit(torch.tensor([9.0, -9.0])).tolist() == [1.0, -1.0]


def test_a_number_that_cannot_vary_has_a_range_too() -> None:
    numbers = {"shape": [3], "low": [0.0, -1.0, -5e3], "high": [0.0, 1.0, -5e3]}
    spaces = Spaces.parse("fixed", {"observation": {"shape": [2]}, "action": numbers})
    bounds = ActionBounds.of(spaces)
    assert (bounds.low.tolist(), bounds.high.tolist()) == ([0, -1, -5e3], [1, 1, 0])
    assert bounds.unit(torch.tensor([0.5, 0.5, -2.5e3])).tolist() == [0.0, 0.5, 0.0]
    assert bounds.scale(torch.zeros(3)).tolist() == [0.5, 0.0, -2.5e3]


def test_a_range_wider_than_float32_is_none() -> None:
    wide = {"shape": [1], "low": -3e38, "high": 3e38}
    spaces = Spaces.parse("wide", {"observation": {"shape": [2]}, "action": wide})
    with pytest.raises(ConfigError, match="wide: expected bounded actions"):
        ActionBounds.of(spaces)
    assert "wide: expected bounded actions for SAC" in (refusal(SAC, spaces) or "")


def test_actions_that_an_algorithm_cannot_take_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"CartPole-v1: expected actions that are reals alone"):
        ActionBounds.of(read_spaces("CartPole-v1"))
    spaces = read_spaces("Pendulum-v1")
    endless = Spaces("Endless", spaces.observation, replace(spaces.action, low=None, high=None))
    with pytest.raises(ConfigError, match="Endless: expected bounded actions, got some without"):
        ActionBounds.of(endless)
    one = r"Pendulum-v1: expected actions that are one choice .*, got 0 choices and 1 reals"
    with pytest.raises(ConfigError, match=one):
        DQN.of("CartPole-v1").policy(spaces, 0)


def test_critics_are_several_functions_of_observation_and_action() -> None:
    torch.manual_seed(0)
    seen = LeafSpace("real", "float32", (3,))
    spaces = Spaces("none", seen, LeafSpace("real", "float32", (2,), low=-1.0, high=1.0))
    critics = Critics(spaces, 2, TrunkConfig(hidden=(8,)), count=4)
    observation, action = torch.randn(5, 3), torch.randn(5, 2)
    values = critics(observation, action)
    assert values.shape == (4, 5)
    assert torch.equal(critics.first(observation, action), values[0])
    assert not torch.equal(values[0], values[1])
