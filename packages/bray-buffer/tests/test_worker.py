"""A buffer's worker and what reaches it by shared memory, without Ray in between."""

import subprocess
import sys
import threading
import time
from uuid import uuid4

import numpy as np
import pytest

from bray_buffer import BufferConfig, ReplayConfig, storage
from bray_buffer.remote.connections import SharedMemoryConnection
from bray_buffer.shared.buffer_worker import BufferWorker
from bray_buffer.shared.slot_pool import deadline_after
from bray_buffer.shared.socket_carrier import SegmentSender
from bray_buffer.shared.transfer_thread import PRIORITY
from bray_core import nested
from bray_core.errors import ClosedError, SpecError
from bray_core.layout import Packed

SOON_S = 30.0


@pytest.fixture
def make(layout):
    made = []

    def make(config, token=None, transform=None):
        token = token or uuid4().hex
        made.append(BufferWorker(layout, config, token, 0, "127.0.0.1", transform))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def link():
    made = []

    def link(worker, index=0):
        made.append(SharedMemoryConnection(worker.describe_buffer(), index))
        return made[-1]

    yield link
    for one in made:
        one.close()


@pytest.fixture
def block(layout, segment):
    """Numbers → packed segments `[B, nbytes]`."""
    return lambda *numbers: layout.pack(nested.stack([segment(number) for number in numbers]))


def push(link, block, steps=None, wait_s=0.0):
    def write(target, first):
        target[...] = block[first : first + len(target)]

    return link.push(len(block), write, steps, wait_s)


def test_a_queue_needs_no_worker_in_between(make, link, block, layout, numbers):
    worker = make(BufferConfig(batch_size=2, capacity=4, when_full="drop_newest"))
    producer, consumer = link(worker), link(worker)
    assert push(producer, block(0, 1, 2, 3, 4)) == 4
    assert numbers(Packed(layout, consumer.take(0.0))) == [0, 1]
    assert worker.stats()["dropped"] == 1
    assert worker.pop(0.0).tolist() == block(2, 3).tolist()
    assert worker.pop(0.0) == "0 of 2 segments are there"


def test_a_replay_is_fed_and_emptied_by_its_thread(make, link, block, layout, numbers):
    worker = make(ReplayConfig(capacity=8, batch_size=4, min_size=3))
    producer, consumer = link(worker), link(worker)
    push(producer, block(0, 1), wait_s=SOON_S)
    producer.flush()
    consumer.inbox.set_word("policy_version", 3)  # which a replay has no use for
    assert consumer.take(deadline_after(0.1)) is None
    push(producer, block(2), wait_s=SOON_S)
    drawn = set()
    for _ in range(50):
        drawn |= set(numbers(Packed(layout, consumer.take(deadline_after(SOON_S)))))
    assert drawn == {0, 1, 2}
    stats = worker.stats()
    assert (stats["pushed"], stats["queued"], stats["popped"]) == (3, 3, 200)
    assert (stats["dropped"], stats["lost"]) == (0, 0)
    assert worker.next_failure() is None
    push(producer, block(*range(10, 20)), wait_s=SOON_S)
    producer.flush()
    assert worker.stats()["queued"] == 8


def odd_ones_twice(batch):
    """A transform that gives fewer rows or more, of other leaves."""
    odd = batch["number"][batch["number"] % 2 == 1]
    return {"odd": np.concatenate([odd, odd]) if len(odd) else batch["number"]}


@pytest.mark.parametrize(
    "config",
    [BufferConfig(batch_size=4, capacity=8), ReplayConfig(capacity=4, batch_size=4, min_size=4)],
)
def test_a_transform_runs_in_the_worker(make, link, block, config):
    worker = make(config, transform=odd_ones_twice)
    consumer = link(worker)
    push(consumer, block(0, 1, 2, 4), wait_s=SOON_S)
    views = worker.describe_buffer().batch_layout.views
    if isinstance(config, BufferConfig):
        assert views(consumer.take(deadline_after(SOON_S)))["odd"].tolist() == [1, 1]
        push(consumer, block(1, 3, 5, 7), wait_s=SOON_S)  # more rows than a batch of zeros gave
        assert consumer.take(deadline_after(0.2)) is None
        assert "expected at most 4 rows" in worker.next_failure()
        push(consumer, block(2, 3, 4, 6), wait_s=SOON_S)
        assert views(consumer.take(deadline_after(SOON_S)))["odd"].tolist() == [3, 3]
    else:
        assert set(views(consumer.take(deadline_after(SOON_S)))["odd"].tolist()) <= {0, 1, 2, 4}


