"""A replay that was saved and restored goes on as if nothing had been."""

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import ClosedError, DeadlineError, SpecError

KINDS: dict[str, dict[str, Any]] = {
    "segment": {"capacity": 7},
    "transition": {"capacity": 33, "unit": "transition", "n_step": 3},
    "sequence": {"capacity": 33, "unit": "sequence", "sequence_length": 3, "burn_in": 2},
    "stacks": {"capacity": 33, "unit": "transition", "frame_stack": {"observation/image": -1}},
}


@pytest.fixture
def pushed(steps, stacks):
    """Kind, number → a segment."""

    def pushed(kind: str, first: int) -> dict[str, Any]:
        if kind == "stacks":
            return stacks(first, -1)
        return steps(first, 1 + first % 5, (0,) if first % 3 == 0 else ())

    return pushed


def go_on(store: ReplayBuffer, pushed: Any, kind: str, first: int) -> list[bytes]:
    """Push, pop and give priorities; return every batch."""
    batches = []
    for number in range(first, first + 40, 6):
        store.push(pushed(kind, number))
        batch = store.pop(0)
        batches.append(b"".join(leaf.tobytes() for _, leaf in nested.items(batch.tree)))
        if "key" in batch.tree:
            keys = batch.tree["key"]
            store.update_priorities(keys, 1.0 + keys % 7)
    return batches


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_replay_draws_the_same(kind, sampler, pushed, tmp_path):
    def fresh() -> ReplayBuffer:
        config = ReplayConfig(batch_size=8, sampler=sampler, **KINDS[kind])
        return ReplayBuffer(nested.spec(pushed(kind, 0)), config)

    store = fresh()
    go_on(store, pushed, kind, 0)
    state = json.loads(json.dumps(store.state_dict()))
    store.save(tmp_path / "replay")
    again = fresh()
    again.load(tmp_path / "replay")
    again.load_state_dict(state)
    assert again.stats() == store.stats()
    assert go_on(again, pushed, kind, 100) == go_on(store, pushed, kind, 100)


def test_a_replay_with_a_rate_goes_on_from_one_without(pushed, tmp_path):
    """A trial that began in one process, where turns keep the rate, goes on on Ray."""

    def made(**rate) -> ReplayBuffer:
        config = ReplayConfig(batch_size=8, min_size=16, **KINDS["transition"], **rate)
        return ReplayBuffer(nested.spec(pushed("transition", 0)), config)

    store = made()
    store.push(*(pushed("transition", number) for number in range(0, 90, 6)))
    store.save(tmp_path / "replay")
    again = made(samples_per_insert=8.0, error_margin=64.0)
    again.load(tmp_path / "replay")
    again.load_state_dict(json.loads(json.dumps(store.state_dict())))
    assert again.stats()["pushed"] == store.stats()["pushed"]
    again.pop(0)  # at once: neither side of the rate is behind


def in_pace(store: ReplayBuffer, pushed: Any, number: int) -> tuple[int, int]:
    """Push and pop in turns as the rate allows; return how often either was done."""
    pushes = pops = 0
    for first in range(0, 6 * number, 6):
        pushes += store.push(pushed("transition", first))
        try:
            store.pop(0)
        except DeadlineError:
            continue
        pops += 1
    return pushes, pops


@pytest.mark.parametrize("rate", [2.0, 8.0, 64.0])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
def test_a_rate_is_kept_from_what_is_there(rate, is_lost, pushed, tmp_path):
    """A killed driver leaves no content beside its checkpoint; another launch may ask another
    rate, by its batch size or its environments."""

    def made(rate) -> ReplayBuffer:
        kind = {**KINDS["transition"], "capacity": 1000}
        config = ReplayConfig(
            batch_size=8, min_size=100, samples_per_insert=rate, error_margin=64.0, **kind
        )
        return ReplayBuffer(nested.spec(pushed("transition", 0)), config)

    store = made(8.0)
    in_pace(store, pushed, 2000)
    store.save(tmp_path / "replay")
    again = made(rate)
    if not is_lost:
        again.load(tmp_path / "replay")
    again.load_state_dict(json.loads(json.dumps(store.state_dict())))
    pushes, pops = in_pace(again, pushed, 100)
    assert pushes >= 2, "players wait for what was trained long ago"
    assert pops >= 10, "training waits for what was played long ago"


def test_a_prioritized_replay_goes_on_from_a_uniform_one(pushed, tmp_path):
    def made(sampler: Any) -> ReplayBuffer:
        config = ReplayConfig(batch_size=8, sampler=sampler, **KINDS["transition"])
        return ReplayBuffer(nested.spec(pushed("transition", 0)), config)

    store = made("uniform")
    store.push(*(pushed("transition", number) for number in range(0, 90, 6)))
    store.pop(0)
    store.save(tmp_path / "replay")
    again = made("prioritized")
    again.load(tmp_path / "replay")
    again.load_state_dict(json.loads(json.dumps(store.state_dict())))
    assert again.stats() == {**store.stats(), "stale_priorities": 0}
    batch = again.pop(0).tree
    assert (batch["weight"] == 1).all()  # all alike, until they are told their errors
    assert again.update_priorities(batch["key"], np.ones(8)) == 8


def test_larger_batches_are_drawn_after_smaller_ones(pushed, tmp_path):
    def made(batch_size: int) -> ReplayBuffer:
        config = ReplayConfig(batch_size=batch_size, **KINDS["transition"])
        return ReplayBuffer(nested.spec(pushed("transition", 0)), config)

    store = made(8)
    store.push(pushed("transition", 4))
    drawn = [store.pop(0) for _ in range(70)][-1]
    state = json.loads(json.dumps(store.state_dict()))
    again = made(256)  # of which 64 are drawn from one block of numbers
    again.push(pushed("transition", 4))
    again.load_state_dict(state)
    batch = again.pop(0)
    assert len(batch.block) == 256
    assert not (batch.block[:8] == drawn.block).all()


