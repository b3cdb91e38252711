"""`keep_freed`: an array that comes again has its pages already."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from bray_core.process import memory

if sys.argv[1] == "keep":
    memory.keep_freed()
for _ in range(2):
    np.ones(64 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(64 << 20, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str, **environment: str) -> int:
    """Return the page faults of ten arrays of 64 MiB, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_arrays_that_come_again_have_their_pages() -> None:
    assert faults("keep") < 10
    assert faults("leave") > 100, "or this library keeps them by itself"
    assert faults("keep", MALLOC_MMAP_THRESHOLD_=str(1 << 20)) > 100, "the user has said"
