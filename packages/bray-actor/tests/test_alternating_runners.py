"""Runners that take turns make the segments that each makes alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from bray_actor import AlternatingRunners, Runner, segment_spec
from bray_actor.atari import AtariRewardTransform, make_atari
from bray_actor.runners.stepping import (
    AsyncVectorStepper,
    AtariThreadStepper,
    CallerThreadStepper,
    make_stepper,
)
from bray_actor.spaces import spec_of
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

T = 5


class Drift(gymnasium.Env[Any, Any]):
    """Drifts by chance until it is far, or for 12 steps."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)
    fails_at = 10**9

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.at = self.np_random.normal(size=2).astype(np.float32)
        self.steps = 0
        return self.at.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.steps += 1
        if self.steps == self.fails_at:
            raise ValueError("the simulator broke")
        self.at += self.np_random.normal(size=2) + int(action) - 1
        far = bool(np.abs(self.at).max() > 6)
        return self.at.copy(), float(self.at[0]), far, not far and self.steps == 12, {}


class Broken(Drift):
    """Fails in its eighth step."""

    fails_at = 8


class Draws:
    """A policy that follows from the observation alone; may be made to fail."""

    version = 3

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.calls = 0
        self.fails_at = -1

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the model broke")
        n = len(observation)
        sums = np.abs(observation.reshape(n, -1).sum(1, dtype=np.float64))
        logits = np.cos(sums[:, None] * np.arange(1, self.num_actions + 1))
        return Answer({"logits": logits.astype(np.float32), "value": sums.astype(np.float32)}, 3)


class Kept:
    """A buffer that keeps the bytes of all segments."""

    def __init__(self, environment: Any, *, stack: bool = False) -> None:
        observation = spec_of(environment.single_observation_space)
        action = ArraySpec(np.dtype(np.int64), ())
        self.layout = Layout(segment_spec(observation, action, T, stack=stack))
        self.rows: list[bytes] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            self.rows += map(bytes, np.array(segment.block).reshape(-1, self.layout.nbytes))
        return len(segments)


def drifts(kind: Any, mode: AutoresetMode, env: Any = Drift) -> Any:
    return kind([env] * 3, autoreset_mode=mode)


WAYS = {
    "one after the other": lambda: drifts(SyncVectorEnv, AutoresetMode.NEXT_STEP),
    "processes": lambda: drifts(AsyncVectorEnv, AutoresetMode.SAME_STEP),
    "threads": lambda: make_atari("Breakout", 3, num_threads=2),
}


def half(environment: Any, seed: int, model: Any = None) -> tuple[Runner, Kept]:
    is_game = environment.single_observation_space.shape == (4, 84, 84)
    buffer: Any = Kept(environment, stack=is_game)
    model = model or Draws(int(environment.single_action_space.n))
    signal = AtariRewardTransform() if is_game else None
    return Runner(environment, model, buffer, seed=seed, reward_transform=signal), buffer


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    """Environments or runners that are closed at the end."""
    opened: list[Any] = []
    yield opened
    for one in opened:
        one.close()


