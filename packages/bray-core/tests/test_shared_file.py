"""Files in shared memory, their mutex and their members: with real processes, also killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from bray_core.errors import CapacityError, ClosedError, NotFoundError
from bray_core.files.shared_file import FOLDER, SharedFile, sweep

PREFIX = "bray-testfile-"


@pytest.fixture
def file() -> Iterator[SharedFile]:
    made = SharedFile.create(f"{PREFIX}{uuid4().hex}", 8192, "test")
    yield made
    made.close()
    made.unlink()


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    code = f"from bray_core.files.shared_file import *\nimport sys, os, signal\n{script}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


JOIN = """
file = SharedFile.open(Path(sys.argv[1]))
file.map[0] += 1
print(file.member, flush=True)
sys.stdin.readline()
"""


def test_processes_see_one_memory_and_who_is_alive(file: SharedFile) -> None:
    other = start(JOIN, file.path)
    member = int(line(other))
    assert member != file.member
    assert file.map[0] == 1
    assert file.is_alive(member)
    end(other)
    assert not file.is_alive(member)
    again = start(JOIN, file.path)
    assert int(line(again)) == member  # the number is free again
    end(again)


def test_a_killed_process_holds_no_lock(file: SharedFile) -> None:
    script = """
file = SharedFile.open(Path(sys.argv[1]))
with file.locked():
    print("locked", flush=True)
    sys.stdin.readline()
"""
    other = start(script, file.path)
    assert line(other) == "locked"
    entered = threading.Event()

    def enter() -> None:
        with file.locked():
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.2)
    os.kill(other.pid, signal.SIGKILL)
    assert entered.wait(10)
    thread.join()
    end(other)


def test_increments_under_the_lock_are_never_lost(file: SharedFile) -> None:
    script = """
file = SharedFile.open(Path(sys.argv[1]))
words = memoryview(file.map)[:8].cast("q")
for _ in range(2000):
    with file.locked():
        words[0] += 1
"""
    others = [start(script, file.path) for _ in range(2)]
    for other in others:
        assert other.wait(30) == 0
        other.communicate()
    assert memoryview(file.map)[:8].cast("q")[0] == 4000


def test_a_forked_child_is_a_member_of_its_own(file: SharedFile) -> None:
    script = """
file = SharedFile.open(Path(sys.argv[1]))
parent = file.member
child = os.fork()
if not child:
    os._exit(0 if file.member != parent and file.is_alive(parent) else 1)
assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if not child:
    with file.locked():
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
with file.locked():
    print("mine", flush=True)
"""
    other = start(script, file.path)
    assert line(other) == "mine"
    assert other.wait(10) == 0
    other.communicate()


def test_a_full_shared_memory_is_a_clear_error() -> None:
    name = f"{PREFIX}{uuid4().hex}"
    message = r"batches: [\d,.]+ MB of shared memory are needed in /dev/shm, [\d,.]+ MB are free"
    with pytest.raises(CapacityError, match=message):
        SharedFile.create(name, 1 << 50, "batches")
    assert not list(FOLDER.glob(f"*{name}*"))


def test_what_nobody_belongs_to_is_swept(file: SharedFile) -> None:
    script = """
file = SharedFile.create(sys.argv[1], 4096, "test")
print(file.path, flush=True)
sys.stdin.readline()
"""
    other = start(script, f"{PREFIX}{uuid4().hex}")
    path = Path(line(other))
    sweep(PREFIX)
    assert path.exists()
    end(other)  # killed: it cleans nothing up
    assert path.exists()
    sweep(PREFIX)
    assert not path.exists()
    assert file.path.exists()


def test_a_closed_or_absent_file_is_a_clear_error(file: SharedFile) -> None:
    with pytest.raises(NotFoundError, match=r"shared memory: .*nobody"):
        SharedFile.open(FOLDER / f"{PREFIX}nobody")
    other = SharedFile.open(file.path)
    other.close()
    other.close()
    with pytest.raises(ClosedError, match="was closed"), other.locked():
        pass
    with file.locked():  # the others' is open
        pass
