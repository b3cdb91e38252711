"""Batches in shared memory, with real processes that write, take, wait and are killed."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from uuid import uuid4

import numpy as np
import pytest

from bray_buffer.queue.policy_lag import PolicyLag
from bray_buffer.shared.slot_pool import PREFIX, PoolShape, SlotPool, deadline_after
from bray_core import nested
from bray_core.errors import CapacityError, ClosedError, NotFoundError
from bray_core.files.shared_file import FOLDER, SharedFile
from bray_core.layout import Layout

NBYTES = 64
SOON_S = 30.0

START = """
import sys, os, signal, time
import numpy as np
from pathlib import Path
from bray_buffer.shared.slot_pool import *
from bray_core.files.shared_file import SharedFile
pool = SlotPool.open(SharedFile.open(Path(sys.argv[1])))
rows = np.full((10_000, 64), int(sys.argv[2]), np.uint8)
"""


def rows(*numbers):
    return np.repeat(np.array(numbers, np.uint8)[:, None], NBYTES, axis=1)


def numbers(block):
    assert (block == block[:, :1]).all(), "a segment is mixed from two"
    return block[:, 0].tolist()


@pytest.fixture
def make():
    made = []

    def make(*, count=2, max_queued=2, batch_steps=0, nbytes=NBYTES):
        shape = PoolShape(
            row_nbytes=nbytes, rows=count, max_queued=max_queued, batch_steps=batch_steps
        )
        made.append(SlotPool.create(f"{PREFIX}test-{uuid4().hex}", shape))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
        pool.leave()


@pytest.fixture
def start():
    started = []

    def start(pool, script, number=0):
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", START + script, str(pool._file.path), str(number)],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_two_processes_fill_batches_and_a_third_takes_them(make, start):
    pool = make(count=8, max_queued=4)
    script = "print(sum(pool.push(rows[:3], deadline=deadline_after(30)) for _ in range(400)))"
    producers = [start(pool, script, number) for number in (1, 2)]
    got = [one for _ in range(300) for one in numbers(pool.take(deadline_after(SOON_S)))]
    assert (got.count(1), got.count(2)) == (1200, 1200)
    assert [producer.communicate()[0].strip() for producer in producers] == ["1200", "1200"]
    assert pool.take(0.0) is None
    stats = pool.stats()
    assert (stats["pushed"], stats["popped"], stats["queued"]) == (2400, 2400, 0)


def test_a_batch_is_looked_at_where_it_lies_until_its_last_view_is_garbage(make):
    pool = make()
    pool.push(rows(1, 2))
    batch = pool.take(0.0)
    leaf = batch[1:].view(np.int64)
    del batch
    gc.collect()
    assert pool._table.num_lent() == 1
    assert leaf[0, 0] == 0x0202020202020202
    del leaf
    gc.collect()
    assert pool._table.num_lent() == 0


def test_batches_that_are_kept_never_stop_the_others(make):
    pool = make(max_queued=2)
    kept = []
    for number in range(20):
        assert pool.push(rows(number, number)) == 2
        kept.append(pool.take(0.0))
    assert [numbers(batch) for batch in kept] == [[number] * 2 for number in range(20)]


def test_without_room_rows_are_refused_or_the_oldest_batch_is_dropped(make):
    pool = make(max_queued=2)
    assert pool.push(rows(1, 2, 3, 4, 5)) == 4
    assert pool.push(rows(6), deadline=deadline_after(0.05)) == 0
    assert pool.push(rows(7), when_full="drop_oldest") == 1
    assert numbers(pool.take(0.0)) == [3, 4]
    assert pool.take(0.0) is None
    stats = pool.stats()
    assert (stats["dropped"], stats["queued"], pool.num_free()) == (2, 1, 3)


def test_a_batch_by_steps_is_ready_with_its_steps(make):
    pool = make(count=4, batch_steps=10)
    assert pool.push(rows(1, 2, 3), [4, 4, 4]) == 3
    assert numbers(pool.take(0.0)) == [1, 2, 3]
    pool.push(rows(4, 5), [9, 8])
    assert numbers(pool.take(0.0)) == [4, 5]
    pool.push(rows(6, 7, 8, 9), [1, 1, 1, 1])  # a full slot is a batch, however short
    assert numbers(pool.take(0.0)) == [6, 7, 8, 9]


def test_a_part_of_a_batch_for_who_wants_it(make):
    pool = make(count=4)
    pool.push(rows(1, 2, 3))
    assert pool.take(0.0) is None
    assert numbers(pool.take(0.0, partial=True)) == [1, 2, 3]
    pool.push(rows(4, 5, 6, 7))
    assert numbers(pool.take(0.0)) == [4, 5, 6, 7]


HALF = """
def write(target, done):
    target[:, :32] = 9
    print("half", flush=True)
    time.sleep(60)
