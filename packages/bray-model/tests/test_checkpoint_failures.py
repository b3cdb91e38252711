"""Disks that fill up and processes that are killed while a version is written."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from bray_core.errors import CodecError, SpecError
from bray_model import Model, Retention
from bray_model.versions.version_store import CheckpointError, VersionStore

ROW = np.ones(4, np.float32)

FILL_UP = """
import os, sys
from pathlib import Path
import numpy as np, torch
from bray_core.errors import BrayError
from bray_model import Model
from bray_model.versions.version_store import VersionStore

disk = Path(sys.argv[1])
row = np.ones(500, np.float32)
module = torch.nn.Linear(500, 500, bias=False)  # 1 MB on a disk of 4 MB

def publish(model, value):
    return model.publish({"weight": np.full((500, 500), value, np.float32)})

def check(model, known):
    assert model._versions.stored().versions() == known, model._versions.stored().versions()
    names = sorted(file.name for file in (disk / "trial" / "versions").iterdir())
    assert names == sorted([f"{n}.safetensors" for n in known] + ["index.json"]), names
    for number in known:
        with Model(module, row[None], directory=disk / "trial") as reader:
            reader.load(number)
            assert reader(row)[0] == 500.0 * number

asked_for_the_index = []
write = VersionStore._write
VersionStore._write = lambda store, index: asked_for_the_index.append(1) or write(store, index)