def test_producers_are_ahead_of_the_rate_by_margins_not_by_all_the_memory(make, link, block):
    config = ReplayConfig(
        capacity=1000, batch_size=2, min_size=4, samples_per_insert=1.0, error_margin=12.0
    )
    producer = link(make(config))
    accepted = push(producer, block(*range(300)), wait_s=1.0)
    drawn = 4 * config.batch_size  # ready, and one on its way
    assert (
        4 + 12 <= accepted <= 4 + 12 + drawn + 12 + 4
    )  # waiting, and in the transfer thread's hands


def test_a_masked_queue_is_masked_by_its_worker(make, link, layout, segment):
    worker = make(BufferConfig(batch_size=2, mask=True))
    consumer = link(worker)
    rows = layout.pack(nested.stack([segment(1, 2), segment(2, 4)]))
    push(consumer, rows, wait_s=SOON_S)
    batch = worker.describe_buffer().batch_layout.views(consumer.take(deadline_after(SOON_S)))
    assert batch["mask"].sum(axis=1).tolist() == [2, 4]
    assert batch["observation"]["units"][0, 2:].tolist() == [[0, 0, 0]] * 2


def test_what_a_buffer_raises_reaches_a_consumer_once(make, link, block, monkeypatch):
    worker = make(ReplayConfig(capacity=8, batch_size=1))
    consumer = link(worker)
    assert worker.next_failure() is None
    failed = threading.Event()

    def fail(segments):
        failed.set()
        raise SpecError("the transform does not like it")

    monkeypatch.setattr(worker._buffer, "push", fail)
    push(consumer, block(0), wait_s=SOON_S)
    assert failed.wait(SOON_S)
    consumer.flush()
    assert consumer.outbox.word("failures") == 1
    assert worker.next_failure() == "the transform does not like it"
    assert worker.next_failure() is None
    monkeypatch.undo()
    push(consumer, block(1), wait_s=SOON_S)
    assert consumer.take(deadline_after(SOON_S)) is not None


@pytest.mark.parametrize(
    "config",
    [
        BufferConfig(batch_size=2, capacity=4),
        BufferConfig(batch_steps=8, capacity=4),
        ReplayConfig(capacity=8, batch_size=2, min_size=2),
    ],
)
def test_producers_of_other_nodes_come_by_a_socket(make, link, block, layout, numbers, config):
    worker = make(config)
    sender = SegmentSender(worker.listen(), worker.describe_buffer().token)
    assert worker.listen() == worker.listen()
    try:
        sender.send(block(0, 1), 0.0)
        assert sender.settle(0) == 2
        assert sender.credits > 0
        batch = link(worker).take(deadline_after(SOON_S))
        assert set(numbers(Packed(layout, batch))) <= {0, 1}
    finally:
        sender.close()


def test_what_finds_no_room_by_a_socket_is_counted(make, block):
    worker = make(BufferConfig(batch_size=1, capacity=2, when_full="block"))
    sender = SegmentSender(worker.listen(), worker.describe_buffer().token)
    try:
        sender.send(block(0, 1, 2), 0.0)
        assert sender.settle(0) == 2
        assert worker.stats()["dropped"] == 1
        sender.send(block(3), SOON_S)  # the answer comes when there is room
        assert worker.pop(SOON_S) is not None
        assert sender.settle(0) == 1
    finally:
        sender.close()


def test_content_is_saved_and_loaded(make, link, block, layout, numbers, tmp_path):
    queue = make(BufferConfig(batch_size=2, capacity=8))
    push(link(queue), block(0, 1, 2))
    queue.save(tmp_path / "queue")
    assert queue.stats()["queued"] == 3
    other = make(BufferConfig(batch_size=3))
    assert other.load(tmp_path / "queue") == 3
    assert numbers(Packed(layout, other.pop(0.0))) == [0, 1, 2]
    replay = make(ReplayConfig(capacity=8, batch_size=2))
    push(producer := link(replay), block(5, 6), wait_s=SOON_S)
    producer.flush()
    replay.save(tmp_path / "replay")
    again = make(ReplayConfig(capacity=8, batch_size=2))
    assert again.load(tmp_path / "replay") == 2
    assert again.stats()["queued"] == 2
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(SpecError, match="bad"):
        again.load(tmp_path / "bad")
    assert storage.load(tmp_path / "queue", layout)[0] == 3


