from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from bray_actor import SegmentWriter, StepBudget, segment_spec
from bray_actor.segment import observation_spec, unstacked
from bray_core import nested
from bray_core.errors import ConfigError, DeadlineError, SpecError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec

T = 4
OBSERVATION = {"a": ArraySpec(np.dtype("f4"), (3,)), "b": (ArraySpec(np.dtype("u1"), ()),)}
ACTION = ArraySpec(np.dtype("i8"), ())
LAYOUT = Layout(segment_spec(OBSERVATION, ACTION, T))


def observation(number: int) -> Any:
    return {"a": np.full(3, number, np.float32), "b": (np.uint8(number),)}


def write(writer: SegmentWriter, number: int, **outcome: Any) -> None:
    writer.begin_step(observation(number), number, log_prob=-0.5, value=number, version=7)
    writer.finish_step(float(number), **outcome)


def test_steps_come_back_as_columns() -> None:
    writer = SegmentWriter(LAYOUT)
    for number in (1, 2, 3):
        write(writer, number, terminated=number == 3)
    assert len(writer) == 3
    tree = writer.finish(None, episode_return=6.0, episode_length=3).tree
    assert tree["observation"]["a"][:, 0].tolist() == [1, 2, 3, 0]
    assert tree["observation"]["b"][0].tolist() == [1, 2, 3, 0]
    assert tree["action"].tolist() == tree["value"].tolist() == [1, 2, 3, 0]
    assert tree["reward"].tolist() == [1, 2, 3, 0]
    assert tree["terminated"].tolist() == [False, False, True, False]
    assert tree["policy_version"].tolist() == [7, 7, 7, 0]
    assert (int(tree["length"]), float(tree["episode_return"])) == (3, 6.0)
    assert not tree["final_observation"]["a"].any()
    assert len(writer) == 0


def test_a_cut_segment_carries_the_observation_after_it() -> None:
    writer = SegmentWriter(LAYOUT)
    for number in range(T):
        write(writer, number)
    assert writer.is_full
    first = writer.finish(observation(9)).tree
    assert first["final_observation"]["a"].tolist() == [9, 9, 9]
    assert math.isnan(first["episode_return"])
    write(writer, 5, truncated=True)
    second = writer.finish(observation(6)).tree
    assert second["truncated"].tolist() == [True, False, False, False]
    assert first["reward"].tolist() == [0, 1, 2, 3], "a segment handed over is not written to"


def test_what_does_not_fit_is_named() -> None:
    writer = SegmentWriter(LAYOUT)
    bad = {**observation(1), "a": np.zeros(2, np.float32)}
    with pytest.raises(SpecError, match=r"observation/a: expected float32 \(3,\), got float32 \(2"):
        writer.begin_step(bad, 0, log_prob=0, value=0, version=0)
    with pytest.raises(SpecError, match=r"observation/b\[0\]: expected uint8 \(\), got nothing"):
        writer.begin_step({"a": np.zeros(3)}, 0, log_prob=0, value=0, version=0)
    with pytest.raises(SpecError, match="no step was begun"):
        writer.finish_step(0.0)
    with pytest.raises(SpecError, match="one or more finished steps"):
        writer.finish(None)
    writer.begin_step(observation(1), 0, log_prob=0, value=0, version=0)
    with pytest.raises(SpecError, match="finish the step"):
        writer.begin_step(observation(1), 0, log_prob=0, value=0, version=0)
    assert writer.discard() == 1
    with pytest.raises(ConfigError, match="length: expected 1 or more, got 0"):
        segment_spec(OBSERVATION, ACTION, 0)


def test_values_that_would_change_their_kind_are_refused() -> None:
    writer = SegmentWriter(LAYOUT)
    known = {"log_prob": 0.0, "value": 0.0, "version": 0}
    for action in (0.7, np.float32(0.7), "left"):
        with pytest.raises(SpecError, match=r"action: expected int64 \(\), got"):
            writer.begin_step(observation(1), action, **known)  # type: ignore[arg-type]
    more = {**observation(1), "c": np.zeros(2)}
    with pytest.raises(SpecError, match="observation/c: unexpected"):
        writer.begin_step(more, 0, **known)  # type: ignore[arg-type]
    wider = {**observation(1), "a": np.zeros(3, np.float64)}
    writer.begin_step(wider, np.int32(1), **known)  # type: ignore[arg-type]
    assert writer.discard() == 1


