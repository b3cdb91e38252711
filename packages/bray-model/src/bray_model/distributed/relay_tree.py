"""Whom each relay gets new weights from, so that no process sends a version to many."""

from __future__ import annotations

from collections import deque

WIDTH = 4
"""Relays that the store, or a relay, sends a version to at most."""


class RelayTree:
    """A tree of names with the store, None, at its root. Not thread-safe.

    Args:
        width: children of one parent at most.
    """

    def __init__(self, width: int = WIDTH) -> None:
        self._width = width
        self._children: dict[str | None, list[str]] = {None: []}
        self._parents: dict[str, str | None] = {}

    def join(self, relay: str) -> str | None:
        """Give a relay a parent, the first with room counted from the root; return it.

        A relay that has one already gets another; those below it stay there. A relay below a
        parent that left is not reached from the root until it joins again, so none is put there.
        """
        self._detach(relay)
        queue: deque[str | None] = deque([None])
        while True:
            parent = queue.popleft()
            children = self._children[parent]
            if len(children) < self._width:
                break
            queue.extend(children)
        children.append(relay)
        self._parents[relay] = parent
        self._children.setdefault(relay, [])
        return parent

    def leave(self, relay: str) -> None:
        """Forget a relay; those below it must join again. Harmless if it is unknown."""
        self._detach(relay)
        for child in self._children.pop(relay, ()):
            self._parents.pop(child, None)

    def _detach(self, relay: str) -> None:
        if relay in self._parents:
            self._children[self._parents.pop(relay)].remove(relay)
