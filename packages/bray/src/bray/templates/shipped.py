"""The templates that ship with bray. Nothing heavy is imported here."""

from __future__ import annotations

from importlib import resources


def names() -> list[str]:
    """Return the names of the templates that ship with bray."""
    files = resources.files("bray") / "templates"
    return sorted(f.name.removesuffix(".yaml") for f in files.iterdir() if f.name.endswith(".yaml"))
