"""The name by which a run knows an environment that a program gives as a class or function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bray_actor.spaces import import_gymnasium
from bray_core.errors import ConfigError
from bray_core.process.user_modules import code_name

_REMEDY = "write it at the top of a module or of the program's file"


def environment_name(environment: str | Callable[..., Any], *, needs_processes: bool) -> str:
    """Return the name of an environment as the command line writes it.

    What lies at the top of a module or of the program's file is named so that later commands find
    it (see `code_name`). What has no name, such as a lambda, is registered with Gymnasium, and
    known to this process alone.

    Args:
        environment: a name, which stays as it is, or a class or function that returns an
            environment.
        needs_processes: whether other processes make the environment, too.

    Raises:
        ConfigError: it is neither, or other processes could not find it.
    """
    if isinstance(environment, str):
        return environment
    gymnasium = import_gymnasium()
    if not callable(environment) or isinstance(environment, gymnasium.Env):
        raise ConfigError(
            "environment: expected a name, or a class or function that returns an environment, got "
            f"{type(environment).__name__}: a run makes several, so give what makes one"
        )
    name = code_name(environment)
    if needs_processes and (name is None or name.startswith("__main__:")):
        raise ConfigError(
            f"environment: expected something that other processes can import, got {environment!r}:"
            f" {_REMEDY}, or train in this process alone"
        )
    return name or _registered(environment)


def _registered(environment: Callable[..., Any]) -> str:
    """Register what has no name with Gymnasium, in place of another such one of that name."""
    gymnasium = import_gymnasium()
    last = getattr(environment, "__qualname__", type(environment).__name__).rpartition(".")[2]
    name = f"{last if last.isidentifier() else 'Environment'}-v0"
    known = gymnasium.registry.get(name)
    if known is not None and isinstance(known.entry_point, str):
        raise ConfigError(
            f"environment: {environment!r} would hide Gymnasium's own {name}: {_REMEDY}"
        )
    gymnasium.registry.pop(name, None)  # Gymnasium warns where it overrides one
    gymnasium.register(name, entry_point=environment)
    return name
