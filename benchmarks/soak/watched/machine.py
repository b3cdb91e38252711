"""What the processes of a training hold, by /proc: memory, descriptors, ports, shared memory."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SEGMENT = re.compile(r"/dev/shm/bray\S+(?=\n)")
_LISTENS = "0A"
"""State of a socket in /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class Process:
    """One that runs, or that nobody has waited for."""

    parent: int
    started: int
    """Clock ticks since the machine's start: with the pid, what no other process ever has."""
    is_zombie: bool
    cpu_s: float
    """That it has used, its threads' included."""


@dataclass(frozen=True, slots=True)
class Held:
    """What all processes of a training hold at one moment."""

    processes: int
    zombies: int
    rss_bytes: int
    """Pages that several share are counted for each."""
    driver_rss_bytes: int
    descriptors: dict[int, int]
    """Open files by process."""
    ports: int
    """Sockets that listen."""
    segments: int
    """Files of bray in /dev/shm that one of them has, or had, mapped."""
    segment_bytes: int

    def counts(self) -> dict[str, int]:
        """Return all but the descriptors of each process."""
        return {
            "processes": self.processes,
            "zombies": self.zombies,
            "ports": self.ports,
            "segments": self.segments,
            "segment_bytes": self.segment_bytes,
            "rss_bytes": self.rss_bytes,
            "driver_rss_bytes": self.driver_rss_bytes,
            "descriptors": sum(self.descriptors.values()),
        }


class Machine:
    """Follows a driver's processes, also those that lose their parents.

    Args:
        driver: its process.
    """

    def __init__(self, driver: int) -> None:
        self.driver = driver
        self._seen: dict[int, int] = {}
        self._mapped: set[Path] = set()

    def processes(self) -> dict[int, Process]:
        """Return pid → process, of the driver and of all that ever descended from it."""
        running = _running()
        mine = {pid for pid, started in self._seen.items() if _same(running, pid, started)}
        if self.driver in running:
            mine.add(self.driver)
        while added := {p for p, one in running.items() if one.parent in mine} - mine:
            mine |= added
        self._seen = {pid: running[pid].started for pid in mine}
        return {pid: running[pid] for pid in mine}

    def end(self, grace_s: float = 10.0) -> list[str]:
        """Kill what has not ended after a while; return the command lines of these."""
        deadline = time.monotonic() + grace_s
        while (left := self._unended()) and time.monotonic() < deadline:
            time.sleep(0.1)
        words = [f"{pid} {command(pid)}" for pid in left]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return words

    def _unended(self) -> list[int]:
        return [pid for pid, one in self.processes().items() if not one.is_zombie]

    def segments(self) -> list[Path]:
        """Return the files of bray in /dev/shm that they have or had mapped, and that exist."""
        for pid in self.processes():
            self._mapped |= {Path(found) for found in _SEGMENT.findall(_read(f"/proc/{pid}/maps"))}
        return [path for path in self._mapped if path.exists()]

    def look(self) -> Held:
        """Return what they hold now."""
        mine = self.processes()
        sockets = _listening()
        segments = self.segments()
        descriptors = {pid: _descriptors(pid) for pid in mine}
        return Held(
            processes=len(mine),
            zombies=sum(one.is_zombie for one in mine.values()),
            rss_bytes=sum(map(rss_bytes, mine)),
            driver_rss_bytes=rss_bytes(self.driver),
            descriptors={pid: len(files) for pid, files in descriptors.items()},
            ports=sum(len(sockets & files) for files in descriptors.values()),
            segments=len(segments),
            segment_bytes=sum(_size(path) for path in segments),
        )


def command(pid: int) -> str:
    """Return a process's command line; empty if it has ended."""
    return _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def rss_bytes(pid: int) -> int:
    """Return the memory that a process holds; 0 if it has ended."""
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE_BYTES if fields else 0


def _running() -> dict[int, Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(f"{entry}/stat")):
            fields = stat.rpartition(")")[2].split()  # from the third field of proc(5) on
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
            one = Process(int(fields[1]), int(fields[19]), fields[0] == "Z", cpu_s)
            found[int(entry.name)] = one
    return found


def _same(running: dict[int, Process], pid: int, started: int) -> bool:
    return pid in running and running[pid].started == started


def _listening() -> set[str]:
    """Return the sockets that listen, as links of descriptors name them."""
    lines = _read("/proc/net/tcp").splitlines()[1:] + _read("/proc/net/tcp6").splitlines()[1:]
    return {f"socket:[{f[9]}]" for f in map(str.split, lines) if f[3] == _LISTENS}


def _descriptors(pid: int) -> set[str]:
    """Return what the open files of a process are, numbered where several are the same."""
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            target = _link(entry.path)
            found.add(target if target.startswith("socket:") else f"{target} {entry.name}")
    except OSError:  # it has ended
        pass
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:  # removed meanwhile
        return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:  # it has ended
        return ""
