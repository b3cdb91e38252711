"""The release command on a small checkout of its own: what it refuses, writes and tags."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
CORE = """\
[project]
name = "bray-core"
version = "0.1.0"
dependencies = ["numpy>=2"]

[build-system]
requires = ["uv_build>=0.13.0,<0.14"]
"""
UMBRELLA = """\
[project]
name = "bray"
version = "0.1.0"
dependencies = [
    "bray-core==0.1.0",
    "rich>=13",
]

[project.optional-dependencies]
all = ["bray-core[ray,tensorboard]==0.1.0"]
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, pyproject in {"bray-core": CORE, "bray": UMBRELLA}.items():
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(pyproject)
        (folder / "CHANGELOG.md").write_text(f"# Changelog of {name}\n\n## Unreleased\n")
    with (tmp_path / "packages/bray-core/CHANGELOG.md").open("a") as changelog:
        changelog.write("- Added a thing.\n")
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "user.name", "A")
    git(tmp_path, "config", "user.email", "a@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All")
    return tmp_path


def commit_edit(checkout: Path, path: str, old: str, new: str) -> None:
    text = (checkout / path).read_text()
    assert old in text
    (checkout / path).write_text(text.replace(old, new))
    git(checkout, "commit", "--quiet", "--all", "--message", "Edit")


def test_the_eight_distributions_agree(release: ModuleType) -> None:
    assert release.disagreements(ROOT) == []
    assert len(release.folders(ROOT)) == 8


def test_a_release_writes_commits_and_tags(release: ModuleType, checkout: Path) -> None:
    assert release.main(["0.2.0"], checkout) == 0
    for name in ("bray-core", "bray"):
        project = tomllib.loads((checkout / f"packages/{name}/pyproject.toml").read_text())
        assert project["project"]["version"] == "0.2.0"
    assert release.requirements(checkout / "packages/bray") == [
        "bray-core==0.2.0",
        "rich>=13",
        "bray-core[ray,tensorboard]==0.2.0",
    ]
    head = f"# Changelog of bray-core\n\n## Unreleased\n\n## 0.2.0 ({date.today()})\n"
    assert (checkout / "packages/bray-core/CHANGELOG.md").read_text() == head + "- Added a thing.\n"
    assert "- No changes." in (checkout / "packages/bray/CHANGELOG.md").read_text()
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "log", "-1", "--format=%s %D") == "Release 0.2.0 HEAD -> main, tag: v0.2.0"
    assert release.disagreements(checkout) == []


def test_a_dry_run_changes_nothing(
    release: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    assert release.main(["0.2.0", "--dry-run"], checkout) == 0
    said = capsys.readouterr().out
    assert "would write packages/bray/pyproject.toml" in said
    assert "would commit 'Release 0.2.0' and tag it v0.2.0" in said
    assert git(checkout, "status", "--porcelain") == ""
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "tag") == ""


def test_the_first_release_keeps_the_version(release: ModuleType, checkout: Path) -> None:
    assert release.main(["0.1.0"], checkout) == 0
    assert release.main(["0.1.0"], checkout) == 1  # the tag is there now
    assert release.main(["0.0.9"], checkout) == 1
    assert release.main(["0.1.1"], checkout) == 0


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("packages/bray/pyproject.toml", 'version = "0.1.0"', 'version = "0.1.1"', "differ"),
        ("packages/bray/pyproject.toml", '"bray-core==0.1.0"', '"bray-core"', "'bray-core'"),
        ("packages/bray/pyproject.toml", "tensorboard]==0.1.0", "tensorboard]==0.0.9", "0.0.9'"),
        ("packages/bray/CHANGELOG.md", "## Unreleased", "## 0.1.0", "bray/CHANGELOG.md"),
    ],
)
def test_what_disagrees_is_refused(
    release: ModuleType,
    checkout: Path,
    capsys: pytest.CaptureFixture[str],
    path: str,
    old: str,
    new: str,
    said: str,
) -> None:
    assert release.main(["--check"], checkout) == 0
    commit_edit(checkout, path, old, new)
    assert release.main(["--check"], checkout) == 1
    assert said in capsys.readouterr().out
    assert release.main(["0.2.0"], checkout) == 1
    assert git(checkout, "tag") == ""


def test_a_tree_with_changes_or_another_branch_is_refused(
    release: ModuleType, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "new.txt").write_text("new")
    assert release.main(["0.2.0"], checkout) == 1
    assert "the working tree has changes" in capsys.readouterr().out
    (checkout / "new.txt").unlink()
    git(checkout, "switch", "--quiet", "--create", "other")
    assert release.main(["0.2.0"], checkout) == 1
    assert "the branch is other" in capsys.readouterr().out


@pytest.mark.parametrize("version", ["next", "0.2.x", "v0.2.0", "0.02.0"])
def test_what_is_no_version_is_refused(release: ModuleType, checkout: Path, version: str) -> None:
    assert release.main([version], checkout) == 1
    assert git(checkout, "tag") == ""
