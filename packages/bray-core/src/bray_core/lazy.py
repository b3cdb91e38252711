"""Lazy imports: public names of a package that are loaded when they are first used.

`bray --help` loads the command modules of every package, and with them each package's `__init__`:
that must not load numpy, let alone onnxruntime.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as `typing` says it: commands load this module first
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def attach(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package (PEP 562).

    Args:
        package: The package's `__name__`.
        homes: Module that defines each public name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get, lambda: sorted(homes)
