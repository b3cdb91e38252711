"""Services: the user's code that answers requests, with sessions or without."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

from bray_core.errors import ConfigError, ServiceError
from bray_core.protocols import ActorProtocol


class StatelessService(Protocol):
    """A service without sessions."""

    async def tick(self, body: bytes) -> bytes:
        """Answer one call."""
        ...


class BatchedService(StatelessService, Protocol):
    """A service without sessions that prefers to answer several calls together."""

    async def ticks(self, bodies: Sequence[bytes]) -> Sequence[bytes | ServiceError]:
        """Answer the calls that came in one turn of the event loop, in their order."""
        ...


SessionFactory = Callable[[str], ActorProtocol]
"""Function or class that makes the actor of a session from the session's id. One whose `makes_way`
is true is followed by another at the same ports: while it shuts down, a start is told `not_ready`
instead of `draining`, so that clients come again."""

Service = SessionFactory | StatelessService | BatchedService
"""With sessions: a `SessionFactory`. Without: an object with `tick`, and perhaps `ticks`."""


def sort_service(
    service: Service,
) -> tuple[SessionFactory | None, StatelessService | None]:
    """Return a service as a session factory or as a stateless service; the other is None.

    Raises:
        ConfigError: It is neither, or takes no session's id.
    """
    tick = getattr(service, "tick", None)
    if not inspect.isclass(service) and tick is not None:
        if not inspect.iscoroutinefunction(tick):
            raise ConfigError(f"service: expected an async tick, got {tick!r}")
        return None, service  # type: ignore[return-value]
    if callable(service):
        _check_takes_session(service)
        return service, None
    raise ConfigError(
        "service: expected a class or function that makes a session's actor, or an object with "
        f"an async tick, got {type(service).__name__}"
    )


def _check_takes_session(factory: Callable[..., object]) -> None:
    """Refuse what cannot be called with a session's id, before a client starts a session."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # of a function in C, which tells none
        return
    try:
        signature.bind("session")
    except TypeError as error:
        name = getattr(factory, "__name__", repr(factory))
        is_stateless = inspect.iscoroutinefunction(getattr(factory, "tick", None))
        meant = f"; without sessions, give an object: {name}(…)" if is_stateless else ""
        raise ConfigError(
            "service: expected a class or function that makes a session's actor from the session's "
            f"id, got {name}{signature}: {error}{meant}"
        ) from error


def not_bytes(reply: object) -> ServiceError:
    """Return the error for a service that answered with something else than bytes."""
    return ServiceError(
        "service_error", f"the service answered {type(reply).__name__}, expected bytes"
    )


def not_async(reply: object) -> ServiceError:
    """Return the error for a service whose method answers without being `async`."""
    return ServiceError(
        "service_error",
        f"the service's method returned {type(reply).__name__} at once, expected it to be "
        "`async def`",
    )