pool.fill(1, write)
"""


def test_a_producer_killed_in_the_middle_of_a_write_leaves_no_half_segment(make, start):
    pool = make(count=3)
    pool.push(rows(1))
    producer = start(pool, HALF)
    assert producer.stdout.readline().strip() == "half"
    pool.push(rows(2))
    assert pool.take(deadline_after(0.3)) is None  # it may yet be finished
    kill(producer)
    pool.push(rows(3), deadline=deadline_after(SOON_S))
    if (batch := pool.take(deadline_after(0.5))) is None:  # its row was free in time or not
        batch = pool.take(deadline_after(SOON_S)) if pool.push(rows(4)) else None
    assert set(numbers(batch)) <= {1, 2, 3, 4}
    assert pool.stats()["lost"] == 1


def test_writes_that_raise_give_their_row_back(make):
    pool = make()

    def write(target, done):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        pool.fill(1, write)
    pool.push(rows(1, 2))
    assert numbers(pool.take(0.0)) == [1, 2]
    assert pool.stats()["pushed"] == 2


def test_a_consumer_killed_with_batches_in_hand_gives_their_memory_back(make, start):
    pool = make(max_queued=1)
    consumer = start(
        pool,
        "held = [pool.take(deadline_after(30)) for _ in range(3)]\n"
        "print('held', flush=True)\ntime.sleep(60)",
    )
    for number in range(4):
        pool.push(rows(number, number), deadline=deadline_after(SOON_S))
    assert consumer.stdout.readline().strip() == "held"
    assert pool._table.num_lent() == 3
    kill(consumer)
    assert pool.reclaim() == 6
    stats = pool.stats()
    assert (stats["lost"], stats["popped"], stats["queued"]) == (6, 0, 2)
    assert numbers(pool.take(0.0)) == [3, 3]


def test_processes_killed_at_random_never_stop_the_others_nor_tear_a_segment(make, start):
    pool = make(count=4, max_queued=3)
    script = "while True: pool.push(rows[:3], deadline=deadline_after(30))"
    survivor = start(pool, script, 1)
    random = np.random.default_rng(0)
    for number in range(2, 8):
        victims = [start(pool, script, number), start(pool, "while True: pool.take(1e12)", 0)]
        assert numbers(pool.take(deadline_after(SOON_S)))
        time.sleep(random.uniform(0.0, 0.2))
        for victim in victims:
            kill(victim)
    for _ in range(200):
        batch = pool.take(deadline_after(SOON_S))
        assert len(batch) == 4
        numbers(batch)
    kill(survivor)
    assert 1 in numbers(batch)
    pool.reclaim()
    stats = pool.stats()
    assert stats["pushed"] == sum(stats[name] for name in ("popped", "queued", "lost"))


def test_stale_rows_are_replaced_by_newer_ones(make):
    layout = Layout(nested.spec({"policy_version": np.zeros((), np.int64)}))
    pool = make(count=3, nbytes=layout.nbytes)
    lag = PolicyLag(layout, 2)

    def push(*versions):
        pool.push(layout.pack({"policy_version": np.array(versions, np.int64)}))

    push(5, 8, 6)
    pool.set_word("policy_version", 8)
    assert pool.take(0.0, lag=lag) is None
    assert pool.stats()["stale"] == 1
    push(9)
    batch = pool.take(0.0, lag=lag)
    assert layout.views(batch)["policy_version"].tolist() == [9, 8, 6]
    assert pool.stats()["popped"] == 3


def test_close_wakes_those_who_wait_in_every_process(make, start):
    pool = make(max_queued=1)
    pool.push(rows(1))
    script = """
from bray_core.errors import ClosedError
print("waits", flush=True)
try:
    pool.take(1e12)
except ClosedError:
    print("closed")
"""
    other = start(pool, script)
    assert other.stdout.readline().strip() == "waits"
    errors = []

    def wait():
        try:
            pool.take(1e12)
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    pool.close()
    thread.join(SOON_S)
    assert errors
    assert other.communicate(timeout=SOON_S)[0].strip() == "closed"
    with pytest.raises(ClosedError):
        pool.push(rows(1))
    assert not pool._file.path.exists()


def test_a_forked_child_gives_back_no_batch_of_its_parents(make):
    pool = make()
    pool.push(rows(1, 2))
    batch = pool.take(0.0)
    child = os.fork()
    if not child:
        del batch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert pool._table.num_lent() == 1
    assert numbers(batch) == [1, 2]


def test_no_room_in_shared_memory_says_how_much_is_needed(make):
    message = (
        r"buffer: 5 batches of 2 segments of 1,000,000,000,000 bytes: 10,000,000.0 MB of shared "
        r"memory are needed in /dev/shm, [\d,.]+ MB are free"
    )
    with pytest.raises(CapacityError, match=message):
        make(nbytes=10**12)


def test_another_file_is_no_pool():
    file = SharedFile.create(f"{PREFIX}test-{uuid4().hex}", 4096, "test")
    try:
        with pytest.raises(NotFoundError, match="no pool of batches"):
            SlotPool.open(file)
    finally:
        file.close()
        file.unlink()


def test_what_crashed_processes_left_is_removed(make, start):
    name = f"{PREFIX}test-{uuid4().hex}"
    script = f"""
SlotPool.create({name!r}, PoolShape(row_nbytes=64, rows=1, max_queued=1))
print(os.path.exists({str(FOLDER / name)!r}), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = start(make(), script)
    assert process.stdout.readline() == "True\n"  # afterwards any process may remove it
    assert process.wait(SOON_S) == -signal.SIGKILL
    make()
    assert not (FOLDER / name).exists()
