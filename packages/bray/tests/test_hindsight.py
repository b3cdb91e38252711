"""Hindsight: relabelled transitions against a plain loop, refusals, and that it learns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bray
from bray.algorithms.crossq import CrossQ
from bray.algorithms.dqn import DQN
from bray.algorithms.sac import SAC
from bray.algorithms.td3 import TD3
from bray.algorithms.tqc import TQC
from bray.goal import Goal
from bray.sources.environments import read_spaces
from bray.sources.goal_rewards import GoalRewards, Judgement, check_goals
from bray.sources.hindsight import HindsightBuffer
from bray_actor import segment_spec
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.segment import SegmentWriter
from bray_core.action_vector import step_specs
from bray_core.errors import BrayError, ConfigError
from bray_core.layout import Layout, Packed

pytestmark = pytest.mark.usefixtures("evaluated_here")

TESTS = Path(__file__).parent
REACH = "goal_tasks:BrayTestReach-v0"
ENDING = "goal_tasks:BrayTestEndingReach-v0"
SMALL = {
    "hidden": (16,),
    "num_envs": 2,
    "steps_per_collect": 8,
    "replays_per_collect": 2,
    "batch_size": 16,
    "warmup_frames": 32,
}
NEAR = 0.05

Seen = dict[str, Any]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and those that evaluate import the tasks."""
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


class Pushed:
    """A buffer that keeps what is pushed."""

    def __init__(self, length: int = 4) -> None:
        spaces = read_spaces(REACH)
        self.layout = Layout(segment_spec(*step_specs(spaces), length))
        self.segments: list[Seen] = []

    def push(self, segments: Packed, **options: Any) -> int:
        blocks = np.atleast_2d(segments.block)
        self.segments += [self.layout.views(block) for block in blocks]
        return len(blocks)


def seen(place: Any, goal: Any) -> Seen:
    place, goal = np.asarray(place, np.float32), np.asarray(goal, np.float32)
    return {"observation": 10 * place, "achieved_goal": place, "desired_goal": goal}


def played(task: str, count: int, lengths: tuple[int, ...], *, ends: str = "truncated") -> Pushed:
    """Push episodes of two environments by turns, in segments of up to 4 steps."""
    buffer = Pushed()
    hindsight = HindsightBuffer(buffer, GoalRewards(EnvironmentSpec.of(task)), count, seed=3)
    random = np.random.default_rng(0)
    episodes = []
    for number, length in enumerate(lengths):
        places = np.cumsum(random.uniform(-0.04, 0.04, (length + 1, 2)), 0) + number
        episodes.append((places, random.uniform(-1, 1, 2), SegmentWriter(buffer.layout)))
    for start in range(0, max(lengths), 4):
        for (places, goal, writer), length in zip(episodes, lengths, strict=True):
            for at in range(start, min(start + 4, length)):
                writer.begin_step(
                    seen(places[at], goal),
                    np.full(2, 0.01 * at, np.float32),
                    log_prob=-0.5,
                    value=0.0,
                    version=7,
                )
                writer.finish_step(-1.0, **({ends: True} if at == length - 1 else {}))
            if len(writer):
                last = min(start + 4, length)
                has_next = ends == "truncated" or last < length
                hindsight.push(writer.finish(seen(places[last], goal) if has_next else None))
    return buffer


