"""Modules of a user's own, by the name that a command line or a template gives."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def import_user_module(name: str) -> ModuleType:
    """Import a module; one of the working directory is found, too, as by `python -m`.

    The working directory comes last: no file there takes the place of an installed module.

    Raises:
        ImportError: there is none of that name, or its own imports fail.
        ValueError: no name at all.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # it may be younger than this process
    return importlib.import_module(name)
