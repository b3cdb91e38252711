"""On real Ray: producers and consumers in several processes, by every carrier, and who dies."""

import asyncio
import os
import pickle
import signal
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bray_buffer import BufferConfig, ReplayConfig
from bray_core import metrics, nested, protocols
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    SpecError,
    WorkerLostError,
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

    def make(config=None, num_workers=1, **settings):
        settings = ({} if "batch_steps" in settings else {"batch_size": 2}) | settings
        name = f"b-{uuid.uuid4().hex[:8]}"
        made.append(RemoteBuffer(name, layout, config or BufferConfig(**settings), num_workers))
        return made[-1]

    yield make
    for buffer in made:
        buffer.close()


@pytest.fixture
def producers(ray_pickles_this_file):
    from bray_core.remote.pool import WorkerPool

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


def elsewhere(buffer, carrier):
    """A handle as a process of another node has it."""
    from bray_buffer.remote.connections import RayCallConnection

    handle = pickle.loads(pickle.dumps(buffer))
    handle._pool.near = lambda: []
    if carrier == "ray":
        handle._connections.opened[0] = RayCallConnection(handle._pool, 0, handle.layout)
    return handle


def kill_worker(buffer):
    os.kill(buffer._pool.pids()[0], signal.SIGKILL)


def test_one_buffer_for_processes_of_a_node(make, producers, layout, segment, numbers):
    from bray_buffer.remote import RemoteBuffer

    buffer = make()
    name = buffer._pool.name
    assert isinstance(buffer, protocols.BufferProtocol)
    assert (buffer.layout, buffer.batch_layout) == (layout, layout)
    block = layout.pack(nested.stack([segment(1), segment(2)]))
    assert buffer.push(segment(0), Packed(layout, block)) == 3
    assert buffer.push(segment(3)) == 1
    first, second = buffer.pop(SOON_S), buffer.pop(SOON_S)
    assert numbers(first) + numbers(second) == [0, 1, 2, 3]
    assert first.block.flags.writeable
    stats = buffer.stats()
    assert (stats["pushed"], stats["popped"], stats["lost"]) == (4, 4, 0)
    assert buffer.push() == 0

    pool = producers(buffer, 2)
    refs = [
        pool.submit("push", [segment(i) for i in range(k, k + 50)], True, worker=k // 50)
        for k in (0, 50)
    ]
    got = [number for _ in range(50) for number in numbers(buffer.pop(SOON_S))]
    assert sorted(got) == list(range(100))
    assert [pool.result(ref, SOON_S) for ref in refs] == [50, 50]
    assert pool.call("found", name, worker=0) == RemoteBuffer.get(name).layout.id

    buffer.push(segment(0))
    message = r"buffer b-\w+: no batch within 0.1 s: 1 of 2 segments are there"
    with pytest.raises(DeadlineError, match=message):
        buffer.pop(0.1)
    del (bad := segment(0))["reward"]
    with pytest.raises(SpecError, match=r"segment/reward: missing"):
        buffer.push(segment(1), bad)  # and nothing of this call is added
    with pytest.raises(AlreadyExistsError, match=name):
        RemoteBuffer(name, layout, BufferConfig(batch_size=1))
    with pytest.raises(NotFoundError, match="nobody"):
        RemoteBuffer.get("nobody")
    with pytest.raises(ConfigError, match="rank 1 of 2 has none of the buffer's 1 workers"):
        buffer.shard(1, 2)

    async def both():
        popped = asyncio.create_task(buffer.pop_async(SOON_S))
        cancelled = asyncio.create_task(buffer.pop_async(SOON_S))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        assert await buffer.push_async(segment(1), wait=True) == 1
        return numbers(await popped)

    assert asyncio.run(both()) == [0, 1]
    with pytest.raises(DeadlineError, match=r"no batch within 0\.01 s"):
        asyncio.run(buffer.pop_async(0.01))


def test_a_full_queue_refuses_or_lets_wait(make, segment, numbers):
    buffer = make(capacity=2, when_full="block")
    assert buffer.push(*map(segment, range(3))) == 2  # the caller keeps the third
    message = r"push found no room within 0.1 s, 0 of 1 segments were accepted"
    with pytest.raises(DeadlineError, match=message):
        buffer.push(segment(3), wait=True, timeout_s=0.1)
    with ThreadPoolExecutor(16) as pool:
        pushes = [
            pool.submit(buffer.push, segment(i), wait=True, timeout_s=SOON_S) for i in range(2, 16)
        ]
        got = [number for _ in range(8) for number in numbers(buffer.pop(SOON_S))]
        assert [push.result(SOON_S) for push in pushes] == [1] * 14
    assert sorted(got) == list(range(16))
    assert buffer.stats()["dropped"] == 0

    async def three():  # of one packed block, of which two find room at first
        block = np.stack([buffer.layout.pack(segment(i)) for i in range(3)])
        pushed = asyncio.create_task(
            buffer.push_async(Packed(buffer.layout, block), wait=True, timeout_s=SOON_S)
        )
        got = numbers(await buffer.pop_async(SOON_S))
        count = await pushed
        await buffer.push_async(segment(3))
        with pytest.raises(DeadlineError, match=r"within 0\.01 s, 0 of 1 segments"):
            await buffer.push_async(segment(4), wait=True, timeout_s=0.01)
        return count, got + numbers(await buffer.pop_async(SOON_S))

    assert asyncio.run(three()) == (3, [0, 1, 2, 3])


def test_batches_by_steps(make, segment, numbers):
    buffer = make(batch_steps=8, capacity=4)
    buffer.push(segment(0, 3), segment(1, 4), segment(2, 1))
    assert numbers(buffer.pop(SOON_S)) == [0, 1, 2]
    with pytest.raises(DeadlineError, match="0 of 8 steps are there"):
        buffer.pop(0.01)
    with pytest.raises(SpecError, match="length"):
        buffer.push(segment(0, 0))


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["socket", "ray"])
def test_producers_and_consumers_of_another_node(make, segment, numbers, carrier, monkeypatch):
    monkeypatch.setattr(
        "bray_buffer.remote.connections._MAX_CALL_NBYTES", 200
    )  # several calls a push
    buffer = make(capacity=4, when_full="block")
    other = elsewhere(buffer, carrier)
    assert other.push(*map(segment, range(5))) == 5  # sent; what became of them:
    other.flush()
    assert buffer.stats()["dropped"] == 1
    with pytest.raises(DeadlineError, match="0 of 1 segments were accepted"):
        other.push(segment(9), wait=True, timeout_s=0.1)
    got = numbers(other.pop(SOON_S)) + numbers(buffer.pop(SOON_S))
    assert carrier == "ray" or got == [0, 1, 2, 3]  # calls on Ray may overtake each other
    assert len(set(got) & set(range(5))) == 4
    assert other.push(segment(5), segment(6), wait=True) == 2
    other.set_policy_version(3)
    kill_worker(buffer)
    assert other.push(segment(7), segment(8), wait=True, timeout_s=SOON_S) == 2
    assert sorted(numbers(buffer.pop(SOON_S)) + numbers(buffer.pop(SOON_S))) == [5, 6, 7, 8]