@pytest.mark.parametrize("way", WAYS)
async def test_halves_make_what_each_makes_alone(way: str) -> None:
    wanted, returns = [], []
    for seed in (1, 2):
        runner, buffer = half(WAYS[way](), seed)
        for steps in (1, 24, 15):
            assert await runner.run(steps) > 0
            runner.cut()
        runner.close()
        wanted.append(buffer.rows)
        returns += runner.take_returns()
    made = [half(WAYS[way](), seed) for seed in (1, 2)]
    both = AlternatingRunners([runner for runner, _ in made])
    assert both.num_envs == 6
    recorded = 0
    for steps in (1, 24, 15):
        recorded += await both.run(steps)
        both.cut()
    both.close()
    assert [buffer.rows for _, buffer in made] == wanted
    assert all(len(rows) > 3 * 40 // T for rows in wanted)
    lengths = [
        int(b.layout.views(np.frombuffer(row, np.uint8))["length"])
        for _, b in made
        for row in b.rows
    ]
    assert recorded == sum(lengths)
    assert both.take_returns() == returns
    assert both.take_returns() == []


async def test_one_half_steps_while_the_model_decides_for_the_other(closing: list[Any]) -> None:
    asked = multiprocessing.get_context("fork").Semaphore(0)

    class Patient(Drift):
        """Its step lasts until the model was asked for the other half."""

        def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
            assert asked.acquire(timeout=30)
            return super().step(action)

    class Telling(Draws):
        async def infer(self, observation: Any, batch: bool = False) -> Answer:
            asked.release()
            return await super().infer(observation, batch)

    mode = AutoresetMode.DISABLED
    patient = AsyncVectorEnv([Patient], autoreset_mode=mode, context="fork")
    closing += [patient, other := SyncVectorEnv([Drift], autoreset_mode=mode)]
    both = AlternatingRunners([half(patient, 1)[0], half(other, 2, Telling(3))[0]])
    assert await both.run(20) == 40
    assert not asked.acquire(block=False)


@pytest.mark.parametrize("way", ["processes", "threads"])
async def test_a_model_that_fails_for_one_half(way: str) -> None:
    """Its error comes out; nothing is lost, and the halves may go on."""
    broken: Any = Draws(4 if way == "threads" else 3)
    broken.fails_at = 9
    made = [half(WAYS[way](), 1), half(WAYS[way](), 2, broken)]
    both = AlternatingRunners([runner for runner, _ in made])
    with pytest.raises(RuntimeError, match="the model broke"):
        await both.run(20)
    await both.run(20)
    both.close()
    for seed, (_, buffer) in zip((1, 2), made, strict=True):
        alone, wanted = half(WAYS[way](), seed)
        await alone.run(29)
        alone.close()
        assert len(buffer.rows) > 10
        assert buffer.rows == wanted.rows[: len(buffer.rows)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium also warns of the error
@pytest.mark.parametrize("first", [True, False])
async def test_an_environment_that_fails_in_one_half(first: bool, closing: list[Any]) -> None:
    mode = AutoresetMode.DISABLED
    whole, broken = (
        half(drifts(AsyncVectorEnv, mode), 1),
        half(drifts(AsyncVectorEnv, mode, Broken), 2),
    )
    halves = [broken[0], whole[0]] if first else [whole[0], broken[0]]
    closing += halves
    with pytest.raises(ValueError, match="the simulator broke"):
        await AlternatingRunners(halves).run(20)
    assert await AlternatingRunners([whole[0]]).run(5) == 15, "the other goes on"


async def test_a_step_is_finished_once(closing: list[Any]) -> None:
    runner, buffer = half(WAYS["one after the other"](), 1)
    closing.append(runner)
    assert runner.finish() == 0
    await runner.act()
    assert (runner.finish(), runner.finish()) == (3, 0)
    runner.cut()
    assert len(buffer.rows) == 3


async def test_what_makes_no_sense_is_refused(closing: list[Any]) -> None:
    with pytest.raises(ConfigError, match="runners: expected one or more, got none"):
        AlternatingRunners([])
    runner, _ = half(WAYS["one after the other"](), 1)
    closing.append(runner)
    with pytest.raises(ConfigError, match="steps: expected 1 or more, got 0"):
        await AlternatingRunners([runner]).run(0)


def test_how_an_environment_steps(closing: list[Any]) -> None:
    class Changed(AsyncVectorEnv):
        def step(self, actions: Any) -> Any:
            return super().step(actions)

    modes = AutoresetMode.SAME_STEP
    for kind, environment in [
        (AtariThreadStepper, WAYS["threads"]()),
        (AsyncVectorStepper, WAYS["processes"]()),
        (CallerThreadStepper, WAYS["one after the other"]()),
        (CallerThreadStepper, Changed([Drift], autoreset_mode=modes)),
        (
            CallerThreadStepper,
            gymnasium.wrappers.vector.NormalizeReward(WAYS["one after the other"]()),
        ),
    ]:
        closing.append(environment)
        assert type(make_stepper(environment)) is kind
