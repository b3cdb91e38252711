"""n-step returns of rewards of any type, against a plain loop, by every way out of a replay."""

from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_buffer import Mixture, ReplayBuffer, ReplayConfig
from bray_buffer.remote.connections import SharedMemoryConnection
from bray_buffer.replay.n_step import n_step
from bray_buffer.shared.buffer_worker import BufferWorker
from bray_buffer.shared.slot_pool import deadline_after
from bray_core import nested
from bray_core.layout import Layout, Packed

T = 6
KINDS = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


def make(first: int, kind: str, length: int = T, ends: tuple[int, ...] = ()) -> dict[str, Any]:
    """A segment of steps `first`, `first + 1`, …, each told by its action."""
    steps = np.arange(first, first + T)
    terminated = np.zeros(T, bool)
    terminated[list(ends)] = True
    truncated = np.zeros(T, bool)
    truncated[length - 1] = first % 2
    reward = np.random.default_rng(first).integers(-9, 10, T) + (0.25 if kind[0] == "f" else 0)
    return {
        "observation": np.stack([steps + 0.5, -steps - 0.5], 1).astype(np.float32),
        "action": steps,
        "reward": reward.astype(kind),
        "terminated": terminated,
        "truncated": truncated,
        "final_observation": np.array([first + length + 0.5, -1], np.float32),
        "length": np.array(length, np.int32),
    }


def expected(segment: dict[str, Any], at: int, n: int, gamma: float) -> tuple[float, float, float]:
    """Sum up step by step: the return, the discount and the first number of what follows."""
    total, length = 0.0, int(segment["length"])
    for ahead in range(n):
        total += gamma**ahead * float(segment["reward"][at + ahead])
        if segment["terminated"][at + ahead]:
            return total, 0.0, 0.0
        if at + ahead + 1 == length:
            return total, gamma ** (ahead + 1), float(segment["final_observation"][0])
    return total, gamma**n, float(segment["observation"][at + n, 0])


def check(batch: Any, segments: list[dict[str, Any]], n: int, gamma: float) -> None:
    """Compare a batch with the loop over the segments that were pushed."""
    by_step = {
        int(segment["action"][at]): (segment, at)
        for segment in segments
        for at in range(int(segment["length"]))
    }
    for row, step in enumerate(batch["action"].tolist()):
        segment, at = by_step[step]
        total, discount, following = expected(segment, at, n, gamma)
        assert batch["reward"][row] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert batch["discount"][row] == pytest.approx(discount, rel=1e-6)
        assert batch["terminated"][row] == segment["terminated"][at]
        assert batch["truncated"][row] == segment["truncated"][at]
        if discount:
            assert batch["next_observation"][row, 0] == following


def config(**settings: Any) -> ReplayConfig:
    defaults: dict[str, Any] = {"capacity": 60, "batch_size": 64, "n_step": 3, "gamma": 0.9}
    return ReplayConfig(unit="transition", **(defaults | settings))


