"""On real Ray: the store, and replicas in this process and in workers."""

import asyncio
import os
import signal
import sys
import threading
import time
import uuid

import numpy as np
import pytest
import torch

from bray_core import protocols
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    SpecError,
    VersionNotFoundError,
)
from bray_core.process.event_loop import EventLoopThread
from bray_model import Model

pytestmark = pytest.mark.ray

ROW = np.ones(3, np.float32)


class Player:
    """What an actor worker does with a handle."""

    def __init__(self, model):
        self.model = model
        self.loop = EventLoopThread("player")

    def pid(self):
        return os.getpid()

    def infer(self):
        answer = self.loop.run(self.model.infer(ROW), 30)
        return answer.outputs.tolist(), answer.version

    def wait_version(self, version):
        return self.loop.run(self.model.wait_version(version, 30.0))

    def name_found(self, name):
        from bray_model.remote import RemoteModel

        return RemoteModel.get(name).version

    def clone_infer(self, name):
        answer = self.loop.run(self.model.get_clone(name).infer(ROW), 30)
        return answer.outputs.tolist(), answer.version

    def publish(self, value):
        return self.model.publish({"weight": np.full((2, 3), value, np.float32)})

    def race(self, count):
        """Publish as often as it succeeds, each version's weights equal to its number."""
        won, lost = [], []
        for _ in range(count):
            weights = {"weight": np.full((2, 3), self.model.version + 1, np.float32)}
            try:
                won.append(self.model.publish(weights))
            except ConfigError as error:
                lost.append(str(error))
        return won, lost

    def watch(self, last, num_threads):
        """Infer in threads until `last` answers; return forwards, failures and mixed answers."""
        done = []

        def watch():
            forwards, failures, mixed, newest = 0, [], [], -1
            loop = EventLoopThread("watch")
            while newest < last and len(failures) < 10:
                try:
                    answer = loop.run(self.model.infer(ROW), 60)
                except Exception as error:  # noqa: BLE001  reported to the test
                    failures.append(repr(error))
                    continue
                forwards += 1
                if answer.outputs.tolist() != [3.0 * answer.version] * 2 or answer.version < newest:
                    mixed.append((answer, newest))
                newest = answer.version
            loop.stop()
            done.append((forwards, failures, mixed))

        threads = [threading.Thread(target=watch) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done

    def load(self, version):
        return self.model.load(version)

    def version(self):
        return self.model.version

    def shares(self):
        return self.model._attached().replica().shares

    def threads(self):
        return sum("follow" in thread.name for thread in threading.enumerate())


def weights(value):
    return {"weight": np.full((2, 3), value, np.float32)}


@pytest.fixture
def remote(ray_cluster):
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    from bray_core.remote import pool as remote

    return remote


@pytest.fixture
def make(remote):
    from bray_model.remote import RemoteModel

    made = []

    def make(**options):
        module = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.zeros_(module.weight)
        made.append(RemoteModel(f"m-{uuid.uuid4().hex[:8]}", module, ROW[None], **options))
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture
def players(remote):
    pools = []

    def players(model, num_workers=2):
        pools.append(
            remote.WorkerPool(
                f"p-{uuid.uuid4().hex[:8]}", Player, args=(model,), num_workers=num_workers
            )
        )
        return pools[-1]

    yield players
    for pool in pools:
        pool.close()


async def test_the_creator_has_a_replica(make):
    model = make()
    assert isinstance(model, protocols.ModelProtocol)
    assert model.version == 0
    assert model.signature == Model(torch.nn.Linear(3, 2), ROW[None]).signature
    assert model(ROW).tolist() == [0.0, 0.0]
    assert model.publish(weights(2)) == model.version == 1
    assert (await model.forward(ROW)).tolist() == [6.0, 6.0]
    assert await model.wait_version(1) == 1


def test_workers_follow_what_is_published(make, players):
    model = make()
    model.publish(weights(1))
    pool = players(model)
    assert pool.call_all("infer") == [([3.0, 3.0], 1)] * 2
    deadline = time.monotonic() + 10
    while not all(pool.call_all("shares")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(pool.call_all("shares")), "they read the store's shared memory"
    for version in range(2, 6):
        assert model.publish(weights(version)) == version
        assert pool.call_all("wait_version", version) == [version] * 2
        assert pool.call_all("infer") == [([3.0 * version] * 2, version)] * 2
    assert pool.call_all("threads") == [1, 1]


def test_a_worker_may_publish_and_the_driver_follows(make, players):
    model = make()
    pool = players(model, 1)
    assert pool.call("publish", 4.0) == 1
    assert asyncio.run(model.wait_version(1, 30.0)) == 1
    assert model(ROW).tolist() == [12.0, 12.0]
    assert model.publish(weights(5)) == 2
    assert pool.call("wait_version", 2) == 2


def test_get_looks_up_and_creation_refuses_a_taken_name(make, players):
    from bray_model.remote import RemoteModel

    model = make()
    model.publish(weights(1))
    assert RemoteModel.get(model.name).version == 1
    assert players(model, 1).call("name_found", model.name) == 1
    with pytest.raises(AlreadyExistsError, match=rf"a model named '{model.name}' exists already"):
        RemoteModel(model.name, torch.nn.Linear(3, 2), ROW[None])
    with pytest.raises(NotFoundError, match=r"no model named 'nobody': RemoteModel\(...\) makes"):
        RemoteModel.get("nobody")


def test_publish_checks_the_weights(make):
    model = make()
    with pytest.raises(SpecError, match=r"weights/weight: expected float32 \(2, 3\), got float64"):
        model.publish({"weight": np.zeros((2, 3))})
    with pytest.raises(SpecError, match=r"weights/bias: unexpected"):
        model.publish({**weights(1), "bias": np.zeros(2)})
    assert model.version == 0


def test_a_publisher_that_was_overtaken_is_told(make):
    model = make()
    replica = model._attached().replica()
    seen = replica.stamp
    assert model.publish(weights(9)) == 1
    with pytest.raises(ConfigError, match=r"version=1: .* took version 1 meanwhile: .* publish"):
        replica._link.call("put", seen.after_publish(), np.zeros(24, np.uint8), "another")


@pytest.mark.long
def test_two_processes_that_publish_to_one_name_lose_nothing_and_mix_nothing(make, players):
    """Each wins some versions; whoever is late is told, and no version is given twice."""
    model = make()
    pool = players(model)
    (won, lost), (won_too, lost_too) = pool.call_all("race", 40, timeout_s=100)
    assert not set(won) & set(won_too), "one number for two sets of weights"
    numbers = sorted(won + won_too)
    assert numbers == list(range(1, len(numbers) + 1)), "no number is left out"
    assert all("does another process publish too?" in message for message in lost + lost_too)
    assert pool.call_all("wait_version", numbers[-1]) == [numbers[-1]] * 2
    for values, version in pool.call_all("infer"):
        assert version == numbers[-1]
        assert values[0] == values[1]


@pytest.mark.long
def test_a_killed_store_comes_back_and_the_numbering_goes_on(make, players):
    model = make()
    pool = players(model, 1)
    for value in (1, 2, 3):
        model.publish(weights(value))
    assert pool.call("wait_version", 3) == 3
    os.kill(model._pool.pids()[0], signal.SIGKILL)
    assert model.publish(weights(4)) == 4
    assert pool.call("wait_version", 4) == 4
    assert pool.call("infer") == ([12.0, 12.0], 4)


@pytest.mark.long
def test_a_restarted_store_gets_its_weights_back_from_a_replica(make, players):
    model = make()
    model.publish(weights(7))
    os.kill(model._pool.pids()[0], signal.SIGKILL)
    model._pool.wait_ready(60)
    late = players(model, 1)  # built from the store alone
    assert late.call("wait_version", 1) == 1
    assert late.call("infer") == ([21.0, 21.0], 1)
    later = players(model, 1)
    os.kill(model._pool.pids()[0], signal.SIGKILL)
    assert later.call("wait_version", 1) == 1, "it begins while there is no store"
    assert later.call("infer") == ([21.0, 21.0], 1)


def test_checkpoints_resume(make, tmp_path):
    model = make(directory=tmp_path)
    model.publish(weights(1))
    model.publish(weights(2))
    assert model.checkpoint() == tmp_path / "versions" / "2.safetensors"
    model.close()
    again = make(directory=tmp_path)
    assert again.version == 2
    assert again(ROW).tolist() == [6.0, 6.0]
    assert again.publish(weights(5)) == 3
    assert make().checkpoint() is None


@pytest.mark.long
def test_publishes_under_full_load_fail_nothing_and_mix_nothing(make, players):
    """Every weight is its version's number, so an answer tells whether one version made it."""
    model = make()
    pool = players(model)
    pool.call_all("infer")
    watching = [pool.submit("watch", 200, 2, worker=worker) for worker in range(2)]
    for version in range(1, 201):
        assert model.publish(weights(version)) == version
        assert model(ROW).tolist() == [3.0 * version] * 2
    for ref in watching:
        for forwards, failures, mixed in pool.result(ref):
            assert (failures, mixed) == ([], [])
            assert forwards > 0


def test_clones_are_frozen_found_by_name_and_closed(make, players):
    model = make()
    pool = players(model)
    model.publish(weights(1))
    first = model.clone(name="first")
    model.publish(weights(2))
    again = first.clone(name="again")
    assert (first.version, again.version, model.version) == (1, 1, 2)
    assert first(ROW).tolist() == [3.0, 3.0]
    assert asyncio.run(again.infer(ROW)).version == 1
    assert first.signature == model.signature
    assert pool.call("clone_infer", "first") == ([3.0, 3.0], 1)
    followed = players(first, 1)
    assert followed.call("infer") == ([3.0, 3.0], 1)
    assert model.get_clone("again").name == "again"
    assert first.weights()[0] == 1
    assert first.checkpoint() is None
    for refuses in (lambda: first.publish(weights(3)), lambda: first.load(1)):
        with pytest.raises(ConfigError, match=r"'first' is a clone, frozen at version 1: .* to"):
            refuses()
    with pytest.raises(DeadlineError, match="version 2: 'first' stays at 1"):
        asyncio.run(first.wait_version(2, 60.0))
    assert asyncio.run(first.wait_version(1)) == 1
    with pytest.raises(AlreadyExistsError, match="has a clone 'first' already: get_clone"):
        model.clone(name="first")
    first.close()
    first.close()
    with pytest.raises(NotFoundError, match=r"has no clone 'first'; it has \['again'\]"):
        model.get_clone("first")
    assert again(ROW).tolist() == [3.0, 3.0]
    assert model(ROW).tolist() == [6.0, 6.0], "closing a clone leaves its model alone"


@pytest.mark.long
def test_load_goes_back_everywhere_and_the_numbering_goes_on(make, players, tmp_path):
    model = make(directory=tmp_path)
    pool = players(model)
    for value in (1, 2, 3):
        model.publish(weights(value))
        model.checkpoint()
    assert pool.call_all("wait_version", 3) == [3, 3]
    assert model.load(1) == model.version == 1
    assert model(ROW).tolist() == [3.0, 3.0]
    deadline = time.monotonic() + 30
    while pool.call_all("version") != [1, 1] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pool.call_all("infer") == [([3.0, 3.0], 1)] * 2
    assert pool.call("publish", 9, worker=0) == 4, "also from a process that did not load"
    assert asyncio.run(model.wait_version(4, 30.0)) == 4
    late = players(model, 1)
    assert late.call("load", 2) == 2
    assert late.call("infer") == ([6.0, 6.0], 2)
    with pytest.raises(VersionNotFoundError, match=r"version 8: not in .*; it has \[1, 2, 3\]"):
        model.load(8)
    with pytest.raises(ConfigError, match="no directory for versions: pass directory"):
        make().load(1)


async def test_close_ends_the_replica_and_its_thread(make):
    from bray_model.remote import RemoteModel

    model = make()
    thread = model._attached().replica()._thread
    model.close()
    model.close()
    assert not thread.is_alive()
    with pytest.raises(ClosedError):
        await model.infer(ROW)
    with pytest.raises(NotFoundError):
        RemoteModel.get(model.name)
