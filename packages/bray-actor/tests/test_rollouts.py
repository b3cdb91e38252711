"""Rollouts here, in a worker's thread, and on Ray; the squashed decoder; `cut`."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from bray_actor import Rollouts, Runner, segment_spec
from bray_actor.policy.batch_decoder import BatchDiagonalGaussian
from bray_actor.policy.decoder import DiagonalGaussian, check_outputs
from bray_actor.policy.densities import tanh_log_slope, tanh_squash
from bray_actor.runners import rollout_worker
from bray_actor.runners.alternating_runners import AlternatingRunners
from bray_actor.runners.rollout_worker import RolloutWorker
from bray_actor.runners.rollouts import Played, collect
from bray_core import metrics
from bray_core.errors import ClosedError, ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
LENGTH = 5


class Count(gymnasium.Env[Any, Any]):
    """Counts its steps, ends after 7 of them, pays 1 for each."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)
    fails_at = 10**9

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.at = 0
        return np.array([0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.at += 1
        if self.at == self.fails_at:
            raise ValueError("the simulator broke")
        return np.array([self.at], np.float32), 1.0, self.at == 7, False, {}


class Failing(Count):
    """Breaks in its third step."""

    fails_at = 3


class Even:
    """A policy of two equal actions."""

    version = 3

    def __init__(self) -> None:
        self.waited: list[int] = []

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        n = len(observation)
        return Answer({"logits": np.zeros((n, 2), FLOAT), "value": np.zeros(n, FLOAT)}, 3)


class Kept:
    """A buffer that keeps all segments."""

    def __init__(self) -> None:
        observation, action = ArraySpec(FLOAT, (1,)), ArraySpec(INT, ())
        self.layout = Layout(segment_spec(observation, action, LENGTH))
        self.segments: list[Any] = []
        self.filled = threading.Event()

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        for segment in segments:
            rows = segment.block.reshape(-1, self.layout.nbytes)
            self.segments += [self.layout.views(row.copy()) for row in rows]
        self.filled.set()
        return len(segments)

    def num_steps(self) -> int:
        return sum(int(segment["length"]) for segment in self.segments)


class Closed(Kept):
    """A buffer that was closed, as where a run ends."""

    def push(self, *segments: Packed, wait: bool = False, timeout_s: float | None = None) -> int:
        raise ClosedError("buffer experience: closed")


def make_runner(
    buffer: Any, n: int = 2, mode: AutoresetMode = AutoresetMode.SAME_STEP, env: Any = Count
) -> Runner:
    model: Any = Even()
    return Runner(SyncVectorEnv([env] * n, autoreset_mode=mode), model, buffer)


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
def test_all_that_was_recorded_is_cut_and_pushed(mode: AutoresetMode) -> None:
    """Pieces of an episode follow each other without a gap, and carry its return on."""
    buffer = Kept()
    rollouts = Rollouts(make_runner(buffer, n=1, mode=mode))
    frames = 0
    for steps in (3, 1, 9, 4):
        rollouts.collect(steps)
        played = rollouts.poll()
        frames += played.frames
        assert sum(int(s["length"]) for s in buffer.segments) == frames
        assert played.returns == ([7.0] if steps in (9, 4) else [])
    assert rollouts.poll() == Played(0, [])
    rollouts.close()
    episode = buffer.segments[: [int(s["episode_length"]) for s in buffer.segments].index(7) + 1]
    steps = [int(o[0]) for s in episode for o in s["observation"][: s["length"]]]
    assert steps == list(range(7))
    for segment, following in itertools.pairwise(episode):
        assert segment["final_observation"] == following["observation"][0]
        assert np.isnan(segment["episode_return"])
        assert not segment["terminated"].any()
    assert episode[-1]["episode_return"] == 7.0
    assert episode[-1]["terminated"][episode[-1]["length"] - 1]


def test_nothing_under_way_is_nothing_to_cut() -> None:
    buffer = Kept()
    runner = make_runner(buffer)
    runner.cut()
    asyncio.run(runner.run(LENGTH))
    assert len(buffer.segments) == 2
    runner.cut()
    assert len(buffer.segments) == 2
    runner.close()


def test_steps_are_checked_and_errors_reach_the_caller() -> None:
    rollouts = Rollouts(make_runner(Kept(), env=Failing))
    with pytest.raises(ConfigError, match="steps: expected 1 or more, got 0"):
        rollouts.collect(0)
    with pytest.raises(ValueError, match="the simulator broke"):
        rollouts.collect(5)
    rollouts.close()


def test_a_worker_says_what_it_failed_with() -> None:
    made: list[Runner] = []

    def make() -> Runner:
        made.append(make_runner(Kept(), env=Failing))
        return made[0]

    worker = RolloutWorker(make, steps=5, lockstep=False)

    def has_failed() -> bool:
        try:
            worker.poll()
        except ValueError as error:
            return "the simulator broke" in str(error)
        return False

    wait_for(has_failed)
    with pytest.raises(ValueError, match="the simulator broke"):
        worker.poll()  # again, to whoever asks
    assert made[0]._env.closed
    _join_rollouts()


def test_a_worker_whose_buffer_is_closed_logs_no_error(caplog: pytest.LogCaptureFixture) -> None:
    worker = RolloutWorker(lambda: make_runner(Closed()), steps=5, lockstep=False)
    with pytest.raises(ClosedError, match="buffer experience: closed"):
        wait_for(lambda: worker.poll() is None)
    _join_rollouts()
    assert "stopped by an error" not in caplog.text


class Telling:
    """Says in which thread it was read."""

    def __reduce__(self) -> Any:
        return threading.current_thread, ()


def test_what_a_worker_is_told_is_read_in_the_thread_that_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray import cloudpickle

    from bray_actor.remote import _RolloutWorker

    heard: list[Any] = []
    monkeypatch.setattr(rollout_worker, "tell", lambda runner, news: heard.append(news))

    def make(worker: int) -> Any:
        return make_runner(Kept(), env=Failing)

    worker = _RolloutWorker(make, steps=5, lockstep=False)
    worker.tell(cloudpickle.dumps(Telling()))

    def is_over() -> bool:
        try:
            worker.poll()
        except ValueError:
            return True
        return False

    wait_for(is_over)
    assert [thread.name for thread in heard] == ["rollouts"]
    _join_rollouts()


def test_a_worker_in_lockstep_waits_for_the_next_version() -> None:
    buffer, model = Kept(), Even()
    environment = SyncVectorEnv([Count] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    waiting, ending = threading.Event(), threading.Event()

    class Ends(Even):
        async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
            self.waited.append(version)
            waiting.set()
            ending.wait(30)
            raise RuntimeError("the end of the test")

    model = Ends()
    worker = RolloutWorker(
        lambda: Runner(environment, model, buffer),  # type: ignore[arg-type]
        steps=4,
        lockstep=True,
    )
    at_once = worker.poll()  # starts the thread, which may have played before this returns
    assert waiting.wait(30)
    assert at_once.frames + worker.poll().frames == 8
    ending.set()
    _join_rollouts()
    assert model.waited == [4], "the version after the one that acted"
    assert sum(int(s["length"]) for s in buffer.segments) == 8


class Early(Even):
    """Has a newer version before certain of its answers, and whenever it is waited for."""

    def __init__(self, buffer: Kept, comes_at: tuple[int, ...]) -> None:
        super().__init__()
        self.buffer, self.comes_at, self.answers = buffer, comes_at, 0
        self.before = 0
        """Steps that were pushed before the version came."""
        self.brought: list[int] = []
        """Steps that were pushed of each version that was waited for."""

    def publish(self) -> None:
        self.version += 1
        self.before = self.buffer.num_steps()

    async def infer(self, observation: Any, batch: bool = False) -> Answer:
        if self.answers in self.comes_at:
            self.publish()
        self.answers += 1
        return (await super().infer(observation, batch))._replace(version=self.version)

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        assert version == self.version + 1
        self.brought.append(self.buffer.num_steps() - self.before)
        self.publish()
        return self.version


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=str)
@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("comes_at", [(), (4,), (4, 7), (3, 4), (11,)])
def test_a_version_is_waited_for_once_the_trainer_has_enough_for_it(
    comes_at: tuple[int, ...], halves: int, mode: AutoresetMode
) -> None:
    """Steps of a player that died let a version come early: those of it then count for the next."""
    buffer = Kept()
    model: Any = Early(buffer, comes_at)
    runners = [
        Runner(SyncVectorEnv([Count] * 2, autoreset_mode=mode), model, buffer)
        for _ in range(halves)
    ]
    runner = runners[0] if halves == 1 else AlternatingRunners(runners)

    async def play() -> None:
        while len(model.brought) < 4:
            await collect(runner, 6)
            await runner.next_version()

    asyncio.run(play())
    runner.close()
    whole = 6 * 2 * halves
    assert min(model.brought) >= whole, "else both wait for each other"
    assert model.brought[-1] == whole, "no steps come twice"


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a niceness of its own on Linux")
def test_what_plays_leaves_the_cores_to_a_trainer() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    seen: list[int] = []
    answered = threading.Event()

    def make() -> Runner:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        answered.wait(30)  # else `poll` may raise this already
        raise RuntimeError("the end of the test")

    RolloutWorker(make, steps=5, lockstep=False).poll()
    answered.set()
    _join_rollouts()
    assert seen == [min(19, before + 4)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before, "who answers polls"


def _join_rollouts() -> None:
    for thread in threading.enumerate():
        if thread.name == "rollouts":
            thread.join(30)
            assert not thread.is_alive()


# Squashed actions.

LOW, HIGH = np.array([-2.0, 0.5]), np.array([2.0, 0.75])
MEAN, LOG_STD = np.array([0.4, -1.1]), np.array([-0.3, 0.6])


def density(action: np.ndarray, d: int) -> np.ndarray:
    """The squashed Gaussian's density in float64, by the change of variables with atanh."""
    unit = 2 * (action - LOW[d]) / (HIGH[d] - LOW[d]) - 1
    before, std = np.arctanh(unit), np.exp(LOG_STD[d])
    normal = np.exp(-0.5 * ((before - MEAN[d]) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    return np.asarray(normal / (1 - unit**2) / (0.5 * (HIGH[d] - LOW[d])))


def outputs_of(n: int | None) -> dict[str, Any]:
    leaves = {"mean": MEAN, "log_std": LOG_STD, "low": LOW, "high": HIGH}
    rows = {name: leaf.astype(FLOAT) for name, leaf in leaves.items()}
    return rows if n is None else {k: np.tile(v, (n, 1)) for k, v in rows.items()}


def test_the_independent_density_is_one() -> None:
    for d in range(2):
        edges = np.linspace(LOW[d], HIGH[d], 400_001)
        middle = (edges[1:] + edges[:-1]) / 2
        assert density(middle, d).mean() * (HIGH[d] - LOW[d]) == pytest.approx(1.0, abs=1e-4)


def test_squashed_draws_have_their_density_and_lie_within_the_bounds() -> None:
    n = 20_000
    action, log_prob = BatchDiagonalGaussian(n, 2).sample(outputs_of(n), np.random.default_rng(3))
    assert action.dtype == np.float32
    assert (action >= LOW).all()
    assert (action <= HIGH).all()
    inside = (np.abs(2 * (action - LOW) / (HIGH - LOW) - 1) < 0.999).all(1)
    kept = action[inside].astype(np.float64)
    wanted = sum(np.log(density(kept[:, d], d)) for d in range(2))
    np.testing.assert_allclose(log_prob[inside], wanted, atol=2e-3)
    for d in range(2):  # as many below each quantile as the density says
        edges = np.linspace(LOW[d], HIGH[d], 100_001)
        cumulated = np.cumsum(density((edges[1:] + edges[:-1]) / 2, d)) * np.diff(edges)[0]
        for share in (0.1, 0.5, 0.9):
            quantile = edges[1 + np.searchsorted(cumulated, share)]
            assert np.mean(action[:, d] < quantile) == pytest.approx(share, abs=6 * 0.5 / n**0.5)


def test_one_row_is_decoded_as_a_batch_is() -> None:
    decoder, rng = DiagonalGaussian(2), random.Random(5)
    for _ in range(50):
        action, log_prob = decoder.sample(outputs_of(None), rng)
        wanted = sum(np.log(density(action[d].astype(np.float64), d)) for d in range(2))
        assert log_prob == pytest.approx(float(wanted), abs=2e-3)
    action, log_prob = decoder.mode(outputs_of(None))
    np.testing.assert_allclose(action, LOW + (HIGH - LOW) * (np.tanh(MEAN) + 1) / 2, rtol=1e-6)
    wanted = sum(np.log(density(action[d].astype(np.float64), d)) for d in range(2))
    assert log_prob == pytest.approx(float(wanted), abs=1e-4)


def test_the_slope_is_that_of_the_squashing() -> None:
    at, step = np.linspace(-6, 6, 121)[:, None] * np.ones(2), 1e-6
    difference = (_squash64(at + step) - _squash64(at - step)) / (2 * step)
    np.testing.assert_allclose(tanh_log_slope(at, LOW, HIGH), np.log(difference), atol=1e-4)
    far = np.array([[-1e4, 1e4], [-80.0, 80.0]])
    assert np.isfinite(tanh_log_slope(far, LOW, HIGH)).all()
    assert (tanh_squash(far, LOW, HIGH) == [LOW[0], HIGH[1]]).all()


def _squash64(before: np.ndarray) -> np.ndarray:
    return np.asarray(LOW + (HIGH - LOW) / (1 + np.exp(-2 * before)))


def test_bounds_that_do_not_fit_are_named() -> None:
    one, rows = outputs_of(None), outputs_of(3)
    batch = BatchDiagonalGaussian(3, 2)
    with pytest.raises(SpecError, match=r"high: expected float32 \(3, 2\), got nothing"):
        batch.sample({**rows, "high": None}, np.random.default_rng(0))
    with pytest.raises(SpecError, match="model output low: expected finite values"):
        batch.sample({**rows, "low": np.full((3, 2), -np.inf)}, np.random.default_rng(0))
    with pytest.raises(SpecError, match=r"high: expected float32 \(2,\), got nothing"):
        DiagonalGaussian(2).mode({**one, "high": None})
    with pytest.raises(SpecError, match="model output high: expected finite values"):
        DiagonalGaussian(2).mode({**one, "high": np.full(2, np.inf)})
    spec = {name: ArraySpec(FLOAT, (2,)) for name in one}
    check_outputs(spec)
    with pytest.raises(SpecError, match=r"low: expected float32 \(2,\), got float32 \(1,\)"):
        check_outputs({**spec, "low": ArraySpec(FLOAT, (1,))})


# On Ray.


def make_counting(worker: int) -> Runner:
    """Runs in the worker's process."""
    return make_runner(Kept(), n=worker + 1)


def make_failing(worker: int) -> Runner:
    """Likewise."""
    return make_runner(Kept(), env=Failing)


def check_that_one_may_stand_still(rollouts: Any) -> None:
    """The other goes on and keeps nobody waiting; what the first played meanwhile is not lost."""
    first, _ = rollouts._pool.pids()
    os.kill(first, signal.SIGSTOP)
    try:
        time.sleep(0.2)  # the last call took all that was played: the other plays on
        started = time.monotonic()
        frames = [rollouts.poll().frames for _ in range(3)]
        assert time.monotonic() - started < 5, "each waits half a second for it"
        assert min(frames) > 0, "the other's"
        assert list(rollouts._reports._asked) == [0]
    finally:
        os.kill(first, signal.SIGCONT)
    wait_for(lambda: rollouts.poll().frames > 0 and not rollouts._reports._asked)


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_worker_is_replaced_and_an_error_reaches_the_driver() -> None:
    from bray_actor.remote import RemoteRollouts

    with pytest.raises(ConfigError, match="steps: expected 1 or more, got 0"):
        RemoteRollouts("none", make_counting, steps=0, lockstep=False)
    metrics.drain()
    rollouts = RemoteRollouts("rollouts", make_counting, num_workers=2, steps=4, lockstep=False)
    try:
        wait_for(lambda: rollouts.poll().frames > 0)
        os.kill(rollouts._pool.pids()[0], signal.SIGKILL)
        wait_for(lambda: bool(rollouts.poll() and rollouts._reports._lost))
        wait_for(lambda: rollouts.poll().frames > 0 and not rollouts._reports._lost)
        lost = [s for s in metrics.drain() if s.name == "actor/rollouts_lost"]
        assert sum(s.total for s in lost) == 1
        os.kill(rollouts._pool.pids()[1], signal.SIGKILL)
        rollouts._pool.wait_ready(60)
        wait_for(lambda: rollouts.poll().frames > 0 and not rollouts._reports._lost)
        lost = [s for s in metrics.drain() if s.name == "actor/rollouts_lost"]
        assert sum(s.total for s in lost) == 1, "it was back before anybody asked"
        check_that_one_may_stand_still(rollouts)
    finally:
        rollouts.close()
    failing = RemoteRollouts("failing", make_failing, steps=4, lockstep=False)
    try:
        with pytest.raises(ValueError, match="the simulator broke"):
            wait_for(lambda: failing.poll().frames < 0)
    finally:
        failing.close()
