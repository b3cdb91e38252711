"""Replicas, relays and their store, each as on a node of its own, in one process without Ray."""

import asyncio
import dataclasses
import threading
import time

import numpy as np
import pytest
import torch

from bray_core.errors import (
    AlreadyExistsError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    SpecError,
    VersionNotFoundError,
    WorkerLostError,
)
from bray_core.layout import Layout
from bray_model import Model, ModelConfig
from bray_model.distributed.blueprint import ModelBlueprint
from bray_model.distributed.replica import ModelReplica
from bray_model.distributed.weight_relay import WeightRelay
from bray_model.distributed.weight_store import WeightStore
from bray_model.versions.retention import Retention
from bray_model.versions.weights import WeightsStamp, weights_spec

ROW = np.ones(3, np.float32)
CONFIG = ModelConfig(retention=Retention(keep_last=2))


def weights(value):
    return {"weight": np.full((2, 3), value, np.float32)}


class Cluster:
    """Stores and relays by name; one that is killed loses its state and its shared memory."""

    def __init__(self, directory=None, width=4):
        self.models = []
        self.directory = directory
        self.width = width
        self.relays = {}
        self.replicas = []
        self.calls = []
        first = self.model()
        self.blueprint = ModelBlueprint(
            name="demo",
            uid="u",
            definition=b"",
            signature=first.signature,
            config=CONFIG,
            directory=directory,
        )
        self.stamp = WeightsStamp(0, first.version, first.version)
        self.block = Layout(weights_spec(first.weights()[1])).pack(first.weights()[1])
        self.store = self.new_store()
        self.store.begin(self.blueprint, self.stamp, self.block)

    def model(self):
        module = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.zeros_(module.weight)
        model = Model(module, ROW[None], name="demo", config=CONFIG)
        self.models.append(model)
        return model

    def new_store(self):
        return WeightStore("demo", Maker(self), self.width)

    def replica(self, node="home", stamp=None, **changes):
        blueprint = dataclasses.replace(self.blueprint, **changes)
        self.replicas.append(ModelReplica(blueprint, self.model(), Link(self, node), stamp))
        return self.replicas[-1]

    def kill_store(self):
        old, self.store = self.store, None
        for relay in old._relays._relays.values():  # as Ray does: their owner is gone
            relay.kill()
        if old._began.is_set():
            old._board.close()

    def store_stamp(self):
        return self.store.stamp() if self.store._began.is_set() else None

    def close(self):
        if self.store is not None:
            self.store.close()
        for replica in self.replicas:
            replica.close()
        for model in self.models:
            model.close()
        for relay in self.relays.values():
            relay.kill()


class Link:
    """`StoreLink` of a process on some node."""

    is_connected = True

    def __init__(self, cluster, node):
        self.cluster = cluster
        self.node = node

    def call(self, method, *args, timeout_s=60.0):
        store = self.cluster.store
        if store is None:
            raise WorkerLostError("the store died")
        self.cluster.calls.append((self.node, method))
        return getattr(store, method)(*args)

    def exists(self):
        return True

    def wait_ready(self, timeout_s):
        if self.cluster.store is None:
            self.cluster.store = self.cluster.new_store()

    def relay(self, name):
        if name not in self.cluster.relays:
            raise NotFoundError(f"name: no pool named {name!r}")
        return self.cluster.relays[name]


class Maker:
    here = "home"

    def __init__(self, cluster):
        self.cluster = cluster

    def make(self, node):
        name = f"{node}-{len(self.cluster.relays)}"
        self.cluster.relays[name] = RelayProcess(self.cluster, node, name)
        return self.cluster.relays[name]


class RelayProcess:
    def __init__(self, cluster, node, name):
        self.name = name
        self.relay = WeightRelay(Link(cluster, node), name, "demo")

    def call(self, method, *args, timeout_s=60.0):
        if self.relay is None:
            raise WorkerLostError("the relay died")
        return getattr(self.relay, method)(*args)

    def kill(self):
        relay, self.relay = self.relay, None
        if relay is not None:
            relay.close()

    close = kill