def test_extra_leaves_are_the_algorithms() -> None:
    pair = ArraySpec(np.dtype("f4"), (2,))
    layout = Layout(segment_spec(OBSERVATION, ACTION, T, extra={"logits": pair}))
    writer = SegmentWriter(layout)
    assert writer.extra == ("logits",)
    for number in (1, 2):
        writer.begin_step(
            observation(number),
            0,
            log_prob=0,
            value=0,
            version=0,
            extra={"logits": np.full(2, number, np.float32), "other": 0},
        )
        writer.finish_step(0.0)
    assert writer.finish(None).tree["logits"].tolist() == [[1, 1], [2, 2], [0, 0], [0, 0]]
    with pytest.raises(SpecError, match=r"logits: expected float32 \(2,\), got nothing"):
        writer.begin_step(observation(1), 0, log_prob=0, value=0, version=0)
    with pytest.raises(ConfigError, match=r"extra: \['reward'\] are leaves of every segment"):
        segment_spec(OBSERVATION, ACTION, T, extra={"reward": pair})


def test_the_spec_has_the_words_of_the_field() -> None:
    names = set(nested.flatten(segment_spec(ACTION, ACTION, 2)))
    assert {"observation", "action", "reward", "terminated", "truncated"} <= names
    assert {"log_prob", "value", "policy_version", "length", "final_observation"} <= names


