"""Environments in turn, beside Gymnasium's vector of the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bray_actor.environments.processes import ProcessEnvironments
from bray_actor.environments.serial import SerialEnvironments
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.episodes import metrics_of_row

FLAT = Box(-10.0, 10.0, (2,), np.float32)


class Walk(gymnasium.Env):  # type: ignore[type-arg]
    """Ends after some steps or is cut off, says something now and then, and reuses its array."""

    action_space = Discrete(3)

    def __init__(self, space: gymnasium.Space[Any] = FLAT) -> None:
        self.observation_space = space
        self._at = np.zeros(2)

    def _seen(self) -> Any:
        if isinstance(self.observation_space, Dict):
            return {"x": self._at.astype(np.float32)}
        if not self.observation_space.shape:
            return self._at[1]
        return self._at  # float64, and changed by the next step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = np.zeros(2)
        self._at[1] = self.np_random.integers(5)
        return self._seen(), {"begun": True}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._at += [1, action - 1]
        info = {"far": self._at[1]} if self._at[1] > 3 else {}
        return self._seen(), float(action), self._at[0] >= 4, bool(self._at[1] < -1), info


@pytest.mark.parametrize(
    "space",
    [FLAT, Box(-10.0, 10.0, (), np.float32), Dict({"x": FLAT})],
    ids=["one array", "one number", "several"],
)
def test_they_say_what_gymnasiums_vector_says(space: Any) -> None:
    ours = SerialEnvironments([lambda: Walk(space)] * 3)
    theirs = SyncVectorEnv([lambda: Walk(space)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    np.testing.assert_equal(ours.reset(seed=3), theirs.reset(seed=3))
    random = np.random.default_rng(0)
    kept = []
    for _ in range(30):
        actions = random.integers(0, 3, 3)
        found, wanted = ours.step(actions), theirs.step(actions)
        finals = [[*said[4].pop("final_obs", [])] for said in (found, wanted)]
        np.testing.assert_equal(found, wanted)
        np.testing.assert_equal(*finals)
        kept.append((found[0], wanted[0]))
    for found, wanted in kept:  # what was returned stays what it was
        np.testing.assert_equal(found, wanted)


def test_an_observation_of_another_shape_is_refused() -> None:
    class Wider(Walk):
        def _seen(self) -> Any:
            return np.zeros(1) if self._at[0] else self._at

    environments = SerialEnvironments([Wider] * 2)
    environments.reset(seed=0)
    with pytest.raises(ValueError, match=r"^observation: expected shape \(2,\), got \(1,\)"):
        environments.step(np.array([1, 1]))


def test_a_task_of_one_process_is_made_of_them() -> None:
    environments = EnvironmentSpec(environment="CartPole-v1").make_vector(2)
    assert isinstance(environments, SerialEnvironments)
    environments.close()


def _talker() -> Any:
    """Return a class that the processes get with its code, as they cannot import this file."""

    class Talker(gymnasium.Env):  # type: ignore[type-arg]
        """Says something else with each step, of another kind in each environment."""

        observation_space = FLAT
        action_space = Discrete(100)
        said = (
            (3, {"winner": 1, "score": 0, "moves": np.arange(2), "seed": 2**100, "by": {"a": 1}}),
            (7, {"winner": None, "score": 0.5, "moves": np.arange(3), "seed": 1, "by": "nobody"}),
        )

        def reset(
            self, *, seed: int | None = None, options: Any = None
        ) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {"drawn": self.np_random_seed}

        def step(self, action: Any) -> Any:
            return np.zeros(2, np.float32), 0.0, True, False, dict(self.said)[int(action)]

    return Talker


def _serial() -> Any:
    return SerialEnvironments([_talker()] * 3)


def _in_processes() -> Any:
    return ProcessEnvironments("talker", _talker(), 3)


@pytest.mark.parametrize("make", [_serial, _in_processes])
def test_infos_of_several_types_and_shapes_are_kept(make: Any) -> None:
    environments = make()
    environments.reset()  # with a seed of 128 bits each
    *_, infos = environments.step(np.array([3, 7, 3]))
    environments.close()
    said = infos["final_info"]
    assert said["winner"].tolist() == [1, None, 1]
    assert said["score"].tolist() == [0, 0.5, 0]
    assert [len(moves) for moves in said["moves"]] == [2, 3, 2]
    assert said["seed"].tolist() == [2**100, 1, 2**100]
    assert said["by"].tolist() == [{"a": 1}, "nobody", {"a": 1}]
    assert said["_winner"].all()
    assert metrics_of_row(infos, 1, "SameStep", ["score"]) == {"score": 0.5}
