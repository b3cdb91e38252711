"""Environments of EnvPool beside Gymnasium's own, where it is installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from bray_actor.environments.spec import EnvironmentSpec
from bray_core.errors import ConfigError

pytest.importorskip("envpool", reason="EnvPool is not installed")


def make(environment: str = "CartPole-v1", num_envs: int = 3, **settings: Any) -> Any:
    spec = EnvironmentSpec(environment=environment, stepping="envpool", **settings)
    return spec.make_vector(num_envs)


def test_steps_are_those_of_gymnasium_and_an_ended_episode_begins_with_a_step_of_its_own() -> None:
    """CartPole's next state is computed by Gymnasium from the state that EnvPool shows."""
    pool, plain = make(), gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(1)
    observation, _ = pool.reset(seed=3)
    ended = np.zeros(3, bool)
    num_ended = 0
    for _ in range(200):
        actions = rng.integers(0, 2, 3)
        following, reward, terminated, truncated, _ = pool.step(actions)
        assert not truncated.any()
        for row in range(3):
            if ended[row]:  # the step that began an episode
                assert reward[row] == 0
                assert not terminated[row]
                assert np.abs(following[row]).max() <= 0.05
                continue
            plain.reset()
            plain.state = observation[row].astype(np.float64)
            wanted, wanted_reward, is_over, _, _ = plain.step(int(actions[row]))
            np.testing.assert_allclose(following[row], wanted, atol=1e-5)
            assert (reward[row], terminated[row]) == (wanted_reward, is_over)
        observation, ended = following, terminated
        num_ended += int(ended.sum())
    assert num_ended > 5
    pool.close()


def test_a_seed_repeats_and_time_limits_truncate() -> None:
    def play(seed: int) -> list[Any]:
        pool = make("Pendulum-v1", 2)
        found = [pool.reset(seed=seed)[0]]
        for _ in range(200):
            observation, reward, terminated, truncated, _ = pool.step(np.zeros((2, 1)))
            found += [observation, reward]
        assert truncated.all()
        assert not terminated.any()
        pool.close()
        return found

    one, same, other = play(5), play(5), play(6)
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"EnvPool does not know 'CartPol-v1', did you mean"):
        make("CartPol-v1")
    with pytest.raises(ConfigError, match=r"frame_skip: .*EnvPool's environments step many"):
        make(frame_skip=2)
    with pytest.raises(ConfigError, match="kwargs: expected options that EnvPool's CartPole"):
        make(kwargs={"nonsense": 1})
