"""The pins are those of this environment, and no file names a package registry."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
REGISTRY = re.compile(
    r"https?://[\w.-]+/(simple|packages)/|(index-url|registry)[\"']?\s*[=:]\s*[\"']?http"
)


@pytest.fixture
def pin() -> ModuleType:
    """`scripts/pin.py` as a module of its own, whose paths a test may replace."""
    spec = importlib.util.spec_from_file_location("pin", ROOT / "scripts" / "pin.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_needed_is_pinned(pin: ModuleType) -> None:
    missing = pin.reachable().keys() - pin.pinned().keys()
    assert not missing, "not pinned: run `make pin`"
    assert {"ray", "torch", "numpy", "onnxruntime", "pytest"} <= pin.pinned().keys()
    assert not pin.members() & pin.pinned().keys()


def test_what_is_pinned_is_what_is_installed(pin: ModuleType) -> None:
    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:  # pinned for another Python version
            return None

    different = {
        name: (pinned, found)
        for name, pinned in pin.pinned().items()
        if (found := installed(name)) not in (None, pinned)
    }
    assert not different, "name: (pinned, installed); run `make pin` or `uv sync`"


def test_only_the_pins_of_the_file_change(
    pin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, pins, after = pin.PYPROJECT.read_text().partition(pin.render(pin.pinned().items()))
    assert pins
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(before + pin.render({"numpy": "1.0", "gone": "2"}.items()) + after)
    monkeypatch.setattr(pin, "PYPROJECT", pyproject)
    monkeypatch.setattr(sys, "argv", ["pin.py", "--check"])
    assert pin.main() == 1
    assert pin.pinned() == {"numpy": "1.0", "gone": "2"}
    monkeypatch.setattr(sys, "argv", ["pin.py"])
    assert pin.main() == 0
    assert pyproject.read_text() == before + pin.render(pin.reachable().items()) + after


def test_no_tracked_file_names_a_registry_and_no_lock_is_tracked() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    assert "uv.lock" not in listed
    for name in filter(None, listed):
        if name == "tests/test_pins.py" or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_bytes().decode(errors="replace")
        assert not REGISTRY.search(text), name
