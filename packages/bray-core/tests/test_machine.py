"""What is read from this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from bray_core.process import machine


def test_this_process_may_use_a_core() -> None:
    assert machine.num_cores() >= 1


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
