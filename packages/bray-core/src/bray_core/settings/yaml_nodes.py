"""Reading YAML text as a tree of nodes, at a cost that the text's length bounds.

All YAML is read here. Nothing in a text is executed, and no tag makes an object. Deep nesting and
long numbers are refused: PyYAML takes time that grows with the square of their size. What aliases
stand for is bounded where the nodes are walked.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
"""Longest text, in characters; templates have a few thousand."""
MAX_DEPTH = 64
_MAX_NUMBER = 100
"""Longest number or date, in characters."""
_NUMBERS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
_LEAST, _BEYOND = -(2**63), 2**64


def compose(text: str, *, takes_aliases: bool = True) -> yaml.Node | None:
    """Return the root of a text, None where it is empty.

    Args:
        text: One document.
        takes_aliases: Whether `*name` may stand for what `&name` marks.

    Raises:
        yaml.YAMLError: The text is no YAML, or exceeds a bound.
    """
    if len(text) > MAX_BYTES:
        problem = f"expected {MAX_BYTES} characters at most, got {len(text)}"
        raise yaml.MarkedYAMLError(problem=problem)
    loader = _Loader(text, takes_aliases)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    except ValueError as error:  # such as `"\\U00110000"`: the scanner does not look
        raise yaml.MarkedYAMLError(problem=str(error)) from error
    finally:
        loader.dispose()


def scalar(node: yaml.Node) -> Any:
    """Return the value of a scalar node; its text where it has no valid value.

    A date that does not exist, or a number of 400 digits, stays a string, which no setting takes.
    """
    if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
        return node.value
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError):
        return node.value  # such as `2001-02-31`, `!!bool maybe`: the constructors do not look
    finally:
        loader.dispose()
    if isinstance(value, int) and not _LEAST <= value < _BEYOND:
        return node.value
    if isinstance(value, float) and math.isinf(value) and any(map(str.isdigit, node.value)):
        return node.value
    return value


class _Loader(yaml.SafeLoader):
    """Refuses nesting and aliases at once, not when the whole text has been scanned."""

    def __init__(self, text: str, takes_aliases: bool) -> None:
        super().__init__(text)
        self._takes_aliases = takes_aliases
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == MAX_DEPTH:
            raise _refused(f"nested too deeply, {MAX_DEPTH} levels at most", event)
        if isinstance(event, yaml.AliasEvent) and not self._takes_aliases:
            name = str(event.anchor)[:100]
            raise _refused(f"aliases such as *{name} are not taken here", event)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
