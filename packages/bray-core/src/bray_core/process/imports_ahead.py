"""Modules that a process needs later, imported while it would wait for another process."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress


def import_ahead(names: Iterable[str]) -> None:
    """Import modules that are needed later, where this thread has nothing else to do.

    What is not installed is left out: whoever needs it says so in words of its own.

    Args:
        names: dotted names of modules.

    Examples:
        >>> import_ahead(["json", "no_such_package.part"])
    """
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
