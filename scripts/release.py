"""Make a release: set the version of all eight distributions, commit and tag.

    uv run python scripts/release.py 0.2.0 --dry-run    # or: make release VERSION=0.2.0
    uv run python scripts/release.py 0.2.0
    uv run python scripts/release.py --check            # only: do all eight agree?

The eight are released together, with one version, and each pins its siblings to that version.
The command refuses to begin where they do not agree, where the working tree has changes, on any
branch but main, and where the version is not newer than the last one. It then writes the version,
the pins and the headings of the changelogs, commits, and tags. It pushes and publishes nothing:
the last lines say what to do next, and `git reset --hard HEAD~1 && git tag -d TAG` undoes it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
UNRELEASED = "## Unreleased"
_VERSION = re.compile(r'^version = "[^"]+"$', re.MULTILINE)
_SIBLING = re.compile(r'"(?P<name>bray(?:-[a-z]+)?)(?P<extras>\[[a-z,]+\])?(?P<pin>==[^"]*)?"')


def folders(root: Path) -> list[Path]:
    """Return the folders of all distributions."""
    return sorted(file.parent for file in root.glob("packages/*/pyproject.toml"))


def version_of(folder: Path) -> str:
    """Return the version that a distribution declares."""
    version: str = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    return version


def requirements(folder: Path) -> list[str]:
    """Return what a distribution requires, its extras included."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    return [*project.get("dependencies", []), *(need for extra in extras for need in extra)]


def disagreements(root: Path) -> list[str]:
    """Return a sentence for each version, pin or changelog that does not fit the others."""
    found = []
    versions = {folder.name: version_of(folder) for folder in folders(root)}
    if len(set(versions.values())) > 1:
        found.append(f"the versions differ: {versions}")
    for folder in folders(root):
        version = versions[folder.name]
        for need in requirements(folder):
            match = _SIBLING.fullmatch(f'"{need}"')
            if match and match["pin"] != f"=={version}":
                found.append(f"{folder.name} requires {need!r}, expected the pin =={version}")
        headings = re.findall(r"^## .*$", (folder / "CHANGELOG.md").read_text(), re.MULTILINE)
        if headings[:1] != [UNRELEASED]:
            found.append(f"{folder.name}/CHANGELOG.md: the first heading is not {UNRELEASED!r}")
    return found


def git(root: Path, *arguments: str) -> str:
    """Run git in the checkout; return what it printed."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def obstacles(root: Path, version: str) -> list[str]:
    """Return a sentence for each reason why this version cannot be released now."""
    found = disagreements(root)
    try:
        if str(Version(version)) != version:
            found.append(f"{version}: write it as {Version(version)}")
    except InvalidVersion:
        return [*found, f"{version!r} is no version: expected three numbers, such as 0.2.0"]
    tags = git(root, "tag", "--list", "v*").split()
    released = [Version(tag[1:]) for tag in tags if re.fullmatch(r"v\d.*", tag)]
    if released and Version(version) <= max(released):
        found.append(f"{version} is not newer than the last release, {max(released)}")
    if changed := git(root, "status", "--porcelain"):
        found.append(f"the working tree has changes: commit or stash them\n{changed}")
    if (branch := git(root, "rev-parse", "--abbrev-ref", "HEAD")) != "main":
        found.append(f"the branch is {branch}: releases are made on main")
    return found


def edits(root: Path, version: str, today: str) -> dict[Path, str]:
    """Return file → new content: the versions, the pins and the headings of the changelogs."""
    written = {}
    for folder in folders(root):
        pyproject, changelog = folder / "pyproject.toml", folder / "CHANGELOG.md"
        text = _VERSION.sub(f'version = "{version}"', pyproject.read_text(), count=1)
        written[pyproject] = _SIBLING.sub(
            lambda m: f'"{m["name"]}{m["extras"] or ""}=={version}"' if m["pin"] else m[0], text
        )
        before, _, after = changelog.read_text().partition(UNRELEASED)
        changes = after if re.match(r"\s*- ", after) else f"\n- No changes.\n{after}"
        written[changelog] = f"{before}{UNRELEASED}\n\n## {version} ({today}){changes}"
    return {path: text for path, text in written.items() if path.read_text() != text}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check, then write, commit and tag; 1 where something stands in the way."""
    parser = argparse.ArgumentParser(description="release all eight distributions at one version")
    parser.add_argument("version", nargs="?", help="the new version, such as 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    parser.add_argument("--check", action="store_true", help="only say whether all eight agree")
    chosen = parser.parse_args(arguments)
    if chosen.check == bool(chosen.version):
        parser.error("expected a version, or --check")
    in_the_way = disagreements(root) if chosen.check else obstacles(root, chosen.version)
    for sentence in in_the_way:
        print(sentence)
    if in_the_way or chosen.check:
        print("nothing was changed" if chosen.version else f"{len(in_the_way)} disagreements")
        return 1 if in_the_way else 0
    tag = f"v{chosen.version}"
    would = "would " if chosen.dry_run else ""
    new = edits(root, chosen.version, date.today().isoformat())
    for path, text in new.items():
        print(f"{would}write {path.relative_to(root)}")
        if not chosen.dry_run:
            path.write_text(text)
    print(f"{would}commit 'Release {chosen.version}' and tag it {tag}")
    if not chosen.dry_run:
        git(root, "commit", "--quiet", "--message", f"Release {chosen.version}", *map(str, new))
        git(root, "tag", "--annotate", tag, "--message", f"bray {chosen.version}")
    print(f"then: make build, and `git push origin main {tag}`; nothing has been pushed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
