"""The public interface is that of tests/api; a change is seen, and what it breaks is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
RENEW = (
    "if that is meant: `uv run python scripts/api_snapshot.py write`, and a line in CHANGELOG.md"
)
SOURCE = '''
from dataclasses import dataclass
from bray_core.other import helper
__all__ = ["Config", "helper", "run"]
@dataclass(frozen=True)
class Config:
    """A config."""
    size: int = 3
    _hidden: int = 0
    @property
    def twice(self) -> int: return 2 * self.size
    @classmethod
    def small(cls) -> "Config": return cls(size=1)
async def run(path: str, /, *rest: int, size: int = 3, **more: float) -> list[int]: return []
def private() -> None: ...
'''
STUB = """\
class Config:
    size: int = 3
    @property
    def twice(self) -> int: ...
    @classmethod
    def small(cls) -> Config: ...
def helper(value: int, *, size: int) -> None: ...
async def run(path: str, /, *rest: int, size: int = 3, **more: float) -> list[int]: ...
"""


@pytest.fixture(scope="module")
def snapshot() -> ModuleType:
    path = ROOT / "scripts" / "api_snapshot.py"
    spec = importlib.util.spec_from_file_location("api_snapshot", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_interface_is_the_one_of_the_snapshot(snapshot: ModuleType) -> None:
    old, new = snapshot.saved(), snapshot.current()
    different = snapshot.differences(old, new)
    broken = [f"breaks: {line}" for line in snapshot.breakages(old, new)]
    assert not different, "\n".join([*different, *broken, RENEW])
    assert len(new) > 30


def test_public_names_are_written_with_their_signatures(
    snapshot: ModuleType, tmp_path: Path
) -> None:
    package = tmp_path / "packages/bray-core/src/bray_core"
    package.mkdir(parents=True)
    (tmp_path / "docs/reference").mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "other.py").write_text("def helper(value: int, *, size: int) -> None: ...\n")
    (tmp_path / "docs/reference/core.md").write_text("# Core\n\n::: bray_core\n")
    assert snapshot.current(tmp_path) == {"bray_core": STUB}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("async def run(", "async def ran(", "run: Public object was removed"),
        ("size: int = 3, **", "size: int, **", "run(size): Parameter is now required"),
        ("value: int, *,", "*, value: int,", "helper(value): Parameter kind was changed"),
        ("value: int, *", "value: int, more: int, *", "added as required"),
        ("    size: int = 3\n", "", "Config.size: Public object was removed"),
    ],
)
def test_what_breaks_is_named(snapshot: ModuleType, old: str, new: str, said: str) -> None:
    assert old in STUB
    (line,) = snapshot.breakages({"bray_core": STUB}, {"bray_core": STUB.replace(old, new)})
    assert said in line
    assert snapshot.differences({"bray_core": STUB}, {"bray_core": STUB.replace(old, new)})


def test_what_is_added_breaks_nothing_but_is_seen(snapshot: ModuleType) -> None:
    old, new = {"bray_core": STUB}, {"bray_core": STUB + "def more() -> None: ...\n"}
    assert snapshot.breakages(old, new) == []
    assert snapshot.differences(old, new) == ["bray_core: +def more() -> None: ..."]
    assert snapshot.breakages(new, {}) == ["bray_core: removed"]
