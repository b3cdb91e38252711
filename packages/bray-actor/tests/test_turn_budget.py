"""Turns of steps that another thread grants."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from bray_actor import PolicyActor, PolicyConfig, StepBudget, segment_spec
from bray_actor.policy.turn_budget import TurnBudget
from bray_buffer import Buffer, BufferConfig
from bray_core import codec, nested
from bray_core.errors import DeadlineError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_core.protocols import Answer

LAYOUT = Layout(nested.spec({"length": np.int32(0)}))


def segment(length: int) -> Packed:
    return Packed(LAYOUT, LAYOUT.pack({"length": np.int32(length)}))


def test_a_turn_is_over_when_its_steps_are_in_segments() -> None:
    budget = TurnBudget(LAYOUT)
    assert budget.wait_played(0), "nothing was granted"
    budget.grant(5)
    assert not budget.wait_played(0)
    budget.take(3)
    assert budget.left == 2
    budget.push(segment(3))
    assert not budget.wait_played(0), "two steps are left"
    budget.take(2)
    budget.refund(1)
    budget.push(segment(1))
    assert budget.left == 1
    assert not budget.wait_played(0), "one was given back"
    budget.take(1)
    budget.push(segment(1))
    assert budget.wait_played(0)
    assert [int(s.tree["length"]) for s in budget.segments()] == [3, 1, 1]
    assert budget.segments() == []


def test_a_lent_step_that_was_pushed_in_its_turn_is_not_taken_off_the_next() -> None:
    budget = TurnBudget(LAYOUT)
    budget.grant(2)
    budget.take(2)
    assert budget.lend()
    budget.take(1)
    budget.push(segment(3))  # the lent step, too
    assert budget.wait_played(0)
    budget.grant(2)
    assert budget.left == 2
    budget.take(2)
    assert budget.lend()
    budget.take(1)
    budget.push(segment(2))
    assert budget.wait_played(0)
    budget.grant(2)
    assert budget.left == 1, "one of these was taken already"


async def test_whoever_waits_is_woken_by_another_thread() -> None:
    budget = TurnBudget(LAYOUT)
    waiting = [asyncio.create_task(budget.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    thread = threading.Thread(target=budget.grant, args=(1,))
    thread.start()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    thread.join()
    await asyncio.wait_for(budget.wait(), 5)  # there are some left
    budget.take(1)
    again = asyncio.create_task(budget.wait())
    await asyncio.sleep(0)
    assert not again.done()
    budget.refund(1)
    await asyncio.wait_for(again, 5)


def test_the_thread_that_grants_is_woken_by_the_last_segment() -> None:
    budget = TurnBudget(LAYOUT)
    budget.grant(2)
    budget.take(2)
    timer = threading.Timer(0.05, budget.push, [segment(2)])
    timer.start()
    assert budget.wait_played(30)


def test_a_loop_that_has_ended_is_not_woken() -> None:
    budget = TurnBudget(LAYOUT)

    async def leave() -> None:
        asyncio.get_running_loop().create_task(budget.wait())
        await asyncio.sleep(0)

    asyncio.run(leave())
    budget.grant(1)


def test_other_segments_are_refused() -> None:
    other = Layout(nested.spec({"length": np.int64(0)}))
    with pytest.raises(SpecError, match="expected the layout that this turn is of"):
        TurnBudget(LAYOUT).push(Packed(other, other.empty()))


class Even:
    """A model that finds all actions alike."""

    version = 0

    async def infer(self, *inputs: Any, batch: bool = False) -> Answer:
        return Answer({"logits": np.zeros(2, np.float32), "value": np.float32(0)}, 0)


async def test_a_step_that_a_full_buffer_drops_is_given_back() -> None:
    layout = Layout(segment_spec(ArraySpec(np.dtype("f4"), ()), ArraySpec(np.dtype("i8"), ()), 1))
    body = codec.encode({"observation": np.float32(0), "reward": 1.0})
    model: Any = Even()
    for push_timeout_s in (0.0, 30.0):
        buffer = Buffer(layout, BufferConfig(batch_size=1, capacity=1, when_full="drop_newest"))
        budget = StepBudget(3, model)
        make = PolicyActor.factory(
            model, PolicyConfig(), buffer=buffer, budget=budget, push_timeout_s=push_timeout_s
        )
        actor = make("0/0")
        for _ in range(3):
            await actor.tick(body)
        assert budget.left == 1, "of three steps one is recorded, and one is open"


async def test_a_full_buffer_holds_a_session_back_where_that_is_wanted() -> None:
    layout = Layout(segment_spec(ArraySpec(np.dtype("f4"), ()), ArraySpec(np.dtype("i8"), ()), 1))
    body = codec.encode({"observation": np.float32(0), "reward": 1.0})
    model: Any = Even()
    for push_timeout_s in (0.0, 0.05, 30.0):
        buffer = Buffer(layout, BufferConfig(batch_size=1, capacity=1, when_full="block"))
        make = PolicyActor.factory(
            model, PolicyConfig(), buffer=buffer, push_timeout_s=push_timeout_s
        )
        actor = make("0/0")
        await actor.tick(body)
        await actor.tick(body)  # fills the buffer
        third = asyncio.create_task(actor.tick(body))
        done, _ = await asyncio.wait([third], timeout=0.5)
        if push_timeout_s == 0.0:
            assert done, "the segment was dropped"
            third.result()
        elif push_timeout_s < 1:
            with pytest.raises(DeadlineError, match="found no room"):
                third.result()
        else:
            assert not done
            buffer.pop(timeout_s=1)
            await asyncio.wait_for(third, 5)
        assert buffer.stats()["queued"] == 1
