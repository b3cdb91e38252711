"""The recipe of evolution strategies: it learns in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import bray
from bray.algorithms import es
from bray.goal import Goal
from bray.policies.config import TrunkConfig
from bray.sources.environments import read_spaces
from bray.training import evaluation
from bray_actor.environments import spec
from bray_algo.evolution import candidate
from bray_core.errors import ConfigError

SPACES = read_spaces("CartPole-v1")
SMALL: dict[str, Any] = {"population": 16, "hidden": (4,)}


def alone(theta: torch.Tensor, key: tuple[int, int], number: int) -> tuple[float, int]:
    """One candidate in an environment of its own, without batches."""
    module = es.policy(SPACES, TrunkConfig(hidden=SMALL["hidden"]), 0)
    parameters = candidate(theta, key, number, sigma=0.1)
    torch.nn.utils.vector_to_parameters(parameters, module.parameters())
    env = gymnasium.make("CartPole-v1")
    seed = int(np.random.SeedSequence([*key, number // 2]).generate_state(1)[0])
    observation, _ = env.reset(seed=seed)
    total, steps, ended = 0.0, 0, False
    while not ended:
        with torch.no_grad():
            action = int(module(torch.from_numpy(observation)[None])["logits"].argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        total, steps, ended = total + float(reward), steps + 1, terminated or truncated
    env.close()
    return total, steps


def test_a_batch_of_candidates_plays_as_each_alone() -> None:
    module = es.policy(SPACES, TrunkConfig(hidden=SMALL["hidden"]), 7)
    theta = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    wanted = [alone(theta, (7, 3), number) for number in range(4, 10)]
    player = es.CandidatePlayer("CartPole-v1", module, 6, 0.1)
    returns, frames, _ = player.play(theta.numpy(), (7, 3), 4)
    assert returns == [total for total, _ in wanted]
    assert frames == sum(steps for _, steps in wanted)
    assert player.play(theta.numpy(), (7, 3), 4)[:2] == (returns, frames)
    player.close()


class Endless(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_an_episode_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "MOST_STEPS", 50)
    module = es.policy(read_spaces(f"{__name__}:Endless"), TrunkConfig(hidden=(4,)), 7)
    theta = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    player = es.CandidatePlayer(f"{__name__}:Endless", module, 2, 0.1)
    assert player.play(theta.numpy(), (7, 3), 0)[:2] == ([50.0, 50.0], 100)
    player.close()


def test_candidates_play_under_a_mask_of_their_actions() -> None:
    task = "bray.sources.tasks:TwoHeads-v0"
    spaces = read_spaces(task)
    assert "action_mask" in spaces.observation
    module = es.policy(spaces, TrunkConfig(hidden=(4,)), 7)
    theta = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    player = es.CandidatePlayer(task, module, 4, 0.1)
    returns, frames, _ = player.play(theta.numpy(), (7, 3), 4)
    assert len(returns) == 4
    assert frames >= 4
    player.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population": 7}, "^population: expected 2 or more, a multiple of 2, got 7"),
        (
            {"population": 20, "num_workers": 3},
            r"^trainer\.population: expected a multiple of 2 x num_workers=6",
        ),
        ({"population": 0}, "^population: expected 2 or more, a multiple of 2, got 0"),
        ({"sigma": 0.0}, "sigma: expected more than 0, got 0"),
        ({"learning_rate": -1.0}, "learning_rate: expected more than 0, got -1"),
        ({"weight_decay": -0.1}, "weight_decay: expected 0 or more, got -0.1"),
        ({"hidden": ()}, "hidden: expected one or more numbers"),
    ],
)
def test_settings_out_of_range_are_named(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        es.ES.of("CartPole-v1", **settings)


def train(folder: Path, trial: str, max_frames: int, seed: int = 1) -> Any:
    goal = Goal(episode_return=475.0, evaluate_at=475.0, max_frames=max_frames)
    with bray.init(folder, trial) as run:
        return es.ES.of("CartPole-v1", **SMALL).train(run, goal=goal, seed=seed)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Weights that were evaluated; the evaluation itself takes seconds."""
    seen: list[Any] = []

    def evaluate(model: Any, environment: str, episodes: int, **_: Any) -> list[float]:
        seen.append(model.weights()[1])
        return [0.0]

    monkeypatch.setattr(evaluation, "evaluate_here", evaluate)
    return seen


@pytest.mark.isa
def test_it_learns_and_two_launches_are_as_one(tmp_path: Path, evaluated: list[Any]) -> None:
    whole = train(tmp_path, "whole", 2_500)
    first = train(tmp_path, "parts", 1_000)
    second = train(tmp_path, "parts", 2_500)
    assert first.frames < second.frames == whole.frames
    for name, leaf in evaluated[0].items():
        np.testing.assert_array_equal(evaluated[2][name], leaf)
    generations = whole.version
    assert whole.frames / generations / 16 > 18, "a policy at random stands for some 10 steps"


@pytest.mark.slow
def test_cartpole_is_solved(tmp_path: Path) -> None:
    goal = Goal(episode_return=475.0, evaluate_at=450.0, max_frames=1_000_000)
    with bray.init(tmp_path, "trial") as run:
        assert es.ES.of("CartPole-v1").train(run, goal=goal, seed=1).reached
