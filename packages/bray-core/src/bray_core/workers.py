"""Plain workers in this process; `bray_core.remote.workers` has their twin on Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Workers:
    """One instance that answers all calls, one after the other, in the caller's thread.

    Args:
        factory: Makes the instance.

    Examples:
        >>> workers = Workers(dict)
        >>> workers.map("get", [("a", 1), ("b", 2)])
        [1, 2]
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._instance = factory()

    @property
    def size(self) -> int:
        """Number of workers, which is the number of calls that run at a time."""
        return 1

    def map(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with each of the arguments; return the results in their order.

        A call may be made again after a worker died: it must give the same result then.

        Raises:
            Exception: What the method raised.
        """
        return [getattr(self._instance, method)(*arguments) for arguments in calls]

    def close(self) -> None:
        """Close the instance, if it can be."""
        if hasattr(self._instance, "close"):
            self._instance.close()