def test_a_smaller_replay_keeps_the_newest_with_their_priorities(tmp_path, steps):
    def sized(capacity: int) -> ReplayBuffer:
        config = ReplayConfig(
            capacity=capacity, batch_size=500, unit="transition", sampler="prioritized", n_step=2
        )
        return ReplayBuffer(nested.spec(steps(0)), config)

    store = sized(20)
    store.push(*(steps(first) for first in range(0, 30, 5)))
    store.update_priorities(np.arange(10, 30), np.where(np.arange(10, 30) == 27, 1e3, 1e-6))
    store.save(tmp_path / "replay")
    again = sized(12)
    assert again.load(tmp_path / "replay") == 4
    assert again.stats()["queued"] == 10
    keys = again.pop(0).tree["key"]
    assert (keys == 27).mean() > 0.9
    assert keys.min() >= 20
    with pytest.raises(SpecError, match="first: expected 0 or more and an empty ring"):
        again.load(tmp_path / "replay")


def test_a_state_of_something_else_is_refused(steps):
    store = ReplayBuffer(nested.spec(steps(0)), ReplayConfig(capacity=3, batch_size=2))
    state = store.state_dict()
    for wrong in ({}, {**state, "draws": {}}, {**state, "draws": {**state["draws"], "used": -1}}):
        with pytest.raises(SpecError, match=r"state: not of such|draws: expected"):
            store.load_state_dict(wrong)


def test_samples_per_insert_holds_both_sides(steps):
    config = ReplayConfig(
        unit="transition",
        capacity=100,
        batch_size=10,
        min_size=5,
        samples_per_insert=2.0,
        error_margin=10.0,
    )
    store = ReplayBuffer(nested.spec(steps(0)), config)
    # The first 5 steps are free, and 5 more within the margin; a segment comes whole.
    assert store.push(*(steps(first) for first in range(0, 50, 5))) == 2
    assert store.push(steps(10)) == 0
    for _ in range(2):
        store.pop(0)
    with pytest.raises(DeadlineError, match="too little was pushed for samples_per_insert=2"):
        store.pop(0)
    assert store.push(steps(10), steps(15), steps(20)) == 2
    with pytest.raises(DeadlineError, match="0 of 1 segments were accepted: too little was drawn"):
        store.push(steps(25), wait=True, timeout_s=0)
    popper = threading.Thread(target=lambda: [store.pop(10) for _ in range(2)])
    popper.start()
    assert store.push(steps(25), wait=True, timeout_s=10) == 1
    popper.join()


def test_a_restored_replay_waits_for_neither_side(tmp_path, steps):
    config = ReplayConfig(capacity=50, batch_size=4, samples_per_insert=1.0, error_margin=4.0)
    store = ReplayBuffer(nested.spec(steps(0)), config)
    for first in range(30):
        assert store.push(steps(first), wait=True, timeout_s=0) == 1
        if first % 4 == 3:
            store.pop(0)
    store.save(tmp_path / "replay")
    again = ReplayBuffer(nested.spec(steps(0)), config)
    again.load(tmp_path / "replay")
    assert again.push(steps(0)) == 1
    again.pop(0)


def test_threads_push_and_pop_whole_items(steps):
    config = ReplayConfig(unit="transition", capacity=60, batch_size=64, sampler="prioritized")
    store = ReplayBuffer(nested.spec(steps(0)), config)

    def push() -> None:
        for first in range(0, 5000, 5):
            store.push(steps(first))

    pushers = [threading.Thread(target=push) for _ in range(2)]
    for pusher in pushers:
        pusher.start()
    while any(pusher.is_alive() for pusher in pushers):
        batch: Any = store.pop(5).tree
        assert np.array_equal(batch["observation"]["x"][:, 0], batch["action"])
        store.update_priorities(batch["key"], np.ones(64))
    store.close()
    with pytest.raises(ClosedError):
        store.pop()


def test_a_batch_may_be_written_into_a_slot(steps):
    config = ReplayConfig(unit="transition", capacity=60, batch_size=4)
    store = ReplayBuffer(nested.spec(steps(0)), config)
    store.push(steps(0))
    slots = store.batch_layout.empty(3, 4)
    batch = store.pop(0, out=slots[1])
    assert np.shares_memory(batch.block, slots)
    assert slots[1].any()
    assert not slots[0].any()
    assert not slots[2].any()
    for wrong in (slots[0, :3], slots[0].astype(np.int8), slots[:, 0][:, ::2]):
        with pytest.raises(SpecError, match=r"out: expected contiguous uint8 \(4, \d+\), got"):
            store.pop(0, out=wrong)


async def test_coroutines_wait_for_each_other(steps):
    config = ReplayConfig(
        unit="transition",
        capacity=60,
        batch_size=5,
        min_size=5,
        samples_per_insert=1.0,
        error_margin=5.0,
    )
    store = ReplayBuffer(nested.spec(steps(0)), config)

    async def push() -> int:
        return sum([await store.push_async(steps(n), wait=True, timeout_s=10) for n in range(6)])

    pushed = asyncio.create_task(push())
    for _ in range(5):
        assert (await store.pop_async(10)).block.shape[0] == 5
    assert await pushed == 6
    store.close()
    assert [batch async for batch in store] == []
