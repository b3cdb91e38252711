"""One description of how an environment of several agents is made, wherever it is played."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bray_actor.environments.spec_text import (
    made_with,
    short_name,
    spec_from_json,
    spec_to_json,
    wrapped,
)
from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.open_spiel_game import OpenSpielGame
from bray_actor.multi_agent.parallel_game import ParallelGame
from bray_actor.multi_agent.pettingzoo_modules import import_known, known_modules
from bray_actor.multi_agent.recovering_game import RecoveringGame
from bray_actor.multi_agent.turn_game import TurnGame
from bray_core.errors import ConfigError, MissingExtraError
from bray_core.process.user_modules import (
    NOT_FOUND,
    check_code_name,
    find_user_code,
    import_user_code,
)
from bray_core.settings.choice import closest
from bray_core.settings.ranges import check_fields

OPEN_SPIEL = "open_spiel:"
"""Prefix of OpenSpiel's games."""
_FORMS = (
    "a name of PettingZoo (connect_four_v3), open_spiel:GAME, module:function, file.py:Class, or a "
    "module with parallel_env or env"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiAgentSpec:
    """How an environment of several agents is made, in training and in evaluation alike.

    It is plain data: it is pickled, and written as JSON. Code of yours is named, and imported where
    the environment is made.
    """

    environment: str
    """What is played: a name of PettingZoo (`simple_tag_v3`, `connect_four_v3`), OpenSpiel's game
    (`open_spiel:leduc_poker`, `open_spiel:kuhn_poker(players=3)`), a module with `parallel_env` or
    `env`, or a class or function of yours (`module:function`, `file.py:Class`) that returns an
    environment of PettingZoo or a `MultiAgentEnvironment`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the environment is made with, such as `{max_cycles: 50}`."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around an environment of PettingZoo, the innermost first: `module:Class` or
    `file.py:Class`, called with the environment."""

    def __post_init__(self) -> None:
        check_fields(self)
        for wrapper in self.wrappers:
            check_code_name("wrappers", wrapper)

    @classmethod
    def of(cls, environment: str | MultiAgentSpec | Callable[..., Any]) -> MultiAgentSpec:
        """Return the description of a name alone, or of a class or function at a module's top.

        Raises:
            ConfigError: the class or function cannot be imported by a name.
        """
        if isinstance(environment, MultiAgentSpec):
            return environment
        if isinstance(environment, str):
            return cls(environment=environment)
        return cls(environment=_name_of(environment))

    def __str__(self) -> str:
        return short_name(self.environment)

    def to_json(self) -> str:
        """Return it as JSON.

        Raises:
            ConfigError: the kwargs hold something that JSON cannot.
        """
        values = {one.name: getattr(self, one.name) for one in fields(MultiAgentSpec)}
        return spec_to_json({**values, "kwargs": dict(self.kwargs)})

    @classmethod
    def from_json(cls, text: str) -> MultiAgentSpec:
        """Return the description that `to_json` wrote.

        Raises:
            ConfigError: it is no such text.
        """
        return spec_from_json(text, MultiAgentSpec, "environment")

    def make(self) -> MultiAgentEnvironment:
        """Make the environment, which is made anew where it raises; see `RecoveringGame`.

        Raises:
            ConfigError: the environment or a wrapper is unknown, or cannot be made.
            MissingExtraError: what it needs is not installed.
        """
        return RecoveringGame(self._make_bare, str(self))

    def make_parallel(self) -> Any:
        """Make the environment as PettingZoo's `ParallelEnv`, as it is.

        Raises:
            ConfigError: it is unknown, cannot be made, or is another kind of environment.
            MissingExtraError: what it needs is not installed.
        """
        made = None if self.environment.startswith(OPEN_SPIEL) else self._made()
        if not hasattr(made, "possible_agents") or hasattr(made, "agent_iter"):
            raise ConfigError(
                f"environment: {self}: expected an environment of PettingZoo whose agents act at "
                "once (a ParallelEnv), got one of another kind"
            )
        return made

    def _make_bare(self) -> MultiAgentEnvironment:
        if self.environment.startswith(OPEN_SPIEL):
            if self.wrappers:
                raise ConfigError(
                    f"wrappers: expected none around a game of OpenSpiel, got {self.wrappers}"
                )
            return OpenSpielGame(self.environment.removeprefix(OPEN_SPIEL), self.kwargs)
        return adapted(self._made(), self.environment)

    def _made(self) -> Any:
        made = self._unwrapped()
        for wrapper in self.wrappers:
            made = wrapped(wrapper, made)
        return made

    def _unwrapped(self) -> Any:
        found = _find(self.environment)
        if _makers(found):
            return self._of_module(found)
        if not callable(found):
            raise ConfigError(
                f"environment: {self.environment}: expected a class or function, or parallel_env "
                f"or env in it, got {type(found).__name__}"
            )
        return self._called(found)

    def _of_module(self, module: Any) -> Any:
        """Return the parallel environment of a module, or the one of turns if it plays in turns."""
        makers = _makers(module)
        made = self._called(makers[0])
        metadata = getattr(made, "metadata", None) or {}
        if len(makers) == 2 and not metadata.get("is_parallelizable", True):
            made.close()
            return self._called(makers[1])
        return made

    def _called(self, make: Callable[..., Any]) -> Any:
        return made_with(make, self.environment, self.kwargs)


def adapted(made: Any, name: str) -> MultiAgentEnvironment:
    """Return an environment of PettingZoo as a `MultiAgentEnvironment`; one of these as it is.

    Args:
        made: What a class or function of the user returned.
        name: Its name, for messages.

    Raises:
        ConfigError: it is something else.
    """
    if hasattr(made, "spaces") and hasattr(made, "agents"):
        found: MultiAgentEnvironment = made
        return found
    if hasattr(made, "agent_iter") and hasattr(made, "last"):
        return TurnGame(made)
    if callable(getattr(made, "observation_space", None)) and hasattr(made, "step"):
        return ParallelGame(made)
    raise ConfigError(
        f"environment: {name}: expected an environment of PettingZoo or a MultiAgentEnvironment, "
        f"got {type(made).__name__}: return one of these"
    )


def _makers(found: Any) -> list[Callable[..., Any]]:
    """Return what makes the environments of a module, the parallel ones first."""
    if inspect.isclass(found) or inspect.isroutine(found):
        return []
    made = (getattr(found, name, None) for name in ("parallel_env", "env"))
    return [make for make in made if callable(make)]


def _find(environment: str) -> Any:
    """Return the module, class or function of a name. Raises ConfigError: there is none."""
    if environment in known_modules():
        try:
            return import_known(environment)
        except ImportError as error:
            raise ConfigError(
                f"environment: {environment} needs a package that is not installed: {error}"
            ) from error
    where = environment.rpartition(":")[0]
    try:
        if where:
            return find_user_code(environment)
        if environment.endswith(".py") or _exists(environment):
            found = import_user_code(environment)
            if _makers(found):
                return found
            raise ConfigError(
                f"environment: {environment}: expected a module with parallel_env or env, or "
                "module:function"
            )
    except ConfigError:
        raise
    except NOT_FOUND as error:
        raise ConfigError(
            f"environment: expected {_FORMS}, got {environment!r}: {error}"
        ) from error
    if not known_modules():
        raise MissingExtraError("playing PettingZoo environments", "bray-actor", "gym")
    known = [*known_modules(), OPEN_SPIEL]
    raise ConfigError(
        f"environment: unknown {environment!r}{closest(environment, known)}: {_FORMS}"
    )


def _exists(module: str) -> bool:
    """Return whether there is a module, also in the working directory."""
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    if Path(*module.split(".")).with_suffix(".py").is_file():
        return True
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _name_of(make: Callable[..., Any]) -> str:
    """Return `module:name` of a class or function. Raises ConfigError: it has no such name."""
    module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
    if not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not make:
        raise ConfigError(
            f"environment: expected a class or function at the top of a module, got {make!r}: "
            "workers import it by its name"
        )
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        if path is None:
            raise ConfigError(
                f"environment: {name} was written at a prompt: put it into a file, so that workers "
                "can import it"
            )
        return f"{Path(path).resolve()}:{name}"
    return f"{module}:{name}"
