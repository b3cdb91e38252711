"""A user's function that batches go through."""

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig
from bray_buffer.transform import Transform
from bray_core import nested
from bray_core.errors import SpecError


@pytest.fixture
def queue(layout):
    return lambda transform, **settings: Buffer(
        layout, BufferConfig(batch_size=2, **settings), transform=transform
    )


def test_a_transform_may_change_leaves_and_rows(queue, segment, layout):
    def steps(batch):
        """Valid steps of all segments, one row each."""
        reward = batch["reward"][batch["mask"]] * np.float32(0.5)
        return {"half": reward, "twice": {"number": np.repeat(batch["number"], batch["length"])}}

    buffer = queue(steps, mask=True)
    assert buffer.layout == layout
    buffer.push(segment(10, length=1), segment(20, length=3))
    batch = buffer.pop(0)
    assert batch.layout == buffer.batch_layout
    assert batch.block.shape == (4, buffer.batch_layout.nbytes)
    assert batch.tree["half"].tolist() == [5, 10, 10.5, 11]
    assert batch.tree["twice"]["number"].tolist() == [10, 20, 20, 20]


def test_what_it_gets_is_its_own(queue, segment):
    def clear(batch):
        batch["reward"][:] = 0
        return batch

    buffer = queue(clear, capacity=4)
    row = segment(1)
    buffer.push(row, row)
    assert not buffer.pop(0).tree["reward"].any()
    assert row["reward"].any()


def test_a_failure_costs_one_batch(queue, segment):
    def fragile(batch):
        if 2 in batch["number"]:
            raise ValueError("no 2 please")
        return batch

    buffer = queue(fragile)
    buffer.push(*map(segment, range(6)))
    assert buffer.pop(0).tree["number"].tolist() == [0, 1]
    with pytest.raises(SpecError, match=r"transform .*fragile: raised ValueError: no 2 please"):
        buffer.pop(0)
    assert buffer.pop(0).tree["number"].tolist() == [4, 5]
    assert buffer.stats()["popped"] == 6


def test_a_result_that_changes_is_named(queue, segment):
    def fickle(batch):
        if batch["number"].any():
            return {"x": batch["reward"].astype(np.float64)}
        return {"x": batch["reward"]}

    buffer = queue(fickle)
    buffer.push(segment(1), segment(2))
    message = r"transform .*fickle: x: expected float32 \(2, 4\), got float64 \(2, 4\)"
    with pytest.raises(SpecError, match=message):
        buffer.pop(0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch["absent"], "raised KeyError: 'absent'"),
        (lambda batch: {"x": batch["reward"].tolist()}, r"x\[0\]\[0\]: expected a numpy array"),
        (lambda batch: {"x": batch["reward"].sum()}, "one first dimension"),
        (lambda batch: {"x": batch["reward"], "y": batch["reward"].ravel()}, "one first dimension"),
    ],
)
def test_what_cannot_be_a_transform_is_refused_at_once(queue, function, message):
    with pytest.raises(SpecError, match=rf"transform .*<lambda>: .*{message}"):
        queue(function)


def test_an_empty_batch_is_refused(layout):
    transform = Transform(lambda batch: nested.map(lambda leaf: leaf[:0], batch), layout)
    with pytest.raises(SpecError, match="with B of 1 or more"):
        transform(layout.empty(2))
