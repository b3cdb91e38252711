"""Compare the public interface with its snapshot in tests/api, or renew the snapshot.

    uv run python scripts/api_snapshot.py           # what differs; exit 1 where anything does
    uv run python scripts/api_snapshot.py write     # renew tests/api; commit what changed

Public is what a package's `__all__` names, and what docs/reference documents of other modules
(`docs/versions.md`). One file a module, written as a stub: its public names with their signatures.
The sources are read (by griffe), never imported, so the snapshot is the same on every machine.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "tests" / "api"
_DOCUMENTED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_LONGEST_VALUE = 80


def current(root: Path = ROOT) -> dict[str, str]:
    """Return module → stub of its public names, of what is documented in docs/reference."""
    packages = [file.parent for file in sorted(root.glob("packages/*/src/*/__init__.py"))]
    loader = griffe.GriffeLoader(
        search_paths=[package.parent for package in packages], allow_inspection=False
    )
    for package in packages:
        loader.load(package.name)
    loader.resolve_aliases(implicit=False, external=False)
    names: dict[str, dict[str, Any]] = {}
    for page in sorted((root / "docs" / "reference").glob("*.md")):
        for path in _DOCUMENTED.findall(page.read_text()):
            found = loader.modules_collection[path]
            module = path if found.is_module else path.rpartition(".")[0]
            members = _public(found) if found.is_module else {found.name: found}
            names.setdefault(module, {}).update(members)
    return {
        module: "".join(_stub(members[name], module) for name in sorted(members))
        for module, members in names.items()
    }


def saved(folder: Path = SNAPSHOT) -> dict[str, str]:
    """Return module → stub as they were when the snapshot was written."""
    return {file.name.removesuffix(".txt"): file.read_text() for file in folder.glob("*.txt")}


def breakages(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return a line for each change of the interface that may break a program that uses it."""
    said = [f"{module}: removed" for module in sorted(old.keys() - new.keys())]
    for module in sorted(old.keys() & new.keys()):
        before, after = (_read(module, text) for text in (old[module], new[module]))
        said += [_line(found) for found in griffe.find_breaking_changes(before, after)]
    return said


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return a line for each line that is gone from the snapshot, or new."""
    return [
        f"{module}: {line}"
        for module in sorted(old.keys() | new.keys())
        for line in difflib.unified_diff(
            old.get(module, "").splitlines(), new.get(module, "").splitlines(), lineterm="", n=0
        )
        if not line.startswith(("---", "+++", "@@"))
    ]


def write(new: dict[str, str], folder: Path = SNAPSHOT) -> None:
    """Renew the snapshot."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.txt"):
        if file.name.removesuffix(".txt") not in new:
            file.unlink()
    for module, text in new.items():
        (folder / f"{module}.txt").write_text(text)


def _read(module: str, text: str) -> griffe.Module:
    return griffe.visit(module, Path(f"{module}.py"), text)


def _line(breakage: griffe.Breakage) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", breakage.explain(griffe.ExplanationStyle.ONE_LINE))


def _public(module: Any) -> dict[str, Any]:
    """Return the members that `__all__` names; without one, those that the module defines."""
    members: dict[str, Any] = module.members
    if module.exports is not None:
        return {str(name): members[str(name)] for name in module.exports}
    return {
        name: member
        for name, member in members.items()
        if not (name.startswith("_") or member.is_alias or member.is_module)
    }


def _stub(member: Any, module: str) -> str:
    """Return a public name as a stub: a re-export of another package is told as its path."""
    if member.is_alias:
        if member.target_path.partition(".")[0] != module.partition(".")[0]:
            return f'{member.name} = "{member.target_path}"\n'
        member = member.final_target
    if member.is_module:
        return f'{member.name} = "{member.path}"\n'
    if member.is_class:
        return _class(member)
    return _function(member) if member.is_function else _attribute(member)


def _class(found: Any) -> str:
    bases = ", ".join(map(str, found.bases))
    lines = [f"class {found.name}({bases}):\n" if bases else f"class {found.name}:\n"]
    for name, inherited in found.all_members.items():
        member = inherited.final_target if inherited.is_alias else inherited
        if (name.startswith("_") and name != "__init__") or not member.lineno:
            continue  # private, or written by griffe itself, such as a dataclass's __init__
        if member.is_function:
            lines.append(textwrap.indent(_function(member), "    "))
        elif member.is_attribute:
            lines.append(textwrap.indent(_attribute(member), "    "))
    return "".join(lines) if len(lines) > 1 else f"{lines[0]}    ...\n"


def _function(found: Any) -> str:
    decorators = [f"@{d}\n" for d in ("staticmethod", "classmethod") if d in found.labels]
    start = "async def" if "async" in found.labels else "def"
    returns = f" -> {found.returns}" if found.returns else ""
    signature = f"{start} {found.name}({_parameters(found.parameters)}){returns}: ...\n"
    return "".join(decorators) + signature


def _parameters(parameters: Any) -> str:
    kind = griffe.ParameterKind
    stars = {kind.var_positional: "*", kind.var_keyword: "**"}
    written, before = [], None
    for parameter in parameters:
        if before is kind.positional_only and parameter.kind is not before:
            written.append("/")
        if parameter.kind is kind.keyword_only and before not in (*stars, kind.keyword_only):
            written.append("*")
        annotation = "" if parameter.annotation is None else f": {parameter.annotation}"
        default = "" if parameter.default is None or parameter.kind in stars else " = ..."
        if default and len(str(parameter.default)) < _LONGEST_VALUE:
            default = f" = {parameter.default}"
        written.append(f"{stars.get(parameter.kind, '')}{parameter.name}{annotation}{default}")
        before = parameter.kind
    return ", ".join([*written, "/"] if before is kind.positional_only else written)


def _attribute(found: Any) -> str:
    annotation = "" if found.annotation is None else f": {found.annotation}"
    if "property" in found.labels:
        return f"@property\ndef {found.name}(self) -> {found.annotation}: ...\n"
    value = "" if found.value is None else str(found.value)
    if len(value) > _LONGEST_VALUE or (found.labels == {"instance-attribute"} and not annotation):
        value = "..."  # too long to read, or only how `__init__` computes it
    return f"{found.name}{annotation}{f' = {value}' if value else ''}\n"


def main() -> int:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description="the public interface and its snapshot")
    parser.add_argument("action", nargs="?", choices=["check", "write"], default="check")
    action = parser.parse_args().action
    old, new = saved(), current()
    different = differences(old, new)
    print(*different, *(f"breaks: {line}" for line in breakages(old, new)), sep="\n")
    if action == "write":
        write(new)
    return 1 if different and action == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
