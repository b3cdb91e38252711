"""Saving and restoring what a buffer holds."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig, ReplayBuffer, ReplayConfig, storage
from bray_buffer.queue import segment_ring
from bray_core import nested
from bray_core.errors import CapacityError, CodecError, FormatError, NotFoundError, SpecError


@pytest.fixture
def queue(layout):
    return lambda **settings: Buffer(layout, BufferConfig(batch_size=3, **settings))


@pytest.fixture
def blocks(layout, segment):
    return lambda start, stop: np.stack([layout.pack(segment(n)) for n in range(start, stop)])


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
    (tmp_path / "other").touch()
    assert (tmp_path / "queue").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_chunks_come_back_as_they_were_written_with_what_was_kept_beside(
    layout, blocks, tmp_path, monkeypatch
):
    monkeypatch.setattr(storage, "_CHUNK_BYTES", 4 * layout.nbytes)  # 7 rows are two pieces
    extra = {"priorities": np.arange(5.0), "position": 3, "name": "x", "list": [1, None]}
    chunks = (blocks(start, start + 14)[::2] for start in (0, 14))  # not contiguous
    assert storage.save(tmp_path / "b", layout, chunks, extra) == 14
    count, kept, chunks = storage.load(tmp_path / "b", layout)
    assert (count, kept["priorities"].tolist()) == (14, [0, 1, 2, 3, 4])
    assert {**kept, "priorities": 0} == {**extra, "priorities": 0}
    got = [chunk.copy() for chunk in chunks]
    assert [len(chunk) for chunk in got] == [4, 3, 4, 3]
    assert np.array_equal(np.concatenate(got), blocks(0, 28)[::2])


def test_what_is_pushed_and_popped_meanwhile_changes_nothing_else(
    queue, segment, numbers, tmp_path, monkeypatch
):
    buffer = queue(capacity=8)
    buffer.push(*map(segment, range(8)))
    monkeypatch.setattr(segment_ring, "_SNAPSHOT_BYTES", 2 * buffer.layout.nbytes)
    written = []

    def write(file, piece, write=storage._write):
        if not written:
            buffer.pop(0)  # 0, 1, 2
            buffer.push(*map(segment, range(8, 13)))  # drops 3, 4
        written.append(len(piece))
        return write(file, piece)

    monkeypatch.setattr(storage, "_write", write)
    buffer.save(tmp_path / "queue")
    again = queue()
    assert (again.load(tmp_path / "queue"), written) == (5, [2, 2, 1])
    assert numbers(again.pop(0)) == [0, 1, 5]


def test_the_header_describes_the_bytes(queue, segment, layout, tmp_path):
    buffer = queue()
    buffer.push(segment(5))
    buffer.save(tmp_path / "queue")
    line, _, raw = (tmp_path / "queue").read_bytes().partition(b"\n")
    header = json.loads(line)
    assert (header["format"], header["layout"]) == (2, layout.id)
    _, dtype, shape, offset = next(leaf for leaf in header["leaves"] if leaf[0] == "reward")
    reward = np.frombuffer(raw, dtype, offset=offset, count=int(np.prod(shape)))
    assert reward.tolist() == segment(5)["reward"].tolist()


def test_every_cut_and_every_flipped_byte_is_noticed(layout, blocks, tmp_path):
    path = tmp_path / "b"
    storage.save(path, layout, [blocks(0, 2)], {"kept": "text"})
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(SpecError, match=str(path)):
            storage.load(path, layout)
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(SpecError, match=str(path)):
            list(storage.load(path, layout)[2])


def test_what_came_before_a_damaged_chunk_is_loaded(queue, layout, blocks, numbers, tmp_path):
    path = tmp_path / "b"
    storage.save(path, layout, [blocks(0, 3), blocks(3, 5)])
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"\n") + 1 + 4 * layout.nbytes] ^= 1
    path.write_bytes(raw)
    buffer = queue()
    with pytest.raises(SpecError, match=r"damaged: its blocks 3 to 4 have another checksum"):
        buffer.load(path)
    assert numbers(buffer.pop(0)) == [0, 1, 2]
    assert buffer.stats()["queued"] == 0


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
    with pytest.raises(SpecError, match=r"cut off: expected b'BRAYBUF2' at its end"):
        buffer.load(path)
    for junk in (b"", b"\xff\xfe junk", b"[]\n", b'{"format": 2}\n', b"7\n"):
        path.write_bytes(junk)
        with pytest.raises(SpecError, match=rf"{path}: not a saved buffer"):
            buffer.load(path)
    path.write_bytes(whole.replace(b'"format": 2', b'"format": 9'))
    with pytest.raises(FormatError, match="has format 9, this version reads up to 2: a newer"):
        buffer.load(path)
    path.write_bytes(whole.replace(b'"format": 2', b'"format": 1'))
    with pytest.raises(SpecError, match="has format 1, this version reads 2"):
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


def test_a_full_disk_leaves_the_file_as_it_was(queue, segment, tmp_path, monkeypatch):
    buffer = queue()
    buffer.push(segment(0))
    buffer.save(tmp_path / "queue")

    def fsync(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    buffer.push(segment(1))
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CapacityError, match=r"queue: cannot be written: No space left on device"):
        buffer.save(tmp_path / "queue")
    assert [path.name for path in tmp_path.iterdir()] == ["queue"]
    assert queue().load(tmp_path / "queue") == 1


def test_what_cannot_be_kept_beside_leaves_no_file(layout, tmp_path):
    with pytest.raises(CodecError, match="encode: extra/x"):
        storage.save(tmp_path / "b", layout, [], {"x": object()})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_save(queue, tmp_path):
    for name in (".queue.dead", ".other.dead", ".queue.busy"):
        (tmp_path / name).write_bytes(b"10 GB")
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".queue.young").touch()  # another process is about to lock it
    with (tmp_path / ".queue.busy").open("rb") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)  # as another process that is saving now
        queue().save(tmp_path / "queue")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".other.dead", ".queue.busy", ".queue.young", "queue"]


def test_two_at_a_time_leave_one_whole_file(queue, segment, tmp_path):
    buffer = queue()
    buffer.push(*map(segment, range(5)))
    threads = [threading.Thread(target=buffer.save, args=(tmp_path / "b",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert queue().load(tmp_path / "b") == 5


def test_memory_stays_at_one_chunk(tmp_path):
    """256 MiB are saved and loaded again with less than 64 MiB more than they take."""
    script = """
import sys
from pathlib import Path
import numpy as np
from bray_buffer import Buffer, BufferConfig
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024

layout = Layout({"x": ArraySpec(np.dtype("u1"), (1 << 18,))})
buffer = Buffer(layout, BufferConfig(batch_size=1, capacity=1024))
part = layout.empty(64)
for number in range(16):
    part[:] = number
    buffer.push(Packed(layout, part))
before = peak()
path = Path(sys.argv[1])
buffer.save(path)
assert path.stat().st_size > 1 << 28
while buffer.stats()["queued"]:
    buffer.pop(0)
assert buffer.load(path) == 1024
assert all(buffer.pop(0).block[0, -1] == number // 64 for number in range(1024))
grown = peak() - before
assert before > 256 and grown < 64, (before, grown)
"""
    subprocess.run([sys.executable, "-c", script, tmp_path / "b"], check=True, timeout=120)
