"""Processors, memory, network and GPUs of the machine that a process runs on, as metrics.

They are those of the whole machine, other programs included: a run that is slow because of a
neighbour shows it here. Within a container the kernel tells of the machine around it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

from bray_core.metrics import Registry
from bray_core.metrics.gpus import Gpus

_PROC = Path("/proc")
_LOOPBACK = "lo"
_IDLE = (3, 4)
"""Columns of `/proc/stat` in which no core works: idle, and waiting for the disk."""
_COLUMNS = 8
"""Columns before those of virtual machines, which are in the others already."""


class MachineMetrics:
    """Records what the machine does; each call looks at the time since the one before.

    What the system does not tell (`/proc` exists on Linux alone, GPUs of NVIDIA need their driver)
    is not recorded.

    Args:
        registry: Registry to record into.
        proc: Folder in which the kernel tells it.
        gpus: GPUs of the machine; None looks for them.
    """

    def __init__(self, registry: Registry, *, proc: Path = _PROC, gpus: Gpus | None = None) -> None:
        self._record = registry.record
        self._proc = proc
        self._gpus = gpus  # found in the first call: a sleeping driver takes long to wake
        self._host = socket.gethostname()
        self._then_s = time.monotonic()
        self._cores = self._core_times()
        self._bytes = self._network_bytes()

    def record(self) -> None:
        """Record what the machine did since the last call."""
        now_s = time.monotonic()
        passed_s, self._then_s = now_s - self._then_s, now_s
        self._record_cores()
        self._record_memory()
        if passed_s > 0:
            self._record_network(passed_s)
        if self._gpus is None:
            self._gpus = Gpus.open()
        for gpu in self._gpus.read():
            label = str(gpu.index)
            self._record("machine/gpu_share", gpu.busy_share, gpu=label, host=self._host)
            self._record("machine/gpu_memory_bytes", gpu.memory_bytes, gpu=label, host=self._host)

    def _record_cores(self) -> None:
        before, self._cores = self._cores, self._core_times()
        busy, total = (now - then for now, then in zip(self._cores, before, strict=True))
        if total > 0 and busy >= 0:
            self._record("machine/cpu_share", min(1.0, busy / total), host=self._host)

    def _record_memory(self) -> None:
        found = {name: number for name, number in self._numbers("meminfo") if number}
        if {"MemTotal:", "MemAvailable:"} <= set(found):
            used = (found["MemTotal:"][0] - found["MemAvailable:"][0]) * 1024
            self._record("machine/memory_bytes", float(used), host=self._host)

    def _record_network(self, passed_s: float) -> None:
        before, self._bytes = self._bytes, self._network_bytes()
        received, sent = (now - then for now, then in zip(self._bytes, before, strict=True))
        if min(received, sent) < 0:  # a card that was taken away takes its count with it
            return
        self._record("machine/network_received_bytes_per_s", received / passed_s, host=self._host)
        self._record("machine/network_sent_bytes_per_s", sent / passed_s, host=self._host)

    def _core_times(self) -> tuple[int, int]:
        """Return how long the cores have worked, and how long there were any, in ticks."""
        found = dict(self._numbers("stat")).get("cpu", [])[:_COLUMNS]
        idle = sum(found[column] for column in _IDLE if column < len(found))
        return sum(found) - idle, sum(found)

    def _network_bytes(self) -> tuple[int, int]:
        """Return the bytes that all network cards but the loopback have received and sent."""
        cards = [
            numbers
            for name, numbers in self._numbers("net/dev")
            if len(numbers) > 8 and name != f"{_LOOPBACK}:"
        ]
        return sum(card[0] for card in cards), sum(card[8] for card in cards)

    def _numbers(self, file: str) -> Sequence[tuple[str, list[int]]]:
        """Return the first word and the whole numbers of each line of a file."""
        try:
            lines = (self._proc / file).read_text().splitlines()
        except OSError:  # not Linux
            return []
        found = []
        for line in lines:
            name, *words = line.replace(":", ": ").split() or [""]
            found.append((name, [int(word) for word in words if word.isdecimal()]))
        return found