@pytest.mark.parametrize(
    ("task", "ends"), [(REACH, "truncated"), (ENDING, "truncated"), (ENDING, "terminated")]
)
def test_steps_have_goals_that_were_achieved_later(task: str, ends: str) -> None:
    lengths, count = (11, 6), 100
    plain = played(task, 0, lengths, ends=ends).segments
    found = played(task, count, lengths, ends=ends).segments
    number_of_real = len(plain)
    assert number_of_real == 3 + 2
    # The shorter episode ends in the second turn, after four segments; the longer one in the third.
    known = [length - (ends == "terminated") for length in lengths]
    first = found[4 : 4 + count * known[1]]
    second = found[5 + count * known[1] :]
    assert len(second) == count * known[0]
    for segments, real, steps in (
        (second, [plain[0], plain[2], plain[4]], known[0]),
        (first, [plain[1], plain[3]], known[1]),
    ):
        observations = [
            {name: leaf[at] for name, leaf in one["observation"].items()}
            for one in real
            for at in range(int(one["length"]))
        ]
        observations.append(real[-1]["final_observation"])
        actions = [one["action"][at] for one in real for at in range(int(one["length"]))]
        drawn = []
        for row, one in enumerate(segments):
            step = row // count
            goal = one["observation"]["desired_goal"][0]
            later = [
                at
                for at in range(step, steps)
                if np.array_equal(observations[at + 1]["achieved_goal"], goal)
            ]
            assert len(later) == 1
            drawn.append(later[0] - step)
            assert np.array_equal(one["final_observation"]["desired_goal"], goal)
            for name in ("observation", "achieved_goal"):
                assert np.array_equal(one["observation"][name][0], observations[step][name])
                assert np.array_equal(one["final_observation"][name], observations[step + 1][name])
            assert np.array_equal(one["action"][0], actions[step])
            distance = np.linalg.norm(observations[step + 1]["achieved_goal"] - goal)
            assert one["reward"][0] == (0.0 if distance <= NEAR else -1.0)
            assert one["terminated"][0] == (task == ENDING and distance <= NEAR)
            assert not one["truncated"][0]
            assert (int(one["length"]), int(one["policy_version"][0])) == (1, 7)
            assert np.isnan(one["episode_return"])
        assert set(drawn) == set(range(steps))  # from the next state up to the end


def test_a_long_episode_is_relabelled_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bray.sources.hindsight._MOST_STEPS", 8)
    monkeypatch.setattr("bray.sources.hindsight._ROWS", 3)
    found = played(REACH, 2, (11,)).segments
    assert [int(one["length"]) for one in found] == [4, 4, *[1] * 16, 3, *[1] * 6]


@pytest.mark.parametrize(
    ("function", "takes_batches"),
    [
        (lambda one, other, info: -np.abs(one - other).sum(-1), True),
        (lambda one, other, info: -float(np.abs(one - other).sum()), False),
        (lambda one, other, info: -abs(one[0] - other[0]), False),
        (lambda one, other, info: 1.0 if one[0] > other[0] else 0.0, False),
    ],
    ids=["batch", "sum", "wrong axis", "branch"],
)
def test_pairs_are_asked_together_where_that_is_the_same(
    function: Callable[..., Any], takes_batches: bool
) -> None:
    random = np.random.default_rng(1)
    judgement = Judgement("compute_reward", function)
    for count in (1, 2, 7):
        one, other = random.normal(size=(2, count, 2))
        wanted = [float(function(a, b, {})) for a, b in zip(one, other, strict=True)]
        assert np.allclose(judgement(one, other), wanted)
    assert judgement.takes_batches is takes_batches


def test_a_reward_that_needs_info_is_refused() -> None:
    judgement = Judgement("compute_reward", lambda one, other, info: info["crashed"])
    with pytest.raises(
        BrayError, match=r"compute_reward: expected a number .* KeyError: 'crashed'"
    ):
        judgement(np.zeros((2, 2)), np.zeros((2, 2)))


