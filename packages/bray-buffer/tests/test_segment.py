"""What may be pushed, and that it is copied."""

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig
from bray_core import nested, protocols
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Packed


@pytest.fixture
def buffer(layout):
    return Buffer(layout, BufferConfig(batch_size=1, capacity=2))


def test_every_kind_is_a_buffer(buffer, layout):
    assert isinstance(buffer, protocols.BufferProtocol)
    assert buffer.layout is layout


def test_batch_and_segment_share_no_memory_with_the_queue(buffer, layout, segment, numbers):
    packed = Packed(layout, layout.pack(segment(1)))
    buffer.push(packed)
    packed.block[:] = 0
    batch = buffer.pop(0)
    buffer.push(segment(2), segment(3))
    assert numbers(batch) == [1]


def test_a_leaf_that_is_missing_or_no_array_is_named(buffer, segment):
    with pytest.raises(SpecError, match=r"segment/reward: expected float32 \(4,\), got float"):
        buffer.push({**segment(0), "reward": 0.0})
    del (bad := segment(0))["observation"]
    with pytest.raises(SpecError, match=r"segment/observation/units: missing"):
        buffer.push(bad)


@pytest.mark.parametrize("block", [np.zeros(8, np.uint8), np.zeros((2, 2, 96), np.uint8), None])
def test_a_block_of_another_shape_is_refused(buffer, layout, block):
    block = np.zeros(layout.nbytes, np.int8) if block is None else block
    with pytest.raises(SpecError, match=r"segment: expected a block uint8 .* got u?int8 \("):
        buffer.push(Packed(layout, block))


def test_batches_by_steps_need_lengths(segment, layout):
    buffer = Buffer(layout, BufferConfig(batch_steps=8))
    with pytest.raises(SpecError, match=r"segment/length: expected 1 step or more, got 0"):
        buffer.push(segment(0, 4), segment(1, 0))
    buffer.push(segment(0, 3))
    assert buffer.stats() == {
        "pushed": 1,
        "popped": 0,
        "dropped": 0,
        "queued": 1,
        "queued_steps": 3,
    }
    spec = nested.spec({**segment(0), "length": np.zeros(4, np.int32)})
    with pytest.raises(ConfigError, match=r"leaf `length`, one integer, got int32 \(4,\): add it"):
        Buffer(spec, BufferConfig(batch_steps=8))
    assert Buffer(spec, BufferConfig(batch_size=8)).stats()["queued"] == 0


def test_counts_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"batch_size: expected a whole number, got 2\.5"):
        BufferConfig(batch_size=2.5)
    with pytest.raises(ConfigError, match="did you mean 'drop_oldest'"):
        BufferConfig(batch_size=1, when_full="drop_oldst")
