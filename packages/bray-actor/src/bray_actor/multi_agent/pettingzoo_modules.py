"""PettingZoo's own environments by their short names, such as `connect_four_v3`."""

from __future__ import annotations

import importlib
import re
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_PACKAGES = ("pettingzoo", "mpe2")
"""Packages whose modules are environments."""
_VERSIONED = re.compile(r"\w+_v\d+")


@cache
def known_modules() -> dict[str, str]:
    """Return the full name of the module of each environment that is installed, by its short name.

    The files are listed, none is imported.
    """
    found = {}
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted([*Path(folder).glob("*.py"), *Path(folder).glob("*/*.py")]):
                if _VERSIONED.fullmatch(path.stem):
                    inside = path.relative_to(folder).with_suffix("").parts
                    found[path.stem] = ".".join((package, *inside))
    return found


def import_known(name: str) -> ModuleType:
    """Import the module of a short name.

    Raises:
        ImportError: a package that the environment needs is not installed.
    """
    with warnings.catch_warnings():  # newer ones ask for their registry, which older ones lack
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(known_modules()[name])
