import threading

import numpy as np
import pytest

from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    ConfigError,
    NotFoundError,
    VersionNotFoundError,
    WorkerLostError,
)
from bray_core.nested import ArraySpec
from bray_model import ModelConfig
from bray_model.distributed.blueprint import CloneEntry, ModelBlueprint
from bray_model.distributed.shared_weights import WeightsReader
from bray_model.distributed.weight_store import MAX_WAITING_POLLS, WeightStore
from bray_model.signature import Signature
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore
from bray_model.versions.weights import WeightsStamp

FLOAT = ArraySpec(np.dtype(np.float32), (1,))


def blueprint(directory=None):
    return ModelBlueprint(
        name="demo",
        uid="u",
        definition=b"",
        signature=Signature((FLOAT,), FLOAT),
        config=ModelConfig(),
        directory=directory,
    )


class FakeRelay:
    def __init__(self, name):
        self.name = name
        self.calls = []
        self.closed = False

    def call(self, method, *args, timeout_s=60.0):
        self.calls.append(method)
        raise WorkerLostError("gone")

    def close(self):
        self.closed = True


class FakeMaker:
    here = "home"

    def __init__(self):
        self.made = []
        self.error = None

    def make(self, node):
        if self.error:
            raise self.error
        self.made.append(FakeRelay(f"{node}-{len(self.made)}"))
        return self.made[-1]


def stamp(version, sequence=None):
    return WeightsStamp(version if sequence is None else sequence, version, version)


def block(value):
    return np.full(8, value, np.uint8)


@pytest.fixture
def maker():
    return FakeMaker()


@pytest.fixture
def make(maker):
    made = []

    def make(**options):
        directory = options.pop("directory", None)
        made.append(WeightStore("demo", maker, **options))
        assert made[-1].begin(blueprint(directory), stamp(3), block(3))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make):
    return make()


def test_what_is_published_lies_in_shared_memory_too(store):
    reader = WeightsReader(store.shared())
    for version in (3, 4):
        if version > 3:
            store.put(stamp(version), block(version), "me")
        got, copied = reader.read()
        assert got == stamp(version)
        np.testing.assert_array_equal(copied, block(version))
    reader.close()


def test_without_room_in_shared_memory_replicas_ask(make, monkeypatch, caplog):
    def full(nbytes):
        raise ConfigError(f"weights: {nbytes} bytes of shared memory are needed")

    monkeypatch.setattr("bray_model.distributed.weight_store.WeightsWriter", full)
    store = make()
    assert store.shared() is None
    store.put(stamp(4), block(4), "me")
    assert store.poll(3, 0.0)[0] == stamp(4)
    assert "replicas ask over Ray instead: weights: 8 bytes" in caplog.text


def test_a_new_replica_gets_the_current_weights_at_once(store):
    got, copied = store.poll(-1, 0.0)
    assert got == store.stamp() == stamp(3)
    np.testing.assert_array_equal(copied, block(3))
    assert store.blueprint().name == "demo"
    assert store.uid() == "u"
    assert store.stats() == {"blocks_sent": 1, "relays": 0, "clones": 0}


def test_polls_wait_for_a_publish(store):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(store.poll(3, 30.0))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    store.put(stamp(4), block(4), "me")
    for thread in threads:
        thread.join(10)
    assert [got for got, _ in results] == [stamp(4)] * 4


def test_a_poll_that_waited_in_vain_has_no_block(store):
    assert store.poll(3, 0.01) == (stamp(3), None)


def test_who_holds_newer_weights_is_told_at_once(store):
    assert store.poll(9, 30.0) == (stamp(3), None)


def test_too_many_polls_do_not_wait(store):
    store._board._num_waiting = MAX_WAITING_POLLS
    assert store.poll(3, 30.0) == (stamp(3), None)


def test_publishing_again_is_harmless_and_older_is_refused(store):
    store.put(stamp(4), block(4), "me")
    store.put(stamp(4), block(4), "me")
    for version, publisher in ((4, "other"), (3, "me")):
        with pytest.raises(
            ConfigError,
            match=rf"version={version}: model 'demo' took version 4 meanwhile: .* publish too\?",
        ):
            store.put(stamp(version), block(0), publisher)
    assert store.poll(-1, 0.0)[1][0] == 4


def test_an_old_version_under_a_later_sequence_is_newer(store):
    store.put(WeightsStamp(4, 1, 3), block(1), "me")
    got, copied = store.poll(3, 0.0)
    assert got == WeightsStamp(4, 1, 3)
    assert copied[0] == 1
    assert got.after_publish() == WeightsStamp(5, 4, 4)
    assert WeightsStamp(5, 4, 4).after_load(2, 9) == WeightsStamp(6, 2, 9)


