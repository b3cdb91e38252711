"""Runner beside PolicyActor: the same policy in the same environments makes the same segments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bray_actor import PolicyActor, PolicyConfig, Runner, segment_spec
from bray_actor.gamecores.gamecore import play
from bray_actor.policy.batch_decoder import (
    BatchCategorical,
    BatchDiagonalGaussian,
    BatchMultiCategorical,
)
from bray_actor.spaces import spec_of
from bray_core import nested
from bray_core.errors import ConfigError, ServiceError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

T = 5
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Walk(gymnasium.Env[Any, Any]):
    """A walk on a nested observation: ends at `goal`, is cut off after `limit` steps."""

    observation_space = spaces.Dict(
        {
            "at": spaces.Box(-100, 100, (2,), np.float32),
            "more": spaces.Tuple([spaces.Discrete(50, start=3), spaces.MultiBinary(2)]),
        }
    )

    def __init__(self, action_space: Any, goal: float = 3.0, limit: int = 7) -> None:
        self.action_space = action_space
        self.goal, self.limit = goal, limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.steps = 0
        return self._observation(), {}

    def _observation(self) -> Any:
        bits = np.array([self.steps % 2, self.steps // 2 % 2], np.int8)
        return {"at": self.at.copy(), "more": (np.int64(3 + self.steps), bits)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action), action
        self.steps += 1
        move = np.asarray(action, np.float32) - 0.25
        self.at = (self.at + move + self.np_random.uniform(-0.1, 0.6, 2)).astype(np.float32)
        ended = bool(self.at[0] > self.goal)
        reward = float(self.at.sum()) * 0.5
        return self._observation(), reward, ended, not ended and self.steps >= self.limit, {}


def walks(action_space: Any, mode: AutoresetMode, n: int = 4) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Walk(action_space)] * n, autoreset_mode=mode)


S = 3


class Sure:
    """A policy that leaves nothing to chance, for one row or many, of `Walk`.

    It may remember what it saw: a state that is not zero at an episode's start shows in all that
    follows.
    """

    version = 7

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def infer(self, observation: Any, state: Any = None, batch: bool = False) -> Answer:
        lead = observation["at"].shape[:-1]
        right = observation["at"][..., 0] < observation["more"][0] % 3
        outputs = {
            "value": (observation["at"].sum(-1) * 0.25).astype(np.float32),
            "hint": {"bits": np.asarray(observation["more"][1], np.int8)},
        }
        if self.kind == "recurrent":
            assert state.shape == (*lead, S)
            right = right ^ (np.abs(state[..., 0]) % 1 > 0.5)
            outputs["state"] = state * np.float32(0.5) + observation["at"][..., :1]
            outputs["value"] = outputs["value"] + state[..., 1]
        if self.kind == "continuous":
            mean = np.stack([np.where(right, 0.9, 0.1)] * 2, -1).astype(np.float32)
            log_std = np.full((*lead, 2), -80.0, np.float32)
            outputs |= {"mean": mean, "log_std": log_std}
        elif self.kind == "heads":
            up = observation["at"][..., 1] < 1
            third = np.full(lead, -1e9, np.float32)  # a masked action
            outputs["logits"] = [
                _logits(right),
                np.concatenate([_logits(up), third[..., None]], -1),
            ]
        else:
            outputs["logits"] = _logits(right)
        return Answer(outputs, self.version)


def _logits(second: Any) -> Any:
    """Sure of the second action where it is true, else of the first."""
    logits = np.stack([np.where(second, -1e4, 0), np.where(second, 0, -1e4)], -1)
    return logits.astype(np.float32)


class Kept:
    """A buffer that keeps all segments."""

    def __init__(self, action: ArraySpec, state_size: int = 0) -> None:
        extra = {"hint": {"bits": ArraySpec(np.dtype(np.int8), (2,))}}
        observation = spec_of(Walk.observation_space)
        self.layout = Layout(segment_spec(observation, action, T, extra, state_size=state_size))
        self.rows: list[Any] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            self.rows.extend(np.array(segment.block).reshape(-1, self.layout.nbytes))
        return len(segments)

    def episodes(self) -> dict[bytes, list[bytes]]:
        """Segments by the episode that they begin or go on with, whole episodes only."""
        found: dict[bytes, list[bytes]] = {}
        going: dict[bytes, bytes] = {}  # the observation that comes next → the episode's first
        for row in self.rows:
            views = self.layout.views(row)
            first = views["observation"]["at"][0].tobytes()
            episode = going.pop(first, first)
            found.setdefault(episode, []).append(row.tobytes())
            if np.isnan(views["episode_return"]):
                going[views["final_observation"]["at"].tobytes()] = episode
        return {name: rows for name, rows in found.items() if name not in going.values()}


ACTIONS = {
    "discrete": spaces.Discrete(2),
    "continuous": spaces.Box(0.2, 0.8, (2,), np.float32),
    "heads": spaces.MultiDiscrete([2, 3], start=[0, -1]),
    "recurrent": spaces.Discrete(2),
}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("kind", ACTIONS)
async def test_segments_are_those_of_policy_actor(mode: AutoresetMode, kind: str) -> None:
    space: Any = ACTIONS[kind]
    spec, state_size = spec_of(space), S if kind == "recurrent" else 0
    model: Any = Sure(kind)
    ran: Any = Kept(spec, state_size)
    await Runner(walks(space, mode), model, ran, seed=1_000_003).run(60)
    played: Any = Kept(spec, state_size)
    factory = PolicyActor.factory(model, PolicyConfig(state_size=state_size), buffer=played)
    play(walks(space, mode), factory, episodes=24, seed=1)  # the driver seeds with 1 × 1,000,003
    expected, got = played.episodes(), ran.episodes()
    common = set(expected) & set(got)
    assert len(common) >= 20
    assert {len(rows) for rows in expected.values()} == {1, 2}, "cut inside episodes as well"
    for episode in common:
        for wanted, row in zip(expected[episode], got[episode], strict=True):
            wanted_tree = ran.layout.views(np.frombuffer(wanted, np.uint8))
            tree = ran.layout.views(np.frombuffer(row, np.uint8))
            for path, leaf in nested.flatten(wanted_tree).items():
                if path == "action" and kind == "continuous":  # drawn anew, but nearly sure
                    np.testing.assert_allclose(nested.flatten(tree)[path], leaf, atol=1e-6)
                elif path != "log_prob" or kind != "continuous":
                    np.testing.assert_array_equal(nested.flatten(tree)[path], leaf, path)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_vector_environment_plays_as_single_ones(mode: AutoresetMode) -> None:
    gymnasium.register("Walk-v0", lambda: Walk(spaces.Discrete(2)))
    try:
        model: Any = Sure("discrete")
        factory = PolicyActor.factory(model, PolicyConfig())
        single = play("Walk-v0", factory, episodes=12, num_envs=4, seed=2)
        assert play(walks(spaces.Discrete(2), mode), factory, episodes=12, seed=2) == single
        assert play("Walk-v0", factory, episodes=12, num_envs=4, seed=2, vector=True) == single
    finally:
        del gymnasium.registry["Walk-v0"]


def test_draws_follow_the_probabilities() -> None:
    n = 200_000
    logits = np.log(np.array([0.2, 0.5, 0.3, 1e-300]))
    rows = np.tile(logits.astype(np.float32), (n, 1))
    rows[:, 3] = -np.inf
    action, log_prob = BatchCategorical(n, 4).sample({"logits": rows}, np.random.default_rng(1))
    share = np.bincount(action, minlength=4) / n
    assert np.abs(share - [0.2, 0.5, 0.3, 0.0]).max() < 6 * np.sqrt(0.25 / n)
    assert share[3] == 0.0
    np.testing.assert_allclose(log_prob, logits[action], atol=1e-6)


def test_heads_are_drawn_by_themselves() -> None:
    n = 100_000
    logits = [np.log([0.3, 0.7]), np.log([0.2, 0.5, 0.3])]
    outputs = {"logits": [np.tile(head.astype(np.float32), (n, 1)) for head in logits]}
    outputs["logits"][1][:, 2] = -1e9  # masked
    action, log_prob = BatchMultiCategorical(n, [2, 3]).sample(outputs, np.random.default_rng(1))
    pair = np.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / n
    p = np.outer([0.3, 0.7], [2 / 7, 5 / 7, 0.0]).ravel()
    assert np.abs(pair - p).max() < 6 * np.sqrt(0.25 / n)
    np.testing.assert_allclose(log_prob, np.log(p[action[:, 0] * 3 + action[:, 1]]), atol=1e-5)
    with pytest.raises(SpecError, match="logits: expected a list of 2 heads, got ndarray"):
        BatchMultiCategorical(1, [2, 3]).sample(
            {"logits": np.zeros((1, 5))}, np.random.default_rng()
        )


async def test_a_policy_that_returns_no_state_is_named() -> None:
    model: Any = Sure("recurrent")

    class Forgetful:
        version = 0

        async def infer(self, observation: Any, state: Any, batch: bool = False) -> Answer:
            answer = await model.infer(observation, state, batch)
            del answer.outputs["state"]
            return answer

    forgetful: Any = Forgetful()
    buffer: Any = Kept(DISCRETE, S)
    with pytest.raises(SpecError, match=r"state: expected float32 \(4, 3\), got nothing"):
        await Runner(walks(spaces.Discrete(2), MODES[0]), forgetful, buffer).run(1)
    with pytest.raises(ServiceError, match=r"state: expected float32 \(3,\), got nothing"):
        play(
            walks(spaces.Discrete(2), MODES[0]),
            PolicyActor.factory(forgetful, PolicyConfig(state_size=S)),
            episodes=1,
        )


def test_gaussian_draws_have_their_density() -> None:
    n = 100_000
    mean, log_std = np.array([1.0, -2.0]), np.array([0.3, -1.0])
    outputs = {
        "mean": np.tile(mean.astype(np.float32), (n, 1)),
        "log_std": np.tile(log_std.astype(np.float32), (n, 1)),
    }
    action, log_prob = BatchDiagonalGaussian(n, 2).sample(outputs, np.random.default_rng(1))
    std = np.exp(log_std)
    assert np.abs((action.mean(0) - mean) / std).max() < 6 / np.sqrt(n)
    assert np.abs(action.std(0) / std - 1).max() < 6 / np.sqrt(2 * n)
    density = np.exp(-(((action - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_prob, np.log(density).sum(1), atol=1e-4)


DISCRETE = ArraySpec(np.dtype(np.int64), ())


async def test_outputs_that_do_not_fit_are_named() -> None:
    class Bare(Sure):
        async def infer(self, observation: Any, state: Any = None, batch: bool = False) -> Answer:
            answer = await super().infer(observation, state, batch)
            del answer.outputs[self.without]
            return answer

    model: Any = Bare("discrete")
    buffer: Any = Kept(DISCRETE)
    for name, message in [
        ("logits", r"logits: expected float32 \(4, 2\), got nothing"),
        ("value", r"value: expected float32 \(4,\), got nothing"),
        ("hint", r"hint/bits: expected int8 \(4, 2\), got nothing"),
    ]:
        model.without = name
        with pytest.raises(SpecError, match=message):
            await Runner(walks(spaces.Discrete(2), MODES[0]), model, buffer).run(1)


def test_what_does_not_fit_is_refused() -> None:
    buffer: Any = Kept(DISCRETE)
    model: Any = Sure("discrete")
    with pytest.raises(ConfigError, match="buffer: its segments' action is"):
        Runner(walks(spaces.MultiBinary(2), MODES[0]), model, buffer)
    with pytest.raises(ConfigError, match="buffer: its segments' observation is"):
        Runner(gymnasium.make_vec("CartPole-v1", 2), model, buffer)
    with pytest.raises(ConfigError, match="buffer: its segments' action is"):
        Runner(walks(spaces.Box(0, 1, (2,), np.float32), MODES[0]), model, buffer)
    strange = walks(spaces.Discrete(2), MODES[0])
    strange.metadata = {"autoreset_mode": "Sometimes"}
    with pytest.raises(ConfigError, match="autoreset_mode: expected NextStep, SameStep or"):
        Runner(strange, model, buffer)


class Noise(gymnasium.Env[Any, Any]):
    """Shows something else each time: no stack of frames."""

    observation_space = spaces.Box(0, 255, (3, 2), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 255, (3, 2)).astype(np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        return self.np_random.integers(0, 255, (3, 2)).astype(np.uint8), 0.0, False, False, {}


async def test_an_observation_that_spoils_the_outputs_is_blamed() -> None:
    class Turning(Noise):
        observation_space = spaces.Box(-1, 1, (3,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            return np.full(3, np.nan, np.float32), {}

    class Copying:
        version = 0

        async def infer(self, observation: Any, batch: bool = False) -> Answer:
            return Answer({"logits": observation[:, :2], "value": observation[:, 2]}, 0)

    model: Any = Copying()
    buffer: Any = Kept(DISCRETE)
    spec = spec_of(Turning.observation_space)
    buffer.layout = Layout(segment_spec(spec, DISCRETE, T))
    runner = Runner(SyncVectorEnv([Turning] * 2), model, buffer)
    with pytest.raises(SpecError, match="environment: observation: expected finite numbers, got"):
        await runner.run(1)


async def test_observations_that_are_no_stack_are_refused() -> None:
    class Even:
        version = 0

        async def infer(self, observation: Any, batch: bool = False) -> Answer:
            zero = np.zeros(len(observation), np.float32)
            return Answer({"logits": np.stack([zero, zero], -1), "value": zero}, 0)

    model: Any = Even()
    buffer: Any = Kept(DISCRETE)
    spec = spec_of(Noise.observation_space)
    buffer.layout = Layout(segment_spec(spec, DISCRETE, T, stack=True))
    runner = Runner(SyncVectorEnv([Noise] * 2), model, buffer)
    await runner.run(1)
    with pytest.raises(SpecError, match="observation: expected stacked frames"):
        await runner.run(1)
    with pytest.raises(ConfigError, match=r"buffer: its segments' observation is uint8 \(3, 2\)"):
        Runner(gymnasium.make_vec("CartPole-v1", 2), model, buffer)


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_signal_changes_what_is_trained_on_and_no_return(mode: AutoresetMode) -> None:
    class Halved:
        """Pays a half, and sees an end in each third step of a row that goes on."""

        def begin(self, info: Any) -> None:
            self.steps = np.zeros(4, int)

        def __call__(self, reward: Any, ended: Any, info: Any) -> Any:
            self.steps = np.where(ended, 0, self.steps + 1)
            return reward / 2, self.steps % 3 == 2

    model: Any = Sure("discrete")
    plain: Any = Kept(DISCRETE)
    changed: Any = Kept(DISCRETE)
    runners = [
        Runner(walks(spaces.Discrete(2), mode), model, plain),
        Runner(walks(spaces.Discrete(2), mode), model, changed, reward_transform=Halved()),
    ]
    for runner in runners:
        await runner.run(60)
        runner.cut()
    assert runners[0].take_returns() == runners[1].take_returns()
    trees = [[b.layout.views(row) for row in b.rows] for b in (plain, changed)]
    totals = [sum(float(tree["reward"].sum()) for tree in each) for each in trees]
    np.testing.assert_allclose(totals[1], totals[0] / 2, rtol=1e-5)
    counts = [sum(int(tree["length"]) for tree in each) for each in trees]
    assert counts[0] == counts[1]
    assert max(int(tree["length"]) for tree in trees[1]) <= 3
    for tree in trees[1]:
        if tree["terminated"].any():
            assert tree["terminated"].argmax() == tree["length"] - 1
            assert not tree["final_observation"]["at"].any()
