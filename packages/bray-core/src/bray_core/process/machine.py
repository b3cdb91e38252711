"""Cores, memory, open files and CPU features that this process may use."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_THREADS = "OMP_NUM_THREADS"
_limit: str | None = None
"""What `limit_threads` has set."""
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Return the number of cores that this process may use: at least one.

    A container or a service may be allowed less time than its cores have (Docker's `--cpus`,
    Kubernetes' `limits.cpu`, systemd's `CPUQuota`): then it is the whole cores of that time.
    """
    return min([_num_seen_cores(), *_quotas()])


def limit_threads() -> None:
    """Let libraries start as many threads as there are cores to use; call it before their import.

    OpenMP (torch, NumPy) counts the cores that it sees: in a container that may use two of 64 it
    would start 64 threads, which then wait for each other.
    """
    global _limit
    if _THREADS not in os.environ and (cores := num_cores()) < _num_seen_cores():
        _limit = os.environ[_THREADS] = str(cores)


def environment_of_children() -> dict[str, str]:
    """Return the environment without what `limit_threads` has set, which is for this process alone.

    It is for processes that share the cores out among themselves.
    """
    is_ours = _limit is not None and os.environ.get(_THREADS) == _limit
    return {k: v for k, v in os.environ.items() if k != _THREADS or not is_ours}


@contextmanager
def own_threads_of_children() -> Iterator[None]:
    """Let this process have that environment meanwhile, for what starts others, such as Ray."""
    before = os.environ.get(_THREADS)
    if is_hidden := before is not None and _THREADS not in environment_of_children():
        del os.environ[_THREADS]
    try:
        yield
    finally:
        if is_hidden and before is not None:
            os.environ[_THREADS] = before


def _num_seen_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas() -> Iterator[int]:
    for group in _groups("cpu"):
        said = _read(group / "cpu.max").split()
        said = said or [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if said[0].isdigit():  # else there is no limit: "max", -1
            yield max(1, int(said[0]) // int(said[1]))


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it (cgroups 1, 2)."""
    for line in _read(_OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _GROUPS / controller if controllers else _GROUPS
            own = root / path.lstrip("/")  # absent in a container that sees only its own group
            yield from (group for group in (own, *own.parents) if group.is_relative_to(root))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@cache
def has_bf16() -> bool:
    """Return whether the CPU multiplies bfloat16 (AVX-512 BF16, AMX); others emulate it."""
    if not _CPUINFO.exists():
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", _CPUINFO.read_text()) is not None


def memory_bytes() -> int:
    """Return the machine's memory, or what a container may use of it."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_read(group / name).strip() for group in _groups("memory") for name in names]
    return min([found, *[int(limit) for limit in limits if limit.isdigit()]])


def allow_open_files(wanted: int) -> int:
    """Let this process have so many open files, sockets included, as far as it may.

    Shells and services often begin with 1,024, and may have many more.

    Args:
        wanted: Number of open files.

    Returns:
        The number that it may have; at most `wanted`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # macOS has another limit besides
        return soft
    return allowed
