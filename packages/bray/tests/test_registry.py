"""Names that a template may use: what other distributions declare."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bray import registry


def test_what_is_installed_while_a_program_runs_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "later" not in registry.names()
    info = tmp_path / "later-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bray.algorithms]\nlater = later:Later\n")
    os.utime(tmp_path, (1, 1))  # in the same tick of a coarse clock it would look unchanged
    assert "later" in registry.names()
