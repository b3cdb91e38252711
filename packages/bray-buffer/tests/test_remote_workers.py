"""On real Ray: producers and consumers in several processes, and workers that die."""

import os
import pickle
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from bray_buffer import BufferConfig
from bray_core import nested, protocols
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    DeadlineError,
    NotFoundError,
    SpecError,
)
from bray_core.layout import Packed

pytestmark = pytest.mark.ray

SOON_S = 60.0


class Producer:
    """What an actor worker does with a handle."""

    def __init__(self, buffer):
        self.buffer = buffer

    def push(self, segments, wait=False):
        accepted = sum(self.buffer.push(segment, wait=wait) for segment in segments)
        self.buffer.flush()
        return accepted

    def found(self, name):
        from bray_buffer.remote import RemoteBuffer

        return RemoteBuffer.get(name).layout.id


@pytest.fixture
def ray_pickles_this_file(ray_cluster):
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def make(ray_pickles_this_file, layout):
    from bray_buffer.remote import RemoteBuffer

    made = []

    def make(num_workers=1, **settings):
        config = BufferConfig(**({} if "batch_steps" in settings else {"batch_size": 2}) | settings)
        made.append(RemoteBuffer(f"b-{uuid.uuid4().hex[:8]}", layout, config, num_workers))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


@pytest.fixture
def producers(ray_pickles_this_file):
    from bray_core.remote import WorkerPool

    pools = []

    def producers(buffer, num_workers):
        pools.append(
            WorkerPool(
                f"p-{uuid.uuid4().hex[:8]}", Producer, args=(buffer,), num_workers=num_workers
            )
        )
        return pools[-1]

    yield producers
    for pool in pools:
        pool.close()


def test_push_and_pop(make, layout, segment, numbers):
    buffer = make()
    assert isinstance(buffer, protocols.Buffer)
    assert buffer.layout == layout
    block = layout.pack(nested.stack([segment(1), segment(2)]))
    assert buffer.push(segment(0), Packed(layout, block)) == 3
    buffer.flush()
    assert buffer.push(segment(3)) == 1
    first, second = buffer.pop(SOON_S), buffer.pop(SOON_S)
    assert sorted(numbers(first) + numbers(second)) == [0, 1, 2, 3]
    assert first.block.flags.writeable
    stats = buffer.stats()
    assert (stats["pushed"], stats["popped"], stats["lost"]) == (4, 4, 0)
    assert buffer.push() == 0


def test_a_segment_that_does_not_fit_is_refused_at_the_call(make, segment):
    buffer = make()
    del (bad := segment(0))["reward"]
    with pytest.raises(SpecError, match=r"segment/reward: missing"):
        buffer.push(bad)


def test_a_pop_ends_at_its_deadline(make, segment):
    buffer = make()
    buffer.push(segment(0))
    buffer.flush()
    message = r"buffer b-\w+: no batch within 0.1 s: .*1 of 2 segments are there"
    with pytest.raises(DeadlineError, match=message):
        buffer.pop(0.1)


def test_a_full_worker_refuses_and_counts(make, segment):
    buffer = make(capacity=2, when_full="block")
    assert buffer.push(*map(segment, range(3))) == 3  # sent; what became of them:
    buffer.flush()
    assert buffer.stats()["dropped"] == 1
    message = r"push found no room within 0.1 s, 0 of 1 segments were accepted"
    with pytest.raises(DeadlineError, match=message):
        buffer.push(segment(3), wait=True, timeout_s=0.1)
    assert buffer.stats()["dropped"] == 1


def test_many_waiting_producers_do_not_shut_out_the_consumer(make, segment, numbers):
    buffer = make(capacity=2, when_full="block")
    with ThreadPoolExecutor(16) as pool:
        pushes = [
            pool.submit(buffer.push, segment(i), wait=True, timeout_s=SOON_S) for i in range(16)
        ]
        got = [number for _ in range(8) for number in numbers(buffer.pop(SOON_S))]
        assert [push.result(SOON_S) for push in pushes] == [1] * 16
    assert sorted(got) == list(range(16))