SHAPES = st.lists(
    st.integers(1, T).flatmap(
        lambda length: st.tuples(st.just(length), st.sets(st.integers(0, length - 1), max_size=2))
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=80)
@given(
    SHAPES,
    st.sampled_from(KINDS),
    st.integers(1, T + 1),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.sampled_from(["uniform", "prioritized"]),
    st.booleans(),
)
def test_rewards_of_any_type_are_summed_as_a_plain_loop_does(
    shapes, kind, n, gamma, sampler, as_packed
):
    segments = [make(T * at, kind, length, tuple(ends)) for at, (length, ends) in enumerate(shapes)]
    layout = Layout(nested.spec(segments[0]))
    store = ReplayBuffer(layout, config(n_step=n, gamma=gamma, sampler=sampler))
    for segment in segments:
        store.push(Packed(layout, layout.pack(segment)) if as_packed else segment)
    batch = store.pop(0)
    wanted = kind if n == 1 else "float64" if kind == "float64" else "float32"
    assert batch.tree["reward"].dtype == wanted
    assert batch.layout.spec["reward"].dtype == wanted
    assert batch.tree["discount"].dtype == np.float32
    check(batch.tree, segments, n, gamma)


@pytest.mark.parametrize("kind", KINDS)
def test_frame_stacks_have_the_same_returns(kind):
    frames = np.random.default_rng(0).integers(0, 256, (T + 3, 4), np.uint8)
    stacks = np.stack([frames[at : at + 3] for at in range(T + 1)])
    segment = make(0, kind, ends=(2,)) | {
        "observation": stacks[:-1],
        "final_observation": stacks[-1],
    }
    store = ReplayBuffer(nested.spec(segment), config(frame_stack={"observation": 0}))
    store.push(segment)
    batch: Any = store.pop(0).tree
    assert batch["reward"].dtype == ("float64" if kind == "float64" else "float32")
    for row, step in enumerate(batch["action"].tolist()):
        total, discount, _ = expected(make(0, kind, ends=(2,)), step, 3, 0.9)
        assert batch["reward"][row] == pytest.approx(total, rel=1e-6, abs=1e-6)
        assert batch["discount"][row] == pytest.approx(discount)


def test_float16_rewards_are_not_summed_to_infinity():
    segment = make(0, "float16") | {"reward": np.full(T, 6e4, np.float16)}
    store = ReplayBuffer(nested.spec(segment), config(n_step=T, gamma=1.0))
    store.push(segment)
    batch: Any = store.pop(0).tree
    assert np.isfinite(batch["reward"]).all()
    assert batch["reward"].max() == pytest.approx(T * float(np.float16(6e4)))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_reward_after_the_end_of_an_episode_is_not_seen(wrong):
    reward = np.array([1.0, 1.0, wrong, 1.0])
    returns, discounts = n_step(reward, np.array([False, True, False, False]), 3, 0.5)
    assert returns[:2].tolist() == [1.5, 1.0]
    assert discounts.tolist() == [0.0, 0.0, 0.25, 0.5]


@pytest.mark.parametrize("kind", ["bool", "int64", "float16"])
def test_a_worker_hands_the_returns_out_by_shared_memory(kind):
    segments = [make(0, kind), make(T, kind, 4, (1,))]
    layout = Layout(nested.spec(segments[0]))
    worker = BufferWorker(layout, config(), uuid4().hex, 0, "127.0.0.1", None)
    link = SharedMemoryConnection(worker.describe_buffer(), 0)
    try:
        assert worker.describe_buffer().batch_layout.spec["reward"].dtype == "float32"
        rows = np.concatenate([layout.pack(nested.stack([segment])) for segment in segments])
        link.push(2, lambda out, at: np.copyto(out, rows[at : at + len(out)]), None, 10.0)
        link.flush()
        batch = Packed(worker.describe_buffer().batch_layout, link.take(deadline_after(30.0)))
        check(batch.tree, segments, 3, 0.9)
    finally:
        link.close()
        worker.close()


@pytest.mark.parametrize("kind", ["bool", "int32"])
def test_a_mixture_hands_on_the_returns_of_each_of_its_replays(kind):
    parts, pushed = {}, []
    for at in range(3):
        pushed.append(make(T * at, kind, ends=(3,)))
        parts[f"part-{at}"] = (ReplayBuffer(nested.spec(pushed[-1]), config()), 1.0)
        parts[f"part-{at}"][0].push(pushed[-1])
    mixture = Mixture(parts)
    for _ in range(9):
        check(mixture.pop(0).tree, pushed, 3, 0.9)


def test_a_transform_sees_the_returns():
    segment = make(0, "int8")

    def twice(batch: Any) -> Any:
        return {**batch, "reward": 2 * batch["reward"]}

    store = ReplayBuffer(nested.spec(segment), config(), transform=twice)
    store.push(segment)
    batch: Any = store.pop(0).tree
    check({**batch, "reward": batch["reward"] / 2}, [segment], 3, 0.9)


def test_a_saved_replay_makes_the_returns_again(tmp_path):
    segments = [make(0, "int64", ends=(4,)), make(T, "int64", 3)]
    store = ReplayBuffer(nested.spec(segments[0]), config())
    store.push(*segments)
    store.save(tmp_path / "replay")
    longer = ReplayBuffer(nested.spec(segments[0]), config(n_step=5, gamma=0.5))
    longer.load(tmp_path / "replay")
    check(longer.pop(0).tree, segments, 5, 0.5)


@pytest.mark.parametrize(
    "settings", [{"unit": "segment"}, {"unit": "sequence", "sequence_length": 3}]
)
@pytest.mark.parametrize("kind", KINDS)
def test_rewards_that_are_not_summed_keep_their_type(settings, kind):
    segment = make(0, kind)
    store = ReplayBuffer(nested.spec(segment), ReplayConfig(capacity=60, batch_size=4, **settings))
    store.push(segment)
    rewards = store.pop(0).tree["reward"]
    assert rewards.dtype == kind
    assert set(rewards.ravel().tolist()) <= set(segment["reward"].tolist())
