"""Importing a user's modules, which a command line or a template names."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType


def import_user_module(name: str) -> ModuleType:
    """Import a module, also one in the working directory, as `python -m` does.

    The working directory comes last: no file there takes the place of an installed module.

    Raises:
        ImportError: There is no such module, or its own imports fail.
        ValueError: The name is empty.
    """
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()  # it may be younger than this process
    return importlib.import_module(name)