def test_clones_are_kept_and_names_are_taken_once(store):
    entry = CloneEntry(name="old", version=2, block=block(2))
    assert store.add_clone(entry)
    assert store.clone("old") is entry
    assert store.clone_version("old") == 2
    with pytest.raises(AlreadyExistsError, match="'demo' has a clone 'old' already: get_clone"):
        store.add_clone(entry)
    with pytest.raises(NotFoundError, match=r"'demo' has no clone 'new'; it has \['old'\]"):
        store.clone("new")
    store.remove_clone("old")
    store.remove_clone("old")
    with pytest.raises(NotFoundError, match="it has none"):
        store.clone("old")


def test_a_clone_without_weights_must_be_on_disk(make, tmp_path):
    entry = CloneEntry(name="old", version=2, block=None)
    without = make()
    assert not without.add_clone(entry)
    with pytest.raises(VersionNotFoundError, match="version 2: model 'demo' has no directory"):
        without.read_version(2)
    store = make(directory=tmp_path)
    assert not store.add_clone(entry)
    weights = {"w": np.arange(2, dtype=np.float32)}
    VersionStore(tmp_path / "versions", Retention()).save(2, weights)
    assert store.add_clone(entry)
    np.testing.assert_array_equal(store.read_version(2)["w"], weights["w"])


def test_a_node_has_one_relay_whoever_asks(store, maker):
    home = store.locate("home")
    assert (home.is_here, home.relay) == (True, None)
    with_threads: list = []
    threads = [
        threading.Thread(target=lambda: with_threads.append(store.locate("far"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {location.relay for location in with_threads} == {"far-0"}
    assert len(maker.made) == 1
    assert store.locate("farther").relay == "farther-1"


def test_a_relay_that_is_missed_is_replaced_once(store, maker):
    assert store.locate("far").relay == "far-0"
    assert store.locate("far", lost="far-0").relay == "far-1"
    assert store.locate("far", lost="far-0").relay == "far-1", "the second who misses it"
    assert maker.made[0].closed
    assert maker.made[0].calls == ["close"]


def test_relays_that_die_again_and_again_are_not_made_any_more(store, maker, caplog):
    location = store.locate("far")
    for _ in range(20):
        if location.relay is None:
            break
        location = store.locate("far", lost=location.relay)
    assert len(maker.made) == 11, "as many as the limit of restarts has"
    assert (location.is_here, location.relay) == (False, None), "the replicas ask the store"
    assert "relays of node far die" in caplog.text
    assert store.locate("farther").relay == "farther-11"


def test_without_a_relay_replicas_ask_the_store(store, maker, caplog):
    maker.error = WorkerLostError("no such node")
    location = store.locate("far")
    assert (location.is_here, location.relay) == (False, None)
    assert "no relay: no such node" in caplog.text


def test_relays_are_told_whom_to_ask(make):
    store = make(width=1)
    assert store.join("a") is None
    assert store.join("b") == "a"
    assert store.join("b", lost="a") is None
    assert store.join("a") == "b"


def test_a_closed_store_wakes_who_waits_and_makes_no_relay(make):
    store = make()
    raised = []

    def wait():
        try:
            store.poll(3, 30.0)
        except ClosedError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    store.close()
    thread.join(10)
    assert raised == ["model 'demo': closed"]
    with pytest.raises(ClosedError, match="model 'demo': closed"):
        store.locate("far")


def test_an_empty_store_waits_for_what_it_begins_with(maker, monkeypatch):
    store = WeightStore("demo", maker)
    for ask in (store.stamp, store.shared, lambda: store.poll(0, 9), lambda: store.locate("home")):
        with pytest.raises(WorkerLostError, match="'demo': its store was restarted and is empty"):
            ask()
    waiting = threading.Thread(target=lambda: got.append(store.uid()))
    got: list = []
    waiting.start()
    assert store.begin(blueprint(), stamp(5), block(5))
    waiting.join(10)
    assert got == ["u"]
    assert not store.begin(blueprint(), stamp(6), block(6))
    assert store.stamp() == stamp(5)
    store.close()
    monkeypatch.setattr("bray_model.distributed.weight_store._BEGIN_S", 0.01)
    empty = WeightStore("demo", maker)
    assert empty.incarnation() != store.incarnation()
    with pytest.raises(WorkerLostError, match="restarted, and no replica gave it its weights"):
        empty.put(stamp(5), block(5), "me")
    empty.close()