def test_producers_in_other_processes(make, producers, segment, numbers):
    buffer = make(batch_size=10, capacity=16, when_full="block")
    pool = producers(buffer, 2)
    refs = [
        pool.submit("push", [segment(i) for i in range(k, k + 50)], True, worker=k // 50)
        for k in (0, 50)
    ]
    got = [number for _ in range(10) for number in numbers(buffer.pop(SOON_S))]
    assert sorted(got) == list(range(100))
    assert [pool.result(ref, SOON_S) for ref in refs] == [50, 50]
    assert buffer.stats()["dropped"] == 0


def test_several_workers_share_the_pushes_and_each_gives_whole_batches(make, segment, numbers):
    buffer = make(num_workers=2)
    for number in range(8):
        buffer.push(segment(number))
    batches = [numbers(buffer.pop(SOON_S)) for _ in range(4)]
    assert sorted(number for batch in batches for number in batch) == list(range(8))
    assert all(len({number % 2 for number in batch}) == 1 for batch in batches)
    buffer.push(segment(8))
    buffer.push(segment(9))
    buffer.push(segment(10))  # one of the workers has a batch, whichever is asked first
    assert numbers(buffer.pop(SOON_S)) in ([8, 10], [10, 8])


def test_look_up_and_creation_are_two_verbs(make, producers, layout):
    from bray_buffer.remote import RemoteBuffer

    buffer = make()
    name = buffer._pool.name
    assert RemoteBuffer.get(name).layout == layout
    assert producers(buffer, 1).call("found", name) == layout.id
    with pytest.raises(AlreadyExistsError, match=name):
        RemoteBuffer(name, layout, BufferConfig(batch_size=1))
    with pytest.raises(NotFoundError, match="nobody"):
        RemoteBuffer.get("nobody")


def test_close_wakes_those_who_wait(make, segment):
    buffer = make()
    other = pickle.loads(pickle.dumps(buffer))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(handle.pop, SOON_S) for handle in (buffer, other)]
        with pytest.raises(DeadlineError):  # by then both have asked
            buffer.pop(0.5)
        buffer.close()
        for one in waiting:
            with pytest.raises(ClosedError, match=r"buffer b-\w+: closed"):
                one.result(SOON_S)
    with pytest.raises(ClosedError):
        buffer.push(segment(0))
    with pytest.raises(ClosedError):
        other.push(segment(0), wait=True)
    other.push(segment(0))
    with pytest.raises(ClosedError):
        other.flush()
    assert list(buffer) == []


def test_a_killed_worker_is_replaced_and_what_it_held_is_counted(make, segment, numbers):
    buffer = make(batch_size=2)
    for life in range(2):
        for number in range(5):
            buffer.push(segment(number))
        assert set(numbers(buffer.pop(SOON_S))) < set(range(5))
        buffer.flush()
        os.kill(buffer._pool.pids()[0], signal.SIGKILL)
        assert buffer.push(segment(5), segment(6), wait=True, timeout_s=SOON_S) == 2
        assert numbers(buffer.pop(SOON_S)) == [5, 6]
        assert buffer.stats()["lost"] == 3 * (life + 1)


def test_pushes_that_nobody_waits_for_go_on_too(make, segment, numbers):
    buffer = make(batch_size=2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(buffer.pop, SOON_S)
        with pytest.raises(DeadlineError):  # by then both have asked
            buffer.pop(0.2)
        os.kill(buffer._pool.pids()[0], signal.SIGKILL)
        sent = 0
        while not waiting.done():
            sent += buffer.push(segment(sent))
        buffer.flush()
        batch = numbers(waiting.result(SOON_S))
    stats = buffer.stats()
    assert len(batch) == 2
    assert stats["pushed"] + stats["lost"] == sent
    assert stats["dropped"] == 0 or stats["queued"] == 1024
