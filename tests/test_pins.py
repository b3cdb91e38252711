"""The pins are those of this environment, and no file names a package registry."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("pin", ROOT / "scripts" / "pin.py")
assert SPEC is not None
assert SPEC.loader is not None
pin = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pin)


def pinned() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text()
    block = text[text.index(pin.BEGIN) : text.index(pin.END, text.index(pin.BEGIN))]
    return dict(re.findall(r'"([^"=]+)==([^"]+)"', block))


def test_what_is_installed_is_what_is_pinned() -> None:
    constraints = pinned()
    for line in pin.pins():
        name, version = line.split("==")
        if name in constraints:  # what a developer installs beside it is nobody's business
            assert constraints[name] == version, f"{name}: run scripts/pin.py"
    assert {"ray", "torch", "numpy", "onnxruntime", "pytest"} <= set(constraints)


def test_pins_are_replaced_in_place() -> None:
    text = f'before\n{pin.BEGIN}    "old==1",\n{pin.END}after\n'
    assert pin.with_pins(text, ["new==2"]) == f'before\n{pin.BEGIN}    "new==2",\n{pin.END}after\n'


def test_no_tracked_file_names_a_registry_and_no_lock_is_tracked() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "uv.lock" not in listed
    registry = re.compile(r"https?://[\w.-]+/(simple|packages)/|index-url\s*=|extra-index")
    for name in listed:
        text = (ROOT / name).read_text(errors="replace")
        assert name == "tests/test_pins.py" or not registry.search(text), name
