"""Whether a name is meant by a pattern of names, such as an agent's by `hunter_*`."""

from __future__ import annotations

from fnmatch import fnmatchcase


def fits(name: str, pattern: str) -> bool:
    """Return whether a pattern is a name itself, or fits it with its `*`, `?` and `[…]`.

    The name itself comes first, as names may hold such signs: `car[0]` fits `car[0]`.
    """
    return name == pattern or fnmatchcase(name, pattern)
