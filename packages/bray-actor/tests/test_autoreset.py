"""A runner beside a plain loop over single environments, in each way of beginning episodes anew.

What runs record together is each environment's own steps in order, without a gap, and each run
brings as many as it was asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from bray_actor import AlternatingRunners, Rollouts, Runner, segment_spec
from bray_actor.runners import stepping
from bray_core.errors import ConfigError, DeadlineError, SpecError, WorkerLostError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

N, T, SEED = 3, 5, 11
FLOAT = np.dtype(np.float32)


class Wander(gymnasium.Env[Any, Any]):
    """Each observation is met once; episodes are 1 to 9 steps, terminated, cut off, or both."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        self.way = self.left % 3
        return self._seen(), {}

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.left -= 1
        ended = self.left == 0
        reward = float(self.np_random.normal()) + float(action)
        return self._seen(), reward, ended and self.way != 1, ended and self.way != 0, {}


class OneStep(Wander):
    """Every episode is one step long: all environments begin anew together."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.left, self.way = 1, 0
        return self._seen(), {}


def action_of(observation: Any) -> Any:
    return (observation[..., 0] > 0).astype(np.int64)


class Sure:
    """Goes by the sign of what it sees."""

    version = 4

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        right = action_of(observation)
        logits = np.stack([np.where(right, -1e4, 0), np.where(right, 0, -1e4)], -1)
        outputs = {"logits": logits.astype(np.float32), "value": np.zeros(len(right), FLOAT)}
        return Answer(outputs, self.version)


class Kept:
    """A buffer that keeps all segments."""

    def __init__(self, length: int = T) -> None:
        action = ArraySpec(np.dtype(np.int64), ())
        self.layout = Layout(segment_spec(ArraySpec(FLOAT, (2,)), action, length))
        self.segments: list[Any] = []

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            rows = np.array(segment.block).reshape(-1, self.layout.nbytes)
            self.segments += [self.layout.views(row) for row in rows]
        return len(segments)

    @property
    def steps(self) -> int:
        return sum(int(segment["length"]) for segment in self.segments)


Made = Callable[[Any, AutoresetMode], Any]


def one_after_the_other(environment: Any, mode: AutoresetMode) -> Any:
    return SyncVectorEnv([environment] * N, autoreset_mode=mode)


def side_by_side(environment: Any, mode: AutoresetMode) -> Any:
    return AsyncVectorEnv([environment] * N, autoreset_mode=mode, context="fork")


def in_its_own_memory(environment: Any, mode: AutoresetMode) -> Any:
    return SyncVectorEnv([environment] * N, autoreset_mode=mode, copy=False)


def plain(environment: Any, seed: int, steps: int) -> list[dict[str, Any]]:
    """Return the steps of one environment as anybody would write the loop."""
    env, found, total, length = environment(), [], 0.0, 0
    observation, _ = env.reset(seed=seed)
    while len(found) < steps:
        action = action_of(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        total, length = total + reward, length + 1
        ended = terminated or truncated
        found.append({
            "observation": observation,
            "action": action,
            "reward": np.float32(reward),
            "terminated": terminated,
            "truncated": truncated,
            "next": np.zeros(2, FLOAT) if terminated else following,
            "return": total if ended else None,
            "length": length,
        })  # fmt: skip
        if ended:
            following, _ = env.reset()
            total, length = 0.0, 0
        observation = following
    return found


def check(segments: list[Any], environment: Any, steps: int) -> list[int]:
    """Compare segments with plain loops; return how many steps each environment recorded."""
    wanted: dict[bytes, tuple[int, int]] = {}
    loops = [plain(environment, SEED + i, steps) for i in range(N)]
    for i, loop in enumerate(loops):
        wanted |= {step["observation"].tobytes(): (i, at) for at, step in enumerate(loop)}
    seen: list[list[int]] = [[] for _ in range(N)]
    for segment in segments:
        length = int(segment["length"])
        for at in range(length):
            i, number = wanted[segment["observation"][at].tobytes()]
            step = loops[i][number]
            seen[i].append(number)
            for name in ("action", "reward", "terminated", "truncated"):
                assert segment[name][at] == step[name], name
            assert not (step["return"] is not None and at < length - 1), "cut where it ends"
        np.testing.assert_array_equal(segment["final_observation"], step["next"])
        if step["return"] is None:
            assert np.isnan(segment["episode_return"])
        else:
            assert segment["episode_return"] == pytest.approx(step["return"], abs=1e-5)
            assert segment["episode_length"] == step["length"]
    for numbers in seen:
        assert numbers == list(range(len(numbers))), "in order, none left out, none twice"
    return list(map(len, seen))


RUNS = (1, 7, 2, 10, 3)


@pytest.fixture
def closing() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for one in opened:
        one.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("make", [one_after_the_other, side_by_side, in_its_own_memory])
@pytest.mark.parametrize(("environment", "length"), [(Wander, T), (Wander, 1), (OneStep, T)])
def test_runs_bring_what_they_were_asked_for_and_what_a_plain_loop_sees(
    environment: Any, length: int, make: Made, mode: AutoresetMode, closing: list[Any]
) -> None:
    buffer: Any = Kept(length)
    model: Any = Sure()
    rollouts = Rollouts(Runner(make(environment, mode), model, buffer, seed=SEED))
    closing.append(rollouts)
    frames, returns = 0, 0
    for steps in RUNS:
        before = buffer.steps
        rollouts.collect(steps)
        played = rollouts.poll()
        assert played.frames == buffer.steps - before == N * steps
        frames, returns = frames + played.frames, returns + len(played.returns)
    counts = check(buffer.segments, environment, 3 * sum(RUNS))
    assert sum(counts) == frames == N * sum(RUNS)
    assert min(counts) > sum(RUNS) // 3
    ended = [s for s in buffer.segments if not np.isnan(s["episode_return"])]
    assert len(ended) == returns > 0


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
async def test_halves_that_take_turns_bring_it_each(
    mode: AutoresetMode, closing: list[Any]
) -> None:
    model: Any = Sure()
    buffers: list[Any] = [Kept(), Kept()]
    halves = [
        Runner(make(Wander, mode), model, buffer, seed=SEED)
        for make, buffer in zip((one_after_the_other, side_by_side), buffers, strict=True)
    ]
    both = AlternatingRunners(halves)
    closing.append(both)
    for steps in RUNS:
        assert await both.run(steps) == 2 * N * steps
        both.cut()
    for buffer in buffers:
        assert sum(check(buffer.segments, Wander, 3 * sum(RUNS))) == N * sum(RUNS)


async def test_a_run_that_failed_is_not_owed_to_the_next(closing: list[Any]) -> None:
    model: Any = Sure()
    runner = Runner(one_after_the_other(Wander, AutoresetMode.NEXT_STEP), model, Kept(), seed=SEED)  # type: ignore[arg-type]
    closing.append(runner)
    model.infer, whole = None, model.infer
    with pytest.raises(TypeError):
        await runner.run(50)
    model.infer = whole
    assert await runner.run(2) == 2 * N


class Changed(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment of someone's own, whose step returns something else than it should."""

    num_envs = N
    single_observation_space = Wander.observation_space
    single_action_space = Wander.action_space
    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, **change: Any) -> None:
        self._change = change

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        return np.zeros((N, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        none = np.zeros(N, bool)
        parts = {
            "observation": np.ones((N, 2), np.float32),
            "reward": np.zeros(N),
            "terminated": none,
            "truncated": none,
            "info": {},
        }
        return tuple((parts | self._change).values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros((N, 1))}, r"reward: expected 3 numbers.* got float64 \(3, 1\)"),
        ({"reward": 1.0}, r"reward: expected 3 numbers.* got float64 \(\)"),
        ({"reward": [1.0, 2.0]}, r"reward: expected 3 numbers.* got float64 \(2,\)"),
        ({"reward": [None] * N}, "reward: expected 3 numbers.* got object"),
        ({"terminated": False}, r"terminated: expected 3 flags.* got bool \(\)"),
        ({"truncated": np.zeros(N)}, "truncated: expected 3 flags.* got float64"),
        ({"observation": np.ones((N, 1))}, r"observation: expected \(3, 2\), got \(3, 1\)"),
        ({"observation": np.ones(2)}, r"observation: expected \(3, 2\), got \(2,\)"),
    ],
)
async def test_what_an_environment_returns_wrongly_is_named(
    change: dict[str, Any], message: str
) -> None:
    model: Any = Sure()
    buffer: Any = Kept()
    with pytest.raises(SpecError, match=f"environment: {message}"):
        await Runner(Changed(**change), model, buffer).run(3)
    assert buffer.segments == []


