"""Waiting for calls to workers, and the errors of workers that died."""

from __future__ import annotations

from typing import Any

import ray
import ray.exceptions

from bray_core.errors import BrayError, DeadlineError, WorkerLostError

_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OwnerDiedError,
)
_FOR_GOOD = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError)
_ERROR_PREFIX = f"{WorkerLostError.__module__}.{WorkerLostError.__name__}: "


def get_result(refs: Any, timeout_s: float, what: str) -> Any:
    """Wait for the result of a call, or of a list of calls.

    Args:
        refs: One `ray.ObjectRef`, or a list of them.
        timeout_s: Seconds to wait.
        what: The call, for messages.

    Raises:
        DeadlineError: No result within `timeout_s`.
        WorkerLostError: The worker died before it answered.
        Exception: What the method raised.
    """
    try:
        return ray.get(refs, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise DeadlineError(f"{what}: no answer within {timeout_s:g} s") from None
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from error
    except _LOST as error:
        raise WorkerLostError(f"{what}: the worker died: {_reason(error)}") from error


def will_be_restarted(error: WorkerLostError) -> bool:
    """Return whether Ray starts the lost worker again; False where a method raised the error."""
    return isinstance(error.__cause__, _LOST) and not isinstance(error.__cause__, _FOR_GOOD)


def raised_by_method(error: BrayError) -> bool:
    """Return whether the called method raised the error; False where the call itself failed."""
    return isinstance(error.__cause__, ray.exceptions.RayTaskError)


def died_for_good(error: WorkerLostError) -> bool:
    """Return whether the worker died too often or could not be made; False where it was closed."""
    return bool(getattr(error.__cause__, "actor_init_failed", False))


def _reason(error: BaseException) -> str:
    if getattr(error, "actor_init_failed", False):  # the end of the factory's traceback
        return str(error).strip().splitlines()[-1].removeprefix(_ERROR_PREFIX)
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