@pytest.mark.long
def test_several_workers_share_the_pushes_and_each_gives_whole_batches(make, segment, numbers):
    buffer = make(num_workers=2, capacity=8)
    for number in range(8):
        buffer.push(segment(number))
    shards = [pickle.loads(pickle.dumps(buffer.shard(rank, 2))) for rank in range(2)]
    got = [numbers(shard.pop(SOON_S)) for shard in shards for _ in range(2)]
    assert sorted(number for batch in got for number in batch) == list(range(8))
    with pytest.raises(DeadlineError):
        buffer.pop(0.01)
    for number in range(3):
        buffer.push(segment(number))
    assert len(numbers(buffer.pop(SOON_S))) == 2  # one of them has a batch, whichever is asked
    with pytest.raises(ConfigError, match=r"update_priorities: expected a handle of one worker"):
        buffer.update_priorities(np.arange(2), np.ones(2))


def test_close_wakes_those_who_wait(make, segment):
    buffer = make()
    other = pickle.loads(pickle.dumps(buffer))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(handle.pop, SOON_S) for handle in (buffer, other)]
        with pytest.raises(DeadlineError):  # by then both have asked
            buffer.pop(0.2)
        buffer.close()
        for one in waiting:
            with pytest.raises(ClosedError, match=r"buffer b-\w+: closed"):
                one.result(SOON_S)
    for handle in (buffer, other):
        with pytest.raises(ClosedError, match=r"buffer b-\w+: closed"):
            handle.push(segment(0))
        assert list(handle) == []


