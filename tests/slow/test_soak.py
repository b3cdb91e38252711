"""Half an hour of training: no process grows after it has warmed up.

`BRAY_SOAK_MINUTES=2 uv run pytest -n 0 -m slow tests/slow/test_soak.py -s` is the short version.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import pytest
from benchmarks.soak.watched import Machine, Training
from watched.machine import rss_bytes

MINUTES = float(os.environ.get("BRAY_SOAK_MINUTES", "30"))
pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(60 * MINUTES + 400)]

START_S = 180.0
LOOK_S = 1.0
SHARE = 0.02
LEAST_BYTES = 12 * 2**20
"""What a process may have more at the end than when it was warm: this, or that share of it."""


def test_no_process_grows(train: Callable[..., tuple[Training, Machine]]) -> None:
    training, machine = train()
    training.wait_until(lambda: training.look().get("trainer/frames", 0) > 0, START_S, "training")
    names = {**training.workers(), "driver": training.pid}
    memory: dict[str, list[int]] = {name: [] for name in names}
    held = []
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        assert training.is_running, training.last_words()
        for name, pid in names.items():
            memory[name].append(rss_bytes(pid))
        if len(memory["driver"]) % 10 == 0:
            held.append(machine.look())
        training.look()
        time.sleep(LOOK_S)
    assert {**training.workers(), "driver": training.pid} == names, "none was replaced"
    grown = []
    for name, sizes in memory.items():
        fifth = len(sizes) // 5
        warm, last = statistics.median(sizes[fifth : 2 * fifth]), statistics.median(sizes[-fifth:])
        words = f"{name}: {warm / 2**20:.1f} → {last / 2**20:.1f} MB in {MINUTES * 0.7:.1f} minutes"
        print(words)
        if last - warm > max(LEAST_BYTES, SHARE * warm):
            grown.append(words)
    frames = training.frames
    first, last = held[len(held) // 4], held[-1]
    print(f"{frames:,} frames; descriptors of all {sum(first.descriptors.values())} → "
          f"{sum(last.descriptors.values())}; {first.counts()} → {last.counts()}")  # fmt: skip
    assert not grown
    assert (last.processes, last.ports) == (first.processes, first.ports)
    assert last.segment_bytes <= first.segment_bytes
    assert training.stop() == 130
    assert machine.end() == []
