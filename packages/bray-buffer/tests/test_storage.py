"""Saving and restoring what a buffer holds."""

import json

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig, ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import NotFoundError, SpecError


@pytest.fixture
def queue(layout):
    return lambda **settings: Buffer(layout, BufferConfig(batch_size=3, **settings))


def test_a_queue_comes_back_in_order(queue, segment, numbers, tmp_path):
    buffer = queue(capacity=4)
    buffer.push(*map(segment, range(6)))
    buffer.save(tmp_path / "queue")
    assert buffer.stats()["queued"] == 4
    again = queue()
    assert again.load(tmp_path / "queue") == 4
    assert numbers(again.pop(0)) == [2, 3, 4]
    assert queue(capacity=3, when_full="block").load(tmp_path / "queue") == 3


def test_a_replay_comes_back(layout, segment, numbers, tmp_path):
    def replay():
        return ReplayBuffer(layout, ReplayConfig(capacity=4, batch_size=200))

    first = replay()
    first.push(*map(segment, range(6)))
    first.save(tmp_path / "replay")
    again = replay()
    assert again.load(tmp_path / "replay") == 4
    assert numbers(again.pop(0)) == numbers(first.pop(0))
    again.push(segment(6))
    assert set(numbers(again.pop(0))) == {3, 4, 5, 6}


def test_an_empty_buffer_too(queue, tmp_path):
    queue().save(tmp_path / "queue")
    assert queue().load(tmp_path / "queue") == 0


def test_a_file_is_replaced_whole(queue, segment, tmp_path):
    buffer = queue()
    for number in range(3):
        buffer.push(segment(number))
        buffer.save(tmp_path / "queue")
    assert [path.name for path in tmp_path.iterdir()] == ["queue"]
    assert queue().load(tmp_path / "queue") == 3


def test_the_header_describes_the_bytes(queue, segment, layout, tmp_path):
    buffer = queue()
    buffer.push(segment(5))
    buffer.save(tmp_path / "queue")
    line, _, raw = (tmp_path / "queue").read_bytes().partition(b"\n")
    header = json.loads(line)
    assert (header["format"], header["count"], len(raw)) == (1, 1, layout.nbytes)
    _, dtype, shape, offset = next(leaf for leaf in header["leaves"] if leaf[0] == "reward")
    reward = np.frombuffer(raw, dtype, offset=offset, count=int(np.prod(shape)))
    assert reward.tolist() == segment(5)["reward"].tolist()


def test_what_is_broken_or_absent_is_named(queue, segment, tmp_path):
    buffer = queue()
    buffer.push(segment(0))
    path = tmp_path / "queue"
    with pytest.raises(NotFoundError, match=rf"path: no file {path}"):
        buffer.load(path)
    with pytest.raises(NotFoundError, match=rf"path: no folder {tmp_path}/nowhere: make it first"):
        buffer.save(tmp_path / "nowhere" / "queue")
    buffer.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(SpecError, match=r"1 segments need \d+ bytes, got \d+"):
        buffer.load(path)
    for junk in (b"", b"\xff\xfe junk", b"[]\n", b'{"format": 1}\n', b"7\n"):
        path.write_bytes(junk)
        with pytest.raises(SpecError, match=rf"{path}: not a saved buffer"):
            buffer.load(path)
    path.write_bytes(whole.replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(SpecError, match="has format 9, this version reads 1"):
        buffer.load(path)


def test_another_layout_is_named_by_its_first_leaf(queue, segment, tmp_path):
    buffer = queue()
    buffer.push(segment(0))
    buffer.save(tmp_path / "queue")
    other = {**segment(0), "reward": np.zeros(4, np.float64)}
    target = Buffer(nested.spec(other), BufferConfig(batch_size=1))
    message = r"holds segments of layout \w+, expected \w+: first leaf .* \['reward', '<f8'.*'<f4'"
    with pytest.raises(SpecError, match=message):
        target.load(tmp_path / "queue")