@pytest.mark.parametrize(
    "reward",
    [[1, 2, 3], np.array([1, 2, 3], np.int8), [np.array(1.0), np.array(2), np.float32(3)]],
)
async def test_rewards_and_flags_of_any_type_are_kept(reward: Any) -> None:
    model: Any = Sure()
    buffer: Any = Kept()
    flags = {"terminated": [0, 1, 1], "truncated": np.array([1, 0, 1], np.uint8)}
    info = {"final_observation": np.full((N, 2), 7.0)}  # as Gymnasium called it until 1.0
    runner = Runner(Changed(reward=reward, info=info, **flags), model, buffer)
    assert await runner.run(1) == N
    for at, segment in enumerate(buffer.segments):
        assert segment["reward"][0] == segment["episode_return"] == at + 1
        assert segment["terminated"][0] == flags["terminated"][at]
        assert segment["truncated"][0] == flags["truncated"][at]
        final = [0.0, 0.0] if flags["terminated"][at] else [7.0, 7.0]
        assert segment["final_observation"].tolist() == final


@pytest.mark.parametrize(
    "info", [{}, {"final_obs": np.array([None] * N)}, {"final_observation": None}]
)
async def test_an_end_without_its_observation_is_named(info: Any) -> None:
    model: Any = Sure()
    buffer: Any = Kept()
    ends = Changed(truncated=np.ones(N, bool), info=info)
    with pytest.raises(ConfigError, match="expected final_obs in the info"):
        await Runner(ends, model, buffer).run(1)


