"""The cluster as the parts of a remote model need it; `bray_model.remote` has it on Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from bray_core.errors import WorkerLostError

_REPLACED_S = 60.0


class WeightSource(Protocol):
    """A store or a relay, seen from another process."""

    def call(self, method: str, *args: Any, timeout_s: float = 60.0) -> Any:
        """Call a method of it.

        Raises:
            WorkerLostError: The store or relay died.
            DeadlineError: No answer came in time.
        """
        ...


class StoreLink(WeightSource, Protocol):
    """A model's store, seen from another process."""

    @property
    def node(self) -> str:
        """The node of this process."""
        ...

    @property
    def is_connected(self) -> bool:
        """Whether this process is still part of the cluster."""
        ...

    def exists(self) -> bool:
        """Return whether the model was not closed; a store that is being restarted exists."""
        ...

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until a store that died is back. Raises DeadlineError."""
        ...

    def relay(self, name: str) -> WeightSource:
        """Look up a relay. Raises NotFoundError."""
        ...

    def unpickle(self, data: bytes) -> Any:
        """Read a blueprint's definition."""
        ...

    def worker(self, index: int) -> str:
        """Return the address of an inference worker; waits for one that is being replaced.

        Raises:
            WorkerLostError: The worker was not replaced in time.
            ClosedError: the model was closed.
        """
        ...


def call_again(link: StoreLink, method: str, *args: Any) -> Any:
    """Call a method of a store; where the store dies, call the one that takes its place.

    Args:
        link: Way to the store.
        method: Name of a method that may run twice.
        args: Its arguments.

    Raises:
        WorkerLostError: The store died, and is not started again, or dies again and again.
        DeadlineError: It was not back in time.
    """
    return repeat_where_lost(link, lambda: link.call(method, *args))


def repeat_where_lost(link: StoreLink, request: Callable[[], Any]) -> Any:
    """Make a request, and again where the store dies, for as long as one may take to come back.

    Args:
        link: Way to the store.
        request: Calls of the store that may run twice.

    Raises:
        WorkerLostError: The store died, and is not started again, or dies again and again.
        DeadlineError: It was not back in time.
    """
    deadline = time.monotonic() + _REPLACED_S
    while True:
        try:
            return request()
        except WorkerLostError:
            if time.monotonic() >= deadline:
                raise
            link.wait_ready(_REPLACED_S)


class RelayMaker(Protocol):
    """Starts relays for a store."""

    @property
    def here(self) -> str:
        """The node of the store."""
        ...

    def make(self, node: str) -> RelayLink:
        """Start a relay on a node and wait for it."""
        ...


class RelayLink(WeightSource, Protocol):
    """A relay, seen from the store that made it."""

    @property
    def name(self) -> str:
        """Name by which `StoreLink.relay` looks it up."""
        ...

    def close(self) -> None:
        """End it."""
        ...
