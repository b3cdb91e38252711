"""What is read from this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bray_core.process import machine


def test_this_process_may_use_a_core() -> None:
    assert machine.num_cores() >= 1


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/", {"cpu.max": "250000 100000", "memory.max": "4096"}, 2, 4096),
        ("0::/", {"cpu.max": "50000 100000", "memory.max": "max"}, 1, None),
        ("0::/", {"cpu.max": "max 100000"}, None, None),
        ("0::/", {"cpu.max": "900000000 100000", "memory.max": f"{1 << 60}"}, None, None),
        (
            "0::/system.slice/game.service",
            {
                "system.slice/cpu.max": "300000 100000",
                "system.slice/game.service/cpu.max": "max 100000",
                "system.slice/game.service/memory.max": "8192",
                "system.slice/other.service/cpu.max": "100000 100000",
            },
            3,
            8192,
        ),
        ("0::/docker/of_the_host", {"cpu.max": "200000 100000"}, 2, None),
        (
            "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "150000",
                "cpu/cpu.cfs_period_us": "50000",
                "memory/memory.limit_in_bytes": "12288",
            },
            3,
            12288,
        ),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1000"}, None, None),
        ("", {}, None, None),
    ],
)
def test_a_container_has_what_its_control_groups_allow(
    own: str,
    files: dict[str, str],
    cores: int | None,
    memory: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr(machine, "_GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert machine.num_cores() == (cores or 64)
    all_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.memory_bytes() == (memory or all_memory)
    for given in ({}, {"OMP_NUM_THREADS": "7"}):
        monkeypatch.setattr(machine.os, "environ", dict(given))
        monkeypatch.setattr(machine, "_limit", None)
        machine.limit_threads()
        limited = given or ({"OMP_NUM_THREADS": str(cores)} if cores else {})
        assert os.environ == limited
        assert machine.environment_of_children() == given
        with machine.own_threads_of_children():
            assert os.environ == given, "Ray gives each worker its own number"
        assert os.environ == limited


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu sse2 avx512f amx_tile amx_bf16", True),
        ("fpu avx512_bf16 avx512f", True),
        ("fpu avx512f avx2 amx_tile", False),
        ("fpu avx512_bf16x", False),
    ],
)
def test_bf16_is_read_from_what_the_kernel_says(
    flags: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name\t: some CPU\nflags\t\t: {flags}\n")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    assert machine.has_bf16.__wrapped__() is expected
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "absent")
    assert machine.has_bf16.__wrapped__() is False
