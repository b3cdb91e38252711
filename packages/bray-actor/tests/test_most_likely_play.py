"""Evaluation in this process: the same episodes as over the wire."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig
from bray_actor.gamecores.gamecore import play
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.runners.most_likely_play import play_most_likely
from bray_actor.spaces import of_gymnasium
from bray_core import metrics
from bray_core.errors import ConfigError, SpecError
from bray_core.protocols import Answer
from bray_server import ServerThread


class LinearPolicy:
    """A policy of numpy alone, to be called in a batch or awaited as a model."""

    version = 1

    def __init__(self, outputs: Any) -> None:
        self._outputs = outputs

    def __call__(self, *inputs: Any, batch: bool) -> Any:
        assert batch
        return self._outputs(*inputs)

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer(self(*inputs, batch=batch), self.version)


def over_the_wire(policy: Any, task: str, config: PolicyConfig, episodes: int) -> list[float]:
    lanes = LaneBarrier(policy, map(str, range(min(3, episodes))), plays_on=False)
    server = ServerThread(PolicyActor.factory(policy, config, lanes=lanes))
    try:
        return play(task, server.addresses[0], episodes=episodes, num_envs=3, seed=7)
    finally:
        server.close()


def cart_pole(observation: Any) -> Any:
    push = observation[:, 2]
    return {"logits": np.stack([-push, push], 1), "value": push}


def remembering(observation: Any, state: Any) -> Any:
    push = observation[:, 2] - 0.1 * state[:, 0]  # too late: the velocity of the step before
    following = np.stack([observation[:, 3], state[:, 0]], 1)
    return {"logits": np.stack([-push, push], 1), "value": push, "state": following}


def pendulum(observation: Any) -> Any:
    mean = (2.5 * observation[:, :1] - observation[:, 2:]).astype(np.float32)
    return {"mean": mean, "log_std": np.zeros_like(mean), "value": mean[:, 0]}


@pytest.mark.parametrize(
    ("task", "outputs", "state_size", "episodes"),
    [
        pytest.param("CartPole-v1", cart_pole, 0, 7, id="discrete"),
        pytest.param("CartPole-v1", cart_pole, 0, 2, id="fewer-episodes-than-lanes"),
        pytest.param("CartPole-v1", remembering, 2, 7, id="recurrent"),
        pytest.param("Pendulum-v1", pendulum, 0, 2, id="reals"),
    ],
)
def test_the_returns_are_those_over_the_wire(
    task: str, outputs: Any, state_size: int, episodes: int
) -> None:
    policy = LinearPolicy(outputs)
    config = PolicyConfig(deterministic=True, state_size=state_size, phase="evaluation")
    here = play_most_likely(task, policy, episodes, num_envs=3, seed=7, config=config)
    assert len(here) == episodes
    assert len(set(here)) > 1  # no two lanes have the same seed
    assert here == over_the_wire(policy, task, config, episodes)


def test_actions_are_assembled_where_the_spaces_are_known() -> None:
    action = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
    spaces = of_gymnasium("test", gymnasium.spaces.Box(-8.0, 8.0, (3,), np.float32), action)
    config = PolicyConfig(deterministic=True, phase="evaluation", spaces=spaces.described())
    policy = LinearPolicy(pendulum)
    here = play_most_likely("Pendulum-v1", policy, 2, num_envs=3, seed=7, config=config)
    assert here == over_the_wire(policy, "Pendulum-v1", config, 2)


def test_metrics_are_those_of_an_evaluation() -> None:
    metrics.drain()
    config = PolicyConfig(deterministic=True, phase="evaluation")
    policy = LinearPolicy(cart_pole)
    returns = play_most_likely("CartPole-v1", policy, 3, num_envs=2, seed=1, config=config)
    evaluated = [one for one in metrics.drain() if dict(one.labels).get("phase") == "evaluation"]
    found = {one.name: one.value for one in evaluated}
    assert found["actor/episode_return"] == pytest.approx(np.mean(returns))
    assert found["actor/episode_length"] == found["actor/episode_return"]  # 1 a step
    assert found["actor/episodes"] == 3
    assert found["actor/steps"] == sum(returns)


def test_a_policy_that_does_not_fit_is_refused() -> None:
    def broken(observation: Any) -> Any:
        return {"logits": np.full((len(observation), 2), np.nan, np.float32)}

    with pytest.raises(SpecError, match="logits: expected"):
        play_most_likely("CartPole-v1", LinearPolicy(broken), 2, num_envs=2, seed=1)
    config = PolicyConfig(num_actions=3)
    with pytest.raises(SpecError, match="logits"):
        play_most_likely(
            "CartPole-v1", LinearPolicy(cart_pole), 2, num_envs=2, seed=1, config=config
        )


def test_actions_outside_the_space_are_refused() -> None:
    def three(observation: Any) -> Any:
        return {"logits": np.tile(np.array([0.0, 0.0, 1.0], np.float32), (len(observation), 1))}

    with pytest.raises(ConfigError, match="action: expected one of Discrete"):
        play_most_likely("CartPole-v1", LinearPolicy(three), 2, num_envs=2, seed=1)