class Versions:
    """The part of a model that a budget looks at."""

    def __init__(self) -> None:
        self.version = 0
        self._changed = asyncio.Event()

    def publish(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        try:
            async with asyncio.timeout(timeout_s):
                while self.version < version:
                    await self._changed.wait()
        except TimeoutError:
            raise DeadlineError("no version") from None
        return self.version


class TestStepBudget:
    async def test_so_many_steps_per_version(self) -> None:
        model = Versions()
        budget = StepBudget(3, model)  # type: ignore[arg-type]
        assert [budget.try_acquire() for _ in range(5)] == [True] * 3 + [False] * 2
        model.publish()
        assert [budget.try_acquire() for _ in range(4)] == [True] * 3 + [False]

    async def test_all_who_wait_go_on_after_a_publish(self) -> None:
        model = Versions()
        budget = StepBudget(2, model)  # type: ignore[arg-type]
        taken: list[int] = []

        async def lane(number: int) -> None:
            for _ in range(3):
                while not budget.try_acquire():
                    await budget.wait()
                taken.append(model.version)
                await asyncio.sleep(0)

        lanes = asyncio.gather(*(lane(n) for n in range(4)))
        while not lanes.done():
            for _ in range(20):
                await asyncio.sleep(0)
            model.publish()
        await lanes
        assert sorted(taken) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]

    async def test_a_refund_wakes_someone(self) -> None:
        budget = StepBudget(1, Versions())  # type: ignore[arg-type]
        assert budget.try_acquire()
        waiter = asyncio.create_task(budget.wait())
        await asyncio.sleep(0)
        budget.refund(1)
        async with asyncio.timeout(5):
            await waiter
        assert budget.try_acquire()
        assert not budget.try_acquire()

    async def test_late_refunds_admit_no_more_than_the_budget(self) -> None:
        model = Versions()
        budget = StepBudget(3, model)  # type: ignore[arg-type]
        assert budget.try_acquire()
        model.publish()
        budget.refund(1)
        assert [budget.try_acquire() for _ in range(4)] == [True] * 3 + [False]
        model.publish()
        assert budget.try_acquire()
        budget.refund(3)
        assert [budget.try_acquire() for _ in range(4)] == [True] * 3 + [False]

    def with_a_lent_step(self, model: Versions) -> StepBudget:
        """Return a budget of four steps with three recorded, and one and a lent one taken."""
        budget = StepBudget(4, model)  # type: ignore[arg-type]
        budget.take(4)
        budget.note_pushed(3)
        assert budget.lend(), "a step is missing, which another session may hold"
        budget.take(1)
        return budget

    def test_nothing_is_lent_while_the_trainer_trains(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = Versions()
        budget = self.with_a_lent_step(model)
        budget.note_pushed(1)
        assert not budget.lend(), "all of the version is recorded; the lent step is open"
        model.publish()
        assert budget.left == 3
        budget.take(3)
        budget.note_pushed(4)
        assert not budget.lend()
        monkeypatch.setattr("bray_actor.policy.step_budget._SHORT_S", 0.0)
        assert budget.lend(), "the trainer may miss one"

    def test_a_lent_step_that_went_with_its_replay_is_not_taken_off_the_next(self) -> None:
        model = Versions()
        budget = StepBudget(4, model)  # type: ignore[arg-type]
        budget.take(4)
        budget.note_pushed(2)
        assert budget.lend()
        budget.take(1)
        budget.note_pushed(1)
        budget.note_pushed(2)  # the replay takes five steps
        model.publish()
        assert budget.left == 4
        budget.take(4)
        budget.note_pushed(3)
        assert budget.lend()
        budget.take(1)
        budget.note_pushed(1)
        budget.note_pushed(1)  # this one is left for the next replay
        model.publish()
        assert budget.left == 3

    @pytest.mark.parametrize(("late", "left"), [([2], 4), ([1, 1], 3)])
    def test_steps_noted_after_their_version_came_are_counted_by_their_replay(
        self, late: list[int], left: int
    ) -> None:
        model = Versions()
        budget = self.with_a_lent_step(model)
        model.publish()
        assert budget.left == 3, "a step may have been left for the next replay"
        for steps in late:
            budget.note_pushed(steps)
        assert budget.left == left
        budget.take(left)
        budget.note_pushed(left)
        assert budget.left == 0

    async def test_waiting_has_a_deadline(self) -> None:
        budget = StepBudget(1, Versions(), timeout_s=0.05)  # type: ignore[arg-type]
        budget.try_acquire()
        with pytest.raises(DeadlineError):
            await asyncio.gather(budget.wait(), budget.wait())
        with pytest.raises(ConfigError, match="steps: expected 1 or more, got 0"):
            StepBudget(0, Versions())  # type: ignore[arg-type]


C = 3
STACKS = ArraySpec(np.dtype("u1"), (C, 2, 2))


def stack_of_frames(newest: int) -> Any:
    """The frames `newest - C + 1 … newest`, each filled with its number."""
    return np.arange(newest - C + 1, newest + 1, dtype=np.uint8)[:, None, None] * np.ones(
        (1, 2, 2), np.uint8
    )


class TestStacks:
    def test_each_frame_is_stored_once(self) -> None:
        once = Layout(segment_spec(STACKS, ACTION, T, stack=True))
        whole = Layout(segment_spec(STACKS, ACTION, T))
        assert "observation" not in once.spec
        assert once.spec["frames"].shape == (T + C, 2, 2)
        trees, wanted = [], []
        for length in (T, 2, 1):  # cut, cut early, terminated
            writers = SegmentWriter(once), SegmentWriter(whole)
            for writer in writers:
                for number in range(10, 10 + length):
                    writer.begin_step(
                        stack_of_frames(number), 0, log_prob=0, value=number, version=1
                    )
                    writer.finish_step(1.0, terminated=length == 1)
            final = None if length == 1 else stack_of_frames(10 + length)
            trees.append(writers[0].finish(final).tree)
            wanted.append(writers[1].finish(final).tree)
        lengths = np.array([tree["length"] for tree in trees])
        frames = np.stack([tree["frames"] for tree in trees])
        observation, last = unstacked(frames, lengths, T)
        assert (observation.shape, last.shape) == ((3, T, C, 2, 2), (3, C, 2, 2))
        assert not observation.flags.writeable
        for i, tree in enumerate(wanted):
            length = int(tree["length"])
            np.testing.assert_array_equal(observation[i, :length], tree["observation"][:length])
            if length > 1:
                np.testing.assert_array_equal(last[i], tree["final_observation"])
            for name in set(tree) & set(trees[i]):
                np.testing.assert_array_equal(tree[name], trees[i][name], name)

    def test_what_is_no_stack_is_refused(self) -> None:
        known = {"log_prob": 0.0, "value": 0.0, "version": 0}
        writer = SegmentWriter(Layout(segment_spec(STACKS, ACTION, T, stack=True)))
        writer.begin_step(stack_of_frames(5), 0, **known)  # type: ignore[arg-type]
        writer.finish_step(0.0)
        with pytest.raises(SpecError, match="expected stacked frames, each step's moved on by one"):
            writer.begin_step(stack_of_frames(7), 0, **known)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="leave stack at False"):
            writer.finish(stack_of_frames(5))
        with pytest.raises(SpecError, match=r"observation: expected uint8 \(3, 2, 2\), got uint8"):
            writer.begin_step(stack_of_frames(6)[:2], 0, **known)  # type: ignore[arg-type]
        writer.begin_step(stack_of_frames(6), 0, **known)  # type: ignore[arg-type]
        for spec in (OBSERVATION, ACTION):
            with pytest.raises(ConfigError, match=r"stack: expected an observation \[C, …\] that"):
                segment_spec(spec, ACTION, T, stack=True)
        with pytest.raises(ConfigError, match=r"extra: \['frames'\] are leaves of every segment"):
            segment_spec(STACKS, ACTION, T, extra={"frames": ACTION})


@pytest.mark.parametrize("stack", [False, True])
def test_the_spec_of_one_observation(stack: bool) -> None:
    seen, number = ArraySpec(np.dtype("u1"), (4, 8, 8)), ArraySpec(np.dtype("i8"), ())
    layout = Layout(segment_spec(seen, number, 5, stack=stack))
    assert observation_spec(layout) == seen