WORKER = """
import sys, pickle
from bray_buffer.shared.buffer_worker import BufferWorker
layout, config, token = pickle.loads(bytes.fromhex(sys.stdin.readline()))
worker = BufferWorker(layout, config, token, 0, "127.0.0.1")
print("up", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        (BufferConfig(batch_size=2, when_full="block"), 0),
        (ReplayConfig(capacity=8, batch_size=2, min_size=4), 3),
    ],
)
def test_a_worker_that_replaces_a_dead_one_takes_over(
    make, link, block, layout, numbers, config, lost
):
    import pickle

    token = uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        process.stdin.write(pickle.dumps((layout, config, token)).hex() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "up\n"
        description = BufferWorker.describe_buffer(_Like(layout, config, token))
        consumer = SharedMemoryConnection(description, 0)
        push(consumer, block(0, 1, 2), wait_s=SOON_S)
        consumer.flush()
        process.kill()
    push(consumer, block(3), wait_s=0.0)  # producers go on meanwhile
    worker = make(config, token)
    assert worker.stats()["lost"] == lost
    if not lost:
        assert numbers(Packed(layout, consumer.take(deadline_after(SOON_S)))) == [0, 1]
    push(consumer, block(4, 5, 6), wait_s=SOON_S)
    assert consumer.take(deadline_after(SOON_S)) is not None
    consumer.close()


class _Like:
    """What `describe_buffer` reads."""

    def __init__(self, layout, config, token):
        from bray_buffer.shared.sharing_rules import SharingRules

        self.layout = self.batch_layout = layout
        self._rules = SharingRules.of(config)
        self._token = token


def test_priorities_of_batches_of_a_dead_worker_are_lost(make, link, block, recorded):
    """They had ended the run: batches that were drawn before, and priorities, outlive a worker."""
    config, token = ReplayConfig(capacity=64, batch_size=4, sampler="prioritized"), uuid4().hex
    worker = make(config, token)
    consumer = link(worker)
    push(consumer, block(*range(20)), wait_s=SOON_S)
    consumer.flush()
    assert consumer.take(deadline_after(SOON_S)) is not None
    worker._stopped.set()  # as if it had died
    worker._transfer.stop()
    rows = np.zeros(4, PRIORITY)
    rows["key"], rows["priority"] = range(16, 20), 1.0
    consumer.update_priorities(rows)
    after = make(config, token)
    push(consumer, block(20, 21), wait_s=SOON_S)
    consumer.flush()
    rows["key"] = [0, 1, 1, 7]
    consumer.update_priorities(rows)
    deadline = time.monotonic() + SOON_S
    while not after._priorities.is_empty():
        assert time.monotonic() < deadline
    after._transfer.stop()
    assert after.next_failure() is None
    assert recorded()["buffer/lost_priorities"] == 4 + 1


def test_close_wakes_whoever_waits(make, link, block):
    worker = make(ReplayConfig(capacity=8, batch_size=2))
    consumer = link(worker)
    thread = threading.Timer(0.1, worker.close)
    thread.start()
    with pytest.raises(ClosedError):
        consumer.take(1e12)
    with pytest.raises(ClosedError):
        push(consumer, block(0))
    thread.join()


def test_counts_become_metrics(make, link, block, recorded):
    worker = make(BufferConfig(batch_size=1, capacity=2))
    push(link(worker), block(0, 1, 2, 3))
    worker._record()
    worker._record()
    found = recorded()
    assert found["buffer/dropped_segments"] == 2
    assert found["buffer/queued_segments"] == 2
    assert np.isfinite(list(found.values())).all()


@pytest.mark.parametrize(
    "config",
    [BufferConfig(batch_size=1, capacity=2), ReplayConfig(capacity=8, batch_size=2, min_size=4)],
)
def test_who_takes_over_counts_nothing_again(make, link, block, config, recorded):
    token = uuid4().hex
    worker = make(config, token)
    worker._inbox.add("lost", 3)
    worker._record()
    assert recorded()["buffer/lost_segments"] == 3
    worker._stopped.set()  # as if it had died
    worker._cleaner.join()
    after = make(config, token)
    after._record()
    assert "buffer/lost_segments" not in recorded()
    after._inbox.add("lost", 2)
    after._record()
    assert recorded()["buffer/lost_segments"] == 2
