"""What every test of the workspace shares: one Ray a session, and nothing left behind after it."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from distribution import ON_RAY, Together
from hypothesis import settings
from tqdm import tqdm

if TYPE_CHECKING:
    from bray_actor.environments.spec import EnvironmentSpec
    from bray_server import ServerThread

# These machines are shared: how long an example takes says nothing.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

# Networks of tests are small: threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of interpreters are started: without bytecode on disk each compiles torch anew (2 s).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Before anything imports ray: under `uv run` it would rebuild the environment in every worker.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
# Ray's workers are as urgent as the tests that wait for them: Ray would let all others go first.
os.environ.setdefault("RAY_worker_niceness", "0")
# transformers draws progress bars; the thread that tqdm keeps for them would count as left behind.
tqdm.monitor_interval = 0

_MATHEMATICS = Path(__file__).parent / "packages" / "bray-algo"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark `isa` all that rests on rounding: the mathematics; other tests say so themselves.

    What shares one Ray comes first: it takes longest, and mostly waits.
    """
    for item in items:
        if item.path.is_relative_to(_MATHEMATICS):
            item.add_marker(pytest.mark.isa)
    items.sort(key=lambda item: item.path.name not in ON_RAY)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Distribute the tests as `Together` says, unless the command line asks for another way."""
    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


_SESSION = f"BRAY_TEST_SESSION={uuid4()}"
_GRACE_S = 15.0
_THREAD_GRACE_S = 2.0
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python itself keeps until the interpreter ends."""


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the session if a process, a thread or shared memory of it outlives it."""
    name, _, value = _SESSION.partition("=")
    os.environ[name] = value
    before = _segments()
    yield
    gc.collect()  # a pool's threads end with it
    processes = _wait_for_end(time.monotonic() + _GRACE_S)
    left = [f"process {pid}: {_command(pid)}" for pid in sorted(processes)]
    left += [f"thread {thread.name}" for thread in threading.enumerate() if _is_left(thread)]
    left += [f"shared memory {path}" for path in sorted(_left_segments(before))]
    assert not left, "left behind by the tests:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def ray_cluster(nothing_left_behind: None) -> Iterator[None]:
    """Ray on this machine, one for the whole session; tests that use it are marked `ray`."""
    from bray_core.remote.cluster import init_ray, shutdown_ray

    with contextlib.chdir(Path(__file__).parent):  # from where its workers import tests' modules
        init_ray()
    yield
    shutdown_ray()


@pytest.fixture(scope="module")
def evaluated_here() -> Iterator[None]:
    """Evaluations play in this process, over the wire still: a process of its own takes longer.

    The process is that of `packages/bray/tests/test_environment_making.py` and of every test that
    runs `bray train` as a command.
    """
    from bray.training import evaluation
    from bray_actor.gamecores.gamecore import play

    def play_here(
        spec: EnvironmentSpec, server: ServerThread, episodes: int, seed: int
    ) -> list[float]:
        address = server.addresses[0]
        return play(spec, address, episodes=episodes, num_envs=evaluation.NUM_ENVS, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_play_in_process", play_here)
        yield


@pytest.fixture
def terminal() -> Iterator[None]:
    """Let what is started hear that its terminal closes, also where `nohup` runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def undrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this process close at once, where what plays against them would go on for ever."""
    from bray_server import ServerThread

    monkeypatch.setattr(ServerThread.close, "__defaults__", (0.0,))


def _is_left(thread: threading.Thread) -> bool:
    """Whether Python started it and it still runs: at exit such a one can crash the interpreter."""
    if thread is threading.main_thread() or isinstance(thread, threading._DummyThread):
        return False
    thread.join(_THREAD_GRACE_S)
    return thread.is_alive()


def _wait_for_end(deadline: float) -> set[int]:
    """Wait for the session's processes to end and return those that do not."""
    while (running := _processes()) and (left_s := deadline - time.monotonic()) > 0:
        _wait_for_exit(next(iter(running)), left_s)
    return running


def _wait_for_exit(pid: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def _processes() -> set[int]:
    """Processes that carry the session's mark, and this one's children (a fork has no mark)."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    found = {pid for pid in pids if _SESSION.encode() in _read(pid, "environ").split(b"\0")}
    for task in Path("/proc/self/task").iterdir():
        found |= set(map(int, _read("self", f"task/{task.name}/children").split()))
    return {pid for pid in found - {os.getpid()} if _is_running(pid)}


def _is_running(pid: int) -> bool:
    state = _read(pid, "stat").rpartition(b")")[2].split()[:1]
    return state not in ([], [b"Z"], [b"X"]) and not any(
        helper in _command(pid) for helper in _HELPERS
    )


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _read(pid: int | str, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # it (or the thread) has ended, or is another user's
        return b""


def _left_segments(before: set[Path]) -> set[Path]:
    """What stays unmapped: a file of another session may be mapped a moment after it is made.

    What killed processes leave goes when the next one opens such memory: here now.
    """
    if not (first := {path for path in _segments() - before if _is_ours(path)}):
        return first
    from bray_buffer.shared.slot_pool import PREFIX
    from bray_core.files import shared_file
    from bray_model.distributed import shared_weights

    shared_file.sweep(PREFIX)
    shared_weights.sweep()
    time.sleep(_GRACE_S / 3)
    return {path for path in first & _segments() if _is_ours(path)}


def _segments() -> set[Path]:
    return set(Path("/dev/shm").glob("bray*"))


def _is_ours(segment: Path) -> bool:
    """Whether no other process maps it, such as that of a test session running beside this one."""
    others = (int(e.name) for e in Path("/proc").iterdir() if e.name.isdigit())
    name = os.fsencode(segment)
    return not any(name in _read(pid, "maps") for pid in others if pid != os.getpid())