def test_fractions_are_no_whole_numbers() -> None:
    class Half(Changed):
        single_observation_space = spaces.MultiDiscrete([2, 2])

    model: Any = Sure()
    buffer: Any = Kept()
    integer = ArraySpec(np.dtype(np.int64), (2,))
    buffer.layout = Layout(segment_spec(integer, ArraySpec(np.dtype(np.int64), ()), T))
    with pytest.raises(SpecError, match="observation: expected whole numbers, got float32"):
        Runner(Half(), model, buffer)


class Standing(Wander):
    """Its fourth step waits for what never comes, or ends its process."""

    dies = False

    def step(self, action: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        if self.count == 4 and self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.count == 4:
            multiprocessing.get_context("fork").Event().wait()
        return super().step(action)


class Dying(Standing):
    dies = True


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")  # Gymnasium's own words
@pytest.mark.parametrize(
    ("environment", "timeout_s", "error", "message"),
    [
        (Standing, 0.5, DeadlineError, "no step within 0.5 s: one of the processes"),
        (Dying, 60.0, WorkerLostError, "a process of its AsyncVectorEnv has ended"),
    ],
)
async def test_processes_that_stand_still_or_end_are_told(
    environment: Any,
    timeout_s: float,
    error: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stepping, "STEP_TIMEOUT_S", timeout_s)
    model: Any = Sure()
    vector = side_by_side(environment, AutoresetMode.NEXT_STEP)
    runner = Runner(vector, model, Kept(), seed=SEED)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        await runner.run(20)
    runner.close()
    assert not any(process.is_alive() for process in vector.processes)