with Model(module, row[None], directory=disk / "trial") as model:
    for number in (1, 2):
        publish(model, number)
        model.checkpoint()
    # Room for no file, then for a part of it, then for all of it but no index.
    free = os.statvfs(disk)
    free = free.f_bavail * free.f_frsize
    for room in (0, 400_000, 1_000_448 + 4096):
        (disk / "ballast").write_bytes(bytes(free // 4096 * 4096 - room // 4096 * 4096))
        publish(model, model.version + 1)
        try:
            model.checkpoint()
        except (BrayError, OSError) as error:
            print(type(error).__name__, error)
        else:
            print("written", model.version, "with room", room)
        assert model(row)[0] == 500.0 * model.version, "it still answers"
        check(model, [1, 2])
        (disk / "ballast").unlink()
    assert len(asked_for_the_index) == 3, "twice with success, and in the last case"
    model.checkpoint()
    check(model, [1, 2, model.version])
    clone = model.clone(1, "clone")
    assert clone(row)[0] == 500.0
print("done")
"""


def run_on_a_small_disk(script, folder, megabytes):
    """Run a script, its argument a tmpfs of its own; skip where none can be mounted."""
    mount = f"mount -t tmpfs -o size={megabytes}m none {folder}"
    unshare = ["unshare", "-rm", "sh", "-c"]
    try:
        tried = subprocess.run([*unshare, mount], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no unshare here to mount a small disk")
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    command = f'{mount} && exec "$0" -c "$1" {folder}'
    return subprocess.run(
        [*unshare, command, sys.executable, script], capture_output=True, text=True, timeout=100
    )


def test_a_disk_that_fills_up(tmp_path):
    done = run_on_a_small_disk(FILL_UP, tmp_path, 4)
    assert done.returncode == 0, done.stderr
    *errors, last = done.stdout.splitlines()
    assert last == "done"
    assert len(errors) == 3
    for number, error in zip((3, 4, 5), errors, strict=True):
        file = tmp_path / "trial" / "versions" / f"{number}.safetensors"
        assert error == (
            f"CheckpointError {file}: version {number} cannot be written (No space left on "
            "device): free space or keep fewer versions (retention), then try again; what was "
            "there is as it was"
        )


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "versions").write_text("a file")
    with pytest.raises(CheckpointError, match=r"versions/1.safetensors: version 1 cannot be writ"):
        VersionStore(tmp_path / "versions", Retention()).save(1, {"w": ROW})


CHECKPOINTS = """
import sys
from pathlib import Path
import numpy as np
from bray_model import Retention
from bray_model.versions.version_store import VersionStore

store = VersionStore(Path(sys.argv[1]), Retention(keep_last=2))
version = max(store.versions(), default=0)
while True:
    version += 1
    store.save(version, {"w": np.full(300_000, version, np.float32)})
    print(version, flush=True)
"""


def check_store(path, at_least=0):
    """Everything that the index names loads and is whole."""
    store = VersionStore(path, Retention())
    versions = store.versions()
    for version in versions:
        np.testing.assert_array_equal(
            store.load(version)["w"], np.full(300_000, version, np.float32)
        )
    assert max(versions, default=0) >= at_least
    return versions


def test_a_process_that_is_killed_while_it_checkpoints(tmp_path):
    rng = random.Random(0)
    last = 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", CHECKPOINTS, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        with process:
            for _ in range(rng.randint(1, 15)):
                last = int(process.stdout.readline())
            # Spin for a part of a checkpoint, so that it is hit at any place.
            for _ in range(rng.randint(0, 20_000)):
                pass
            process.send_signal(signal.SIGKILL)
        assert check_store(tmp_path, at_least=last)[-1] >= last
    assert last > 6


# Every file operation raises an audit event: in the k-th child the k-th one is the last.
DIE_AT_EVERY_OPERATION = """
import os, sys
from itertools import count
from pathlib import Path
import numpy as np
from bray_model import Retention
from bray_model.versions.version_store import VersionStore

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.link", "os.listdir", "os.scandir")

def save(store, version):
    store.save(version, {"w": np.full(300_000, version, np.float32)})

def work(path):
    store = VersionStore(path / "versions", Retention(keep_last=2))
    for version in (1, 2, 3):
        save(store, version)
    store.pin(2)
    store.link(2, VersionStore(path / "clone", Retention()))
    save(store, 4)

def work_until(k, path):
    path.mkdir()
    left = k
    def die(event, arguments):
        nonlocal left
        if event in EVENTS and str(path) in str(arguments):
            left -= 1
            if not left:
                os._exit(9)
    sys.addaudithook(die)
    work(path)
    os._exit(0)

for k in count(1):
    child = os.fork()
    if not child:
        work_until(k, Path(sys.argv[1]) / str(k))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 9:
        print(k)
        sys.exit(code)
"""


def test_a_crash_at_every_file_operation(tmp_path):
    command = [sys.executable, "-c", DIE_AT_EVERY_OPERATION, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    last = int(done.stdout)
    assert last > 20
    found = set()
    for k in range(1, last):
        path = tmp_path / str(k)
        check_store(path / "clone")
        found.add(tuple(check_store(path / "versions")))
        store = VersionStore(path / "versions", Retention(keep_last=2))
        store.save(9, {"w": np.full(300_000, 9, np.float32)})  # and it goes on
        assert check_store(path / "versions")[-1] == 9
    assert {(), (1,), (1, 2), (2, 3)} <= found
    assert check_store(tmp_path / str(last) / "versions") == [2, 3, 4]
    assert check_store(tmp_path / str(last) / "clone") == [2]


def test_what_killed_processes_left_is_swept_later(tmp_path):
    store = VersionStore(tmp_path, Retention(keep_last=2))
    for version in (1, 2):
        store.save(version, {"w": ROW})
    abandoned = [tmp_path / ".3.safetensors.x7a", tmp_path / "7.safetensors"]
    fresh = [tmp_path / ".4.safetensors.k2b", tmp_path / "8.safetensors", tmp_path / "notes.txt"]
    for file in abandoned + fresh:
        file.touch()
    for file in (*abandoned, tmp_path / "notes.txt", tmp_path / "2.safetensors"):
        os.utime(file, (time.time() - 7200,) * 2)
    store.save(3, {"w": ROW})
    assert not any(file.exists() for file in abandoned)
    assert all(file.exists() for file in fresh), "one may be written just now"
    assert store.versions() == [2, 3]
    store.load(2)


@pytest.fixture
def trial(tmp_path) -> Path:
    """The directory of a model with the versions 1 and 2."""
    with Model(torch.nn.Linear(4, 1), ROW[None], directory=tmp_path) as model:
        for value in (1, 2):
            model.publish(
                {"weight": np.full((1, 4), value, np.float32), "bias": np.zeros(1, np.float32)}
            )
            model.checkpoint()
    return tmp_path


def reopen(directory):
    return Model(torch.nn.Linear(4, 1), ROW[None], directory=directory)


def test_a_truncated_newest_version_is_told_and_its_cure_works(trial):
    file = trial / "versions" / "2.safetensors"
    for size in (0, 3, 40, file.stat().st_size - 1):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(CodecError, match=r"2.safetensors: not a whole .*: delete it and load"):
            reopen(trial)
    file.unlink()
    with reopen(trial) as model:
        assert (model.version, model(ROW).tolist()) == (1, [4.0])
        assert model._versions.stored().versions() == [1]


def test_a_missing_index_loses_nothing(trial):
    (trial / "versions" / "index.json").unlink()
    with reopen(trial) as model:
        assert (model.version, model(ROW).tolist()) == (2, [8.0])
        assert model.publish(model.weights()[1]) == 3
        model.checkpoint()
        assert (trial / "versions" / "index.json").exists()
        assert model.load(1) == 1


def test_another_module_is_told_before_anything_is_written(trial):
    before = {file.name: file.read_bytes() for file in (trial / "versions").iterdir()}
    with pytest.raises(SpecError, match=r"version 2 in .*: weights/.* use another directory"):
        Model(torch.nn.Linear(4, 2), ROW[None], directory=trial)
    assert before == {file.name: file.read_bytes() for file in (trial / "versions").iterdir()}