def test_other_rewards_than_computed_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bray.sources.hindsight"):
        played(REACH, 1, (6, 6))
        assert "recorded" not in caplog.text
        goals = GoalRewards(EnvironmentSpec.of("goal_tasks:BrayTestBonus-v0"))
        hindsight = HindsightBuffer(Pushed(), goals, 1, seed=0)
        steps = {
            "reward": np.full(6, -1.5, np.float32),
            "truncated": np.zeros(6, bool),
            "observation": {"desired_goal": np.ones((6, 2), np.float32)},
            "next_observation": {"achieved_goal": np.zeros((6, 2), np.float32)},
        }
        hindsight._compare(steps, 6)
        hindsight._compare(steps, 6)
    (record,) = (r for r in caplog.records if r.name.startswith("bray"))
    assert "6 of 6 rewards" in record.message
    assert "recorded -1.5, computed -1" in record.message


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        (DQN, {}, "agent.n_step: expected 1 with buffer.hindsight, got 3"),
        (SAC, {"n_step": 2}, "agent.n_step: expected 1 with buffer.hindsight, got 2"),
        (SAC, {"normalize_reward": True}, "trainer.normalize_reward: expected False"),
        (SAC, {"num_processes": 1}, "source.num_processes: expected 0 .* over the wire"),
        (SAC, {"frame_skip": 2}, "source.frame_skip: expected 1"),
        (SAC, {"hindsight": -1}, "hindsight: expected 0 or more, got -1"),
    ],
)
def test_what_cannot_be_relabelled_is_refused(
    algorithm: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        algorithm.of(REACH, **{"hindsight": 4, **settings})


def test_environments_without_goals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"buffer\.hindsight: Pendulum-v1: expected observations"):
        check_goals(read_spaces("Pendulum-v1"))
    algorithm = SAC.of("goal_tasks:BrayTestNoReward-v0", hindsight=4)
    with (
        bray.init(tmp_path, "trial") as run,
        pytest.raises(ConfigError, match=r"NoReward-v0: expected .*compute_reward\(.*without"),
    ):
        algorithm.train(run, goal=Goal(max_frames=32))


def test_the_proportion_on_ray_counts_relabelled_transitions() -> None:
    settings = {"num_envs": 4, "steps_per_collect": 8, "replays_per_collect": 10, "batch_size": 64}
    rates = [
        SAC.of(REACH, hindsight=count, **settings).buffer(is_local=False).samples_per_insert
        for count in (0, 4)
    ]
    assert rates == [20.0, 4.0]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (SAC, {}),
        (TD3, {}),
        (TQC, {}),
        (CrossQ, {}),
        (DQN, {"n_step": 1, "kwargs": {"discrete": True}}),
        (DQN, {"n_step": 1, "kwargs": {"discrete": True}, "prioritized": True}),
    ],
    ids=["sac", "td3", "tqc", "crossq", "dqn", "dqn prioritized"],
)
def test_algorithms_train_on_relabelled_transitions(
    tmp_path: Path, algorithm: Any, settings: dict[str, Any]
) -> None:
    made = algorithm.of(REACH, **SMALL, **settings, hindsight=4)
    with bray.init(tmp_path, "trial") as run:
        outcome = made.train(run, goal=Goal(max_frames=160, evaluation_episodes=1), seed=1)
        assert outcome.version > 0


@pytest.mark.long
@pytest.mark.ray
def test_workers_relabel_what_they_play(ray_cluster: None, tmp_path: Path) -> None:
    task = f"{TESTS / 'goal_tasks.py'}:timed_reach"
    algorithm = SAC.of(task, **SMALL, hindsight=8)
    with bray.init(tmp_path, "trial", "ray") as run:
        goal = Goal(max_frames=1_000, evaluation_episodes=1)
        assert algorithm.train(run, goal=goal, seed=1).version > 0


def success(folder: Path, hindsight: int) -> float:
    """Return the share of episodes that reach their goal after a short training."""
    settings = {"hidden": (64, 64), "num_envs": 4, "gamma": 0.95, "replays_per_collect": 32}
    algorithm = SAC.of(REACH, **settings, hindsight=hindsight)
    goal = Goal(max_frames=6_000, evaluation_episodes=50)
    with bray.init(folder, f"trial-{hindsight}") as run:
        outcome = algorithm.train(run, goal=goal, seed=1)
    return float(np.mean([one > -50 for one in outcome.episode_returns]))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_goals_are_reached_that_are_not_without(tmp_path: Path) -> None:
    with_hindsight, without = success(tmp_path, 4), success(tmp_path, 0)
    assert with_hindsight > 0.6
    assert with_hindsight > without + 0.3
