import threading

import numpy as np
import pytest

from bray_core.errors import ConfigError
from bray_model import ModelConfig
from bray_model.shared_weights import WeightsReader
from bray_model.weight_store import MAX_WAITING_POLLS, Blueprint, WeightStore

BLUEPRINT = Blueprint(name="demo", uid="u", definition=b"", config=ModelConfig(), directory=None)


def block(value):
    return np.full(8, value, np.uint8)


@pytest.fixture
def store():
    store = WeightStore(BLUEPRINT, 3, block(3))
    yield store
    store.close()


def test_what_is_published_lies_in_shared_memory_too(store):
    reader = WeightsReader(store.shared())
    for version in (3, 4):
        if version > 3:
            store.publish(version, block(version), "me")
        got, copied = reader.read()
        assert got == version
        np.testing.assert_array_equal(copied, block(version))
    reader.close()


def test_without_room_in_shared_memory_replicas_ask(monkeypatch, caplog):
    def full(nbytes):
        raise ConfigError(f"weights: {nbytes} bytes of shared memory are needed")

    monkeypatch.setattr("bray_model.weight_store.WeightsWriter", full)
    store = WeightStore(BLUEPRINT, 3, block(3))
    assert store.shared() is None
    store.publish(4, block(4), "me")
    assert store.poll(3, 0.0)[0] == 4
    store.close()
    assert "replicas ask over Ray instead: weights: 8 bytes" in caplog.text


def test_a_new_replica_gets_the_current_weights_at_once(store):
    version, got = store.poll(-1, 0.0)
    assert version == 3
    np.testing.assert_array_equal(got, block(3))
    assert store.blueprint() is BLUEPRINT
    assert store.uid() == "u"


def test_polls_wait_for_a_publish(store):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(store.poll(3, 30.0))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    store.publish(4, block(4), "me")
    for thread in threads:
        thread.join(10)
    assert [version for version, _ in results] == [4] * 4


def test_a_poll_that_waited_in_vain_has_no_block(store):
    assert store.poll(3, 0.01) == (3, None)


def test_who_holds_newer_weights_is_told_at_once(store):
    assert store.poll(9, 30.0) == (3, None)


def test_too_many_polls_do_not_wait(store):
    store._num_waiting = MAX_WAITING_POLLS
    assert store.poll(3, 30.0) == (3, None)


def test_publishing_again_is_harmless_and_older_is_refused(store):
    store.publish(4, block(4), "me")
    store.publish(4, block(4), "me")
    for version, publisher in ((4, "other"), (3, "me")):
        with pytest.raises(
            ConfigError, match=rf"version={version}: expected more than 4, the newest in the store"
        ):
            store.publish(version, block(0), publisher)
    assert store.poll(-1, 0.0)[1][0] == 4
