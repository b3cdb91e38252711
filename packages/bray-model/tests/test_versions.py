import json
import subprocess
import sys

import numpy as np
import pytest

from bray_core.errors import CodecError, FormatError, VersionNotFoundError
from bray_model import Retention
from bray_model.versions.version_store import VersionStore


def weights(value):
    return {
        "w": np.full((2, 3), value, np.float32),
        "n": np.array(value, np.int64),
        "mask": np.array([True, False]),
    }


@pytest.fixture
def store(tmp_path):
    return VersionStore(tmp_path / "versions", Retention(keep_last=3))


def test_round_trip_is_exact(store):
    store.save(4, weights(4))
    loaded = store.load(4)
    for name, array in weights(4).items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape


def test_the_last_ones_are_kept(store):
    for version in range(6):
        store.save(version, weights(version))
    assert store.versions() == [3, 4, 5]
    assert sorted(f.name for f in store.path.iterdir()) == [
        "3.safetensors",
        "4.safetensors",
        "5.safetensors",
        "index.json",
    ]
    store.save(1, weights(1))  # after a load(1)
    assert store.versions() == [1, 3, 4, 5]


def test_pinned_versions_stay_until_they_are_released(store):
    for version in range(3):
        store.save(version, weights(version))
    store.pin(1)
    assert store.pinned() == [1]
    for version in range(3, 8):
        store.save(version, weights(version))
    assert store.versions() == [1, 5, 6, 7]
    np.testing.assert_array_equal(store.load(1)["w"], weights(1)["w"])
    store.pin(1, False)
    store.save(8, weights(8))
    assert store.versions() == [6, 7, 8]
    with pytest.raises(VersionNotFoundError, match=r"version 1: not in .*; it has \[6, 7, 8\]"):
        store.pin(1)


def test_an_unknown_version_names_the_known(store):
    with pytest.raises(VersionNotFoundError, match=r"version 1: not in .*; it has none"):
        store.load(1)
    store.save(3, weights(3))
    with pytest.raises(VersionNotFoundError, match=r"version 1: not in .*; it has \[3\]"):
        store.load(1)


def test_a_truncated_file_is_told(store):
    file = store.save(3, weights(3))
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(
        CodecError, match=r"3.safetensors: not a whole safetensors file .*known: \[3"
    ):
        store.load(3)


def test_a_missing_index_is_rebuilt_from_the_files(store, caplog):
    store.save(3, weights(3))
    store.save(10, weights(10))
    (store.path / "index.json").unlink()
    assert store.versions() == [3, 10]
    assert "no index.json; found the versions [3, 10]" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 1}',
        '{"format": 1, "versions": [1], "pinned": []}',
        '{"format": 1, "versions": {"x": 1}, "pinned": []}',
        '{"format": 1, "versions": {"1": 1}, "pinned": ["x"]}',
    ],
)
def test_a_broken_index_is_told(store, content):
    store.save(3, weights(3))
    (store.path / "index.json").write_text(content)
    with pytest.raises(CodecError, match=r"index.json: not an index of versions .*: delete it"):
        store.versions()


def test_an_index_of_a_newer_format_is_told(store):
    store.save(3, weights(3))
    (store.path / "index.json").write_text(json.dumps({"format": 2, "versions": [3]}))
    with pytest.raises(FormatError, match=r"has format 2, this version reads up to 1: a newer"):
        store.versions()


def test_a_crash_before_the_index_leaves_the_last_good_state(store, monkeypatch):
    store.save(1, weights(1))

    def crash(path, data):
        if path.name == "index.json":
            raise OSError("no space left on device")
        path.write_bytes(data)

    monkeypatch.setattr("bray_model.versions.version_store.write_atomic", crash)
    with pytest.raises(OSError, match=r"no space left"):
        store.save(2, weights(2))
    assert store.versions() == [1]
    np.testing.assert_array_equal(store.load(1)["w"], weights(1)["w"])


def test_processes_that_save_and_pin_at_a_time_lose_nothing_of_each_other(store):
    """Each reads the index, changes it and writes it."""
    store.save(0, weights(0))
    pins, last = range(100, 140), 60
    script = f"""
import numpy as np, pathlib
from bray_model import Retention
from bray_model.versions.version_store import VersionStore
store = VersionStore(pathlib.Path({str(store.path)!r}), Retention(keep_last=200))
print("ready", flush=True); input()
for version in range(1, {last}): store.save(version, {{"w": np.zeros(2, np.float32)}})
"""
    keeps = VersionStore(store.path, Retention(keep_last=200))
    other = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n")
        other.stdin.flush()
        for version in pins:
            keeps.save(version, weights(version))
            keeps.pin(version)
    assert other.returncode == 0
    assert keeps.pinned() == list(pins)
    assert keeps.versions() == [*range(last), *pins]
