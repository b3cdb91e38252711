"""Write the versions of this environment into the workspace's pyproject.toml as pins.

    uv run python scripts/pin.py            # or: make pin
    uv run python scripts/pin.py --check    # only compare; exit 1 where they differ

uv.lock is not committed, because it names a registry's host. The constraints written here hold
every distribution that the workspace needs, directly or not, to the version that the tests ran
with, and name no host. To move to newer versions: `uv sync --upgrade` with the pins removed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import deque
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
_PINS = re.compile(r"^constraint-dependencies = \[\n(?:.*\n)*?\]\n", re.MULTILINE)


def members() -> set[str]:
    """Names of the workspace's own distributions."""
    files = sorted(ROOT.glob("packages/*/pyproject.toml"))
    return {tomllib.loads(file.read_text())["project"]["name"] for file in files}


def reachable() -> dict[str, str]:
    """Return name → version of every installed distribution that the workspace needs."""
    root = tomllib.loads(PYPROJECT.read_text())
    groups = root["dependency-groups"].values()
    needs = [*root["project"]["dependencies"], *(need for group in groups for need in group)]
    queue = deque((Requirement(need), "") for need in needs)
    seen: set[tuple[str, str]] = set()
    versions: dict[str, str] = {}
    while queue:
        requirement, extra = queue.popleft()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        new = {(name, wanted) for wanted in ("", *requirement.extras)} - seen
        seen |= new
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        versions[name] = found.version
        for wanted in sorted(extra for _, extra in new):
            queue.extend((Requirement(need), wanted) for need in found.requires or ())
    return {name: versions[name] for name in sorted(versions.keys() - members())}


def pinned() -> dict[str, str]:
    """Return name → version as pyproject.toml says."""
    uv = tomllib.loads(PYPROJECT.read_text())["tool"]["uv"]
    pins = (pin.partition("==") for pin in uv.get("constraint-dependencies", []))
    return {name: version for name, _, version in pins}


def render(pins: Iterable[tuple[str, str]]) -> str:
    """Return the pins as a line of TOML each."""
    lines = [f'    "{name}=={version}",\n' for name, version in pins]
    return "".join(["constraint-dependencies = [\n", *lines, "]\n"])


def main() -> int:
    """Write the pins, or compare them."""
    parser = argparse.ArgumentParser(description="pin the workspace to this environment's versions")
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wanted = reachable()
    if pinned() == wanted:
        print(f"{len(wanted)} pins agree with the environment")
        return 0
    changed = sorted(set(pinned().items()) ^ set(wanted.items()))
    print("differ:", ", ".join(f"{name}=={version}" for name, version in changed))
    if check:
        return 1
    text, count = _PINS.subn(lambda _: render(wanted.items()), PYPROJECT.read_text())
    if count != 1:
        sys.exit(f"{PYPROJECT}: expected one `constraint-dependencies = [` list, found {count}")
    PYPROJECT.write_text(text)
    print(f"wrote {len(wanted)} pins to {PYPROJECT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