@pytest.fixture
def make():
    made = []

    def make(**options):
        made.append(Cluster(**options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def holds(replica, version):
    return lambda: replica.model.version == version and replica.stamp.version == version


def kill_stores_as_they_are_asked(cluster, what, monkeypatch):
    call = Link.call
    deaths = iter(range(2))

    def dying(link, method, *args, **options):
        if method == what and cluster.store is not None and next(deaths, None) is not None:
            cluster.kill_store()
        return call(link, method, *args, **options)

    monkeypatch.setattr(Link, "call", dying)


def test_replicas_on_the_stores_node_read_shared_memory(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    other = cluster.replica()
    assert one.publish(weights(4)) == WeightsStamp(1, 1, 1)
    until(holds(other, 1))
    assert other.shares
    assert other.model(ROW).tolist() == [12.0, 12.0]
    assert cluster.store.stats()["blocks_sent"] == 0


@pytest.mark.parametrize("width", [1, 2])
def test_each_node_gets_a_version_once_and_no_parent_sends_to_many(make, width):
    cluster = make(width=width)
    one = cluster.replica(stamp=cluster.stamp)
    others = [cluster.replica(f"node{i % 5}") for i in range(15)]
    assert len(cluster.relays) == 5
    before = cluster.store.stats()["blocks_sent"]
    versions = 6
    for version in range(1, versions + 1):
        one.publish(weights(version))
        for replica in others:
            until(holds(replica, version))
            assert replica.model(ROW).tolist() == [3.0 * version] * 2
    assert cluster.store.stats()["blocks_sent"] - before == versions * width
    for process in cluster.relays.values():
        stats = process.call("stats")
        assert stats["blocks_received"] == versions + 1, "and one to begin with"
        assert stats["blocks_sent"] <= (versions + 1) * width
    assert all(replica.shares for replica in others)
    assert not {(n, m) for n, m in cluster.calls if n != "home" and m == "poll"} - {
        (relay.split("-")[0], "poll") for relay in cluster.relays
    }


def test_a_relay_that_dies_is_replaced_and_its_children_ask_another(make):
    cluster = make(width=1)
    one = cluster.replica(stamp=cluster.stamp)
    others = [cluster.replica(f"node{i}") for i in range(3)]
    names = list(cluster.relays)
    assert [cluster.relays[name].call("parent") for name in names] == [None, *names[:2]]
    cluster.relays[names[0]].kill()
    until(lambda: len(cluster.relays) == 4)
    for version in (1, 2):
        one.publish(weights(version))
        for replica in others:
            until(holds(replica, version))
    assert names[0] not in {
        relay.call("parent") for relay in cluster.relays.values() if relay.relay is not None
    }


def test_a_store_that_was_restarted_gets_all_back(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    far = cluster.replica("far")
    one.publish(weights(2))
    one.clones.clone(-1, "two")
    one.publish(weights(3))
    until(holds(far, 2))
    cluster.kill_store()
    cluster.store = cluster.new_store()
    until(lambda: cluster.store_stamp() == WeightsStamp(2, 2, 2))
    until(lambda: "two" in cluster.store._clones)
    one.publish(weights(5))
    until(holds(far, 3))
    assert far.clones.model("two")(ROW).tolist() == [6.0, 6.0]


def test_clones_are_made_and_found_while_the_store_is_replaced(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    far = cluster.replica("far")
    one.publish(weights(2))
    cluster.kill_store()
    assert one.clones.clone(-1, "two").version == 1
    cluster.kill_store()
    assert far.clones.model("two")(ROW).tolist() == [6.0, 6.0]


def test_a_clone_is_made_where_the_new_store_dies_too(make, monkeypatch):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    one.publish(weights(2))
    kill_stores_as_they_are_asked(cluster, "add_clone", monkeypatch)
    assert one.clones.clone(-1, "two").version == 1
    assert "two" in cluster.store._clones


def test_the_only_replica_may_be_on_another_node_when_the_store_dies(make):
    cluster = make()
    far = cluster.replica("far")
    far.publish(weights(2))
    cluster.kill_store()
    cluster.store = cluster.new_store()
    until(lambda: cluster.store_stamp() == WeightsStamp(1, 1, 1))
    late = cluster.replica("home")
    assert late.model(ROW).tolist() == [6.0, 6.0]


def test_publishing_to_a_store_that_died_is_repeated(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    one.publish(weights(1))
    cluster.kill_store()
    assert one.publish(weights(2)) == WeightsStamp(2, 2, 2)
    assert cluster.store.stamp() == WeightsStamp(2, 2, 2)


def test_publishing_goes_on_where_the_new_store_dies_too(make, monkeypatch):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    kill_stores_as_they_are_asked(cluster, "put", monkeypatch)
    assert one.publish(weights(2)) == WeightsStamp(1, 1, 1)
    assert cluster.store.stamp() == WeightsStamp(1, 1, 1)


def test_without_shared_memory_replicas_wait_at_the_store_or_their_relay(make, monkeypatch):
    def full(nbytes):
        raise ConfigError("shared memory is full")

    monkeypatch.setattr("bray_model.distributed.weight_store.WeightsWriter", full)
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    others = [cluster.replica("home"), cluster.replica("far")]
    for version in (1, 2):
        one.publish(weights(version))
        for replica in others:
            until(holds(replica, version))
    assert not any(replica.shares for replica in others)


def test_load_is_an_update_and_newest_travels_with_it(make, tmp_path):
    cluster = make(directory=tmp_path)
    one = cluster.replica(stamp=cluster.stamp)
    far = cluster.replica("far")
    for version in (1, 2, 3):
        one.publish(weights(version))
        one.checkpoint()
    assert one.load(2) == WeightsStamp(4, 2, 3)
    until(holds(far, 2))
    assert far.model(ROW).tolist() == [6.0, 6.0]
    late = cluster.replica()
    assert late.publish(weights(9)) == WeightsStamp(5, 4, 4)
    until(holds(one, 4))
    with pytest.raises(VersionNotFoundError, match=r"version 1: not in .*; it has \[2, 3\]"):
        one.load(1)


def test_weights_that_are_not_finite_reach_nobody(make, tmp_path):
    cluster = make(directory=tmp_path)
    one = cluster.replica(stamp=cluster.stamp)
    other = cluster.replica()
    one.publish(weights(4))
    one.checkpoint()
    one.blueprint.versions().save(2, weights(np.nan))
    message = "weights/weight: expected finite numbers, got NaN or infinity in 6 of 6"
    with pytest.raises(SpecError, match=message):
        one.publish(weights(np.inf))
    with pytest.raises(SpecError, match=message):
        one.load(2)
    until(holds(other, 1))
    assert one.stamp == other.stamp == cluster.store_stamp() == WeightsStamp(1, 1, 1)
    assert other.model(ROW).tolist() == [12.0, 12.0]


def test_clones_of_versions_on_disk_are_pinned_and_read_from_there(make, tmp_path):
    cluster = make(directory=tmp_path)
    one = cluster.replica(stamp=cluster.stamp)
    one.publish(weights(1))
    one.checkpoint()
    entry = one.clones.clone(1, None)
    assert (entry.name, entry.block) == ("demo-v1", None)
    for version in range(2, 6):  # keep_last is 2
        one.publish(weights(version))
        one.checkpoint()
    other = cluster.replica("far")
    assert one.clones.model("demo-v1")(ROW).tolist() == [3.0, 3.0]
    assert other.clones.model("demo-v1")(ROW).tolist() == [3.0, 3.0]
    assert not [call for call in cluster.calls if call[1] == "read_version"]
    blind = cluster.replica("blind", directory=tmp_path / "not on this node")
    clone = blind.clones.model("demo-v1")
    assert (clone.version, clone(ROW).tolist()) == (1, [3.0, 3.0])
    assert ("blind", "read_version") in cluster.calls


def test_clones_without_a_directory_are_kept_by_the_store(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    one.publish(weights(1))
    assert one.clones.clone(-1, "first").version == 1
    one.publish(weights(2))
    assert one.clones.clone_of("first", -1, "again").version == 1
    assert one.clones.clone_of("again", -1, None).name == "again-v1"
    far = cluster.replica("far")
    for name in ("first", "again", "again-v1"):
        clone = far.clones.model(name)
        assert clone is far.clones.model(name)
        assert (clone.version, clone(ROW).tolist()) == (1, [3.0, 3.0])
    assert far.model(ROW).tolist() == [6.0, 6.0]
    assert far.clones.clone_of("first", 2, "second").version == 2
    with pytest.raises(AlreadyExistsError, match="has a clone 'first' already"):
        one.clones.clone(-1, "first")
    with pytest.raises(VersionNotFoundError, match=r"version 1: .* holds version 2, .* disk none"):
        one.clones.clone(1, "old")
    with pytest.raises(NotFoundError, match="has no clone 'nobody'"):
        one.clones.model("nobody")
    far.clones.drop("first")
    assert far.clones.model("first") is not clone


def test_a_first_use_by_many_threads_builds_one(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    one.clones.clone(-1, "first")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(one.clones.model("first"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_caller_may_ask_for_no_older_weights_than_it_saw(make):
    cluster = make()
    one = cluster.replica(stamp=cluster.stamp)
    assert one.publish(weights(1)).sequence == one.sequence_of(1) == 1
    assert one.sequence_of(7) == 0
    asyncio.run(one.wait_sequence(1, 0.0))
    with pytest.raises(DeadlineError, match=r"this replica is behind by 2 updates, and was for"):
        asyncio.run(one.wait_sequence(3, 0.01))