@pytest.mark.long
def test_a_queue_loses_nothing_with_its_worker(make, segment, numbers):
    buffer = make()
    buffer.push(*map(segment, range(3)))
    kill_worker(buffer)
    assert buffer.state_dict() == {"workers": [{}]}, "as a checkpoint asks for it just then"
    kill_worker(buffer)
    buffer.push(segment(3))  # nobody waits for its successor
    assert numbers(buffer.pop(SOON_S)) + numbers(buffer.pop(SOON_S)) == [0, 1, 2, 3]
    buffer._pool.wait_ready()
    buffer.push(segment(4), segment(5))
    assert numbers(buffer.pop(SOON_S)) == [4, 5]
    assert buffer.stats()["lost"] == 0


@pytest.mark.long
def test_a_replay_in_its_worker_dies_counted_and_is_restored(make, segment, numbers, tmp_path):
    config = ReplayConfig(capacity=8, batch_size=4, min_size=3, sampler="prioritized", epsilon=0)
    replay = make(config)
    assert {"key", "weight"} < set(replay.batch_layout.spec)
    replay.push(*map(segment, range(3)), wait=True)
    replay.flush()
    batch = replay.pop(SOON_S).tree
    assert set(batch["number"]) <= {0, 1, 2}
    assert np.array_equal(batch["key"], batch["number"])  # they came in this order
    other = elsewhere(replay, "socket")
    for handle, chosen in ((replay, 1), (other, 2)):
        handle.update_priorities(np.arange(3), np.eye(3)[chosen])
        while set(replay.pop(SOON_S).tree["number"]) != {chosen}:
            pass  # a few batches were ready before
    replay.update_priorities(np.arange(3), np.ones(3))
    replay.save(tmp_path)
    kill_worker(replay)
    replay._pool.wait_ready()
    assert replay.stats()["lost"] == 3
    assert replay.load(tmp_path) == 3
    while set(replay.pop(SOON_S).tree["number"]) != {0, 1, 2}:
        pass
    assert replay.stats()["queued"] == 3
    replay.load_state_dict(replay.state_dict())


@pytest.mark.long
def test_priorities_for_a_worker_that_stands_still_are_counted(make, segment, monkeypatch):
    monkeypatch.setattr("bray_buffer.remote.connections._UPDATE_TIMEOUT_S", 0.05)
    config = ReplayConfig(capacity=8, batch_size=4, min_size=3, sampler="prioritized", epsilon=0)
    replay = make(config)
    replay.push(*map(segment, range(3)), wait=True)
    replay.flush()
    (pid,) = replay._pool.pids()
    metrics.drain()
    os.kill(pid, signal.SIGSTOP)
    try:
        lost = 0
        while not lost:  # until there is no room for more
            replay.update_priorities(np.arange(3), np.ones(3))
            found = [s for s in metrics.drain() if s.name == "buffer/lost_priorities"]
            lost = sum(s.total for s in found)
        assert 1 <= lost <= 3
    finally:
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + SOON_S
    while set(replay.pop(SOON_S).tree["number"]) != {1}:
        replay.update_priorities(np.arange(3), np.eye(3)[1])
        assert time.monotonic() < deadline


def test_no_room_in_shared_memory_is_told_to_who_makes_the_buffer(ray_pickles_this_file):
    from bray_buffer.remote import RemoteBuffer

    spec = nested.spec({"x": np.zeros(10**8, np.float32)})
    with pytest.raises(WorkerLostError, match=r"shared memory are needed in /dev/shm, .* are free"):
        RemoteBuffer("too-large", spec, BufferConfig(batch_size=1000))
