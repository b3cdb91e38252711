"""A command's process ends at once, with all that Python promises to do before."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from subprocess import CompletedProcess
from typing import IO

import pytest

from bray_core.process.garbage import paused_garbage_collection

SCRIPT = """
import atexit
import os
import sys
import threading
import time

from bray_core.process.quick_exit import end_process


class TakenDown:
    def __del__(self, write=os.write):
        write(1, b"taken down ")


kept = TakenDown()
atexit.register(sys.stdout.write, "bye ")
sys.stdout.write("hello ")
{before}
sys.exit(end_process(3))
"""


def ended(before: str = "", stdout: int | IO[str] = subprocess.PIPE) -> CompletedProcess[str]:
    words = [sys.executable, "-c", SCRIPT.format(before=before)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        words, text=True, check=False, stderr=subprocess.PIPE, stdout=stdout, env=environment
    )


def test_what_is_registered_runs_and_output_is_flushed() -> None:
    done = ended()
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello bye ", "")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("threading.Thread(target=time.sleep, args=(0.3,)).start()", id="thread"),
        pytest.param("sys.setprofile(lambda *_: None)", id="profiler"),
    ],
)
def test_python_ends_the_process_where_something_is_under_way(before: str) -> None:
    done = ended(before)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("hello bye ")
    assert "taken down" in done.stdout


def test_output_that_nobody_reads_is_pythons_business() -> None:
    with open("/dev/full", "w") as full:
        done = ended(stdout=full)
    assert done.returncode == 120  # Python's own
    assert "No space left" in done.stderr


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_searched_again_after_the_imports(is_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with contextlib.suppress(ImportError), paused_garbage_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()
