"""Masks, padding and the time dimension of batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_buffer import Buffer, BufferConfig, ReplayConfig, make_buffer
from bray_buffer.queue.segment_batcher import SegmentBatcher
from bray_buffer.time_axis import TimeAxis
from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout

T = 4


def ragged(length, fill=7):
    """A segment with rubbish in its padding."""
    return {
        "observation": {"units": [np.full((T, 2), fill, np.float32)]},
        "final_observation": {"units": [np.full(2, fill, np.float32)]},
        "reward": np.arange(1, T + 1, dtype=np.float32),
        "state": np.full(3, fill, np.float32),
        "done": np.ones(T, bool),
        "length": np.array(length, np.int32),
    }


@given(st.lists(st.integers(1, T), min_size=1, max_size=6), st.integers(0, 5))
def test_padding_is_cleared_and_masked_wherever_the_ring_begins(lengths, before):
    buffer = Buffer(
        nested.spec(ragged(1)), BufferConfig(batch_size=len(lengths), capacity=6, mask=True)
    )
    for _ in range(before):  # turns the ring on
        buffer.push(*map(ragged, lengths))
        buffer.pop(0)
    buffer.push(*map(ragged, lengths))
    batch = buffer.pop(0)
    assert batch.layout == buffer.batch_layout
    for row, length in enumerate(lengths):
        tree = nested.map(lambda leaf, row=row: leaf[row], batch.tree)
        valid = [True] * length + [False] * (T - length)
        assert tree["mask"].tolist() == tree["done"].tolist() == valid
        assert tree["reward"].tolist() == [t + 1 if t < length else 0 for t in range(T)]
        assert tree["observation"]["units"][0].any(axis=1).tolist() == valid
        for whole in (tree["final_observation"]["units"][0], tree["state"]):
            assert (whole == 7).all()


def test_a_masked_mean_is_the_mean_over_valid_steps():
    buffer = Buffer(nested.spec(ragged(1)), BufferConfig(batch_steps=5, mask=True))
    buffer.push(ragged(3), ragged(2))
    tree = buffer.pop(0).tree
    assert (tree["mask"] * tree["reward"]).sum() / tree["mask"].sum() == (1 + 2 + 3 + 1 + 2) / 5


def test_without_a_mask_a_batch_is_what_was_pushed():
    buffer = Buffer(nested.spec(ragged(1)), BufferConfig(batch_size=1))
    buffer.push(ragged(2))
    assert buffer.batch_layout == buffer.layout
    assert buffer.pop(0).tree["reward"].tolist() == [[1, 2, 3, 4]]


def test_time_major_swaps_what_has_time_alone():
    layout = Layout(nested.spec(ragged(1)))
    tree = layout.views(layout.pack(nested.stack([ragged(2, fill) for fill in (1, 2, 3)])))
    swapped = TimeAxis.of(layout).time_major(tree)
    shapes = {path: leaf.shape for path, leaf in nested.items(swapped)}
    assert shapes == {
        "done": (T, 3),
        "final_observation/units[0]": (3, 2),
        "length": (3,),
        "observation/units[0]": (T, 3, 2),
        "reward": (T, 3),
        "state": (3, 3),
    }
    assert swapped["observation"]["units"][0][1, 2].tolist() == [3, 3]
    assert np.shares_memory(swapped["reward"], tree["reward"])


def test_a_leaf_as_long_as_time_can_be_named():
    leaves = {**ragged(2), "state": np.full(T, 7, np.float32)}
    layout = Layout(nested.spec(leaves))
    row = [layout.pack(leaves).reshape(1, -1)]
    for names, state in (((), [7, 7, 0, 0]), (("state",), [7] * T)):
        batcher = SegmentBatcher(layout, mask=True, without_time=names)
        assert batcher.layout.views(batcher(row))["state"].tolist() == [state]


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"reward": np.zeros(3)}, "mask: needs segments with a leaf `length`"),
        ({"x": np.zeros(3), "y": np.zeros(4), "length": np.int32(1)}, "got x 3, y 4: name what"),
        ({"x": np.float32(0), "length": np.int32(1)}, "got no leaf with one"),
        (
            {"reward": np.zeros(3), "mask": np.zeros(3), "length": np.int32(1)},
            "mask: the segments have a leaf of this name",
        ),
    ],
)
def test_what_cannot_be_masked_is_refused(leaves, message):
    with pytest.raises(ConfigError, match=message):
        Buffer(nested.spec(leaves), BufferConfig(batch_size=1, mask=True))


@pytest.mark.parametrize(
    "config",
    [
        BufferConfig(batch_size=1),
        BufferConfig(batch_steps=2),
        ReplayConfig(unit="segment", capacity=8, batch_size=1),
    ],
)
def test_lengths_beyond_the_leaves_are_refused(config):
    buffer = make_buffer(nested.spec(ragged(1)), config)
    for length, message in (
        (T + 1, f"expected {T} steps at most, .* got 5"),
        (0, "1 step or more"),
    ):
        with pytest.raises(SpecError, match=f"segment/length: .*{message}"):
            buffer.push(ragged(1), ragged(length))
    assert buffer.stats()["pushed"] == 0


def test_segments_of_no_steps_are_refused():
    with pytest.raises(SpecError, match=r"layout: reward has shape \(0,\): expected dimensions"):
        Buffer(nested.spec({"reward": np.zeros(0)}), BufferConfig(batch_size=1))
