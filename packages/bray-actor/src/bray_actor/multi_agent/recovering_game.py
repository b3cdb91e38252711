"""A game of several agents that is made anew where it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from bray_actor.environments.error_limit import ERROR, ErrorLimit, tell_error
from bray_actor.multi_agent.environment import AgentTick, MultiAgentEnvironment
from bray_core.errors import BrayError
from bray_core.nested import Nested
from bray_core.spaces import Spaces

logger = logging.getLogger(__name__)

_SEED_STEP = 1_000_003


class RecoveringGame:
    """A `MultiAgentEnvironment` that is made anew where it raises; its game is void.

    The ticks of the step that failed truncate all who acted, and their info says what was raised,
    as `environment_error`. Errors that bray raises, such as an action outside its space, are no
    fault of the environment and pass.

    Args:
        make: Function that makes the environment.
        name: What is played, for messages.
    """

    def __init__(self, make: Callable[[], MultiAgentEnvironment], name: str) -> None:
        self._make = make
        self._game = make()
        self._name = name
        self._limit = ErrorLimit(name)
        self._num_errors = 0
        self._seed: int | None = None

    @property
    def agents(self) -> Sequence[str]:
        """Names of all agents that may ever take part."""
        return self._game.agents

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent sees and may do."""
        return self._game.spaces(agent)

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Begin a game, with another environment where that fails."""
        if seed is not None:
            self._seed = seed
        while True:
            try:
                return self._game.reset(seed)
            except BrayError:
                raise
            except Exception as error:  # noqa: BLE001  the boundary to code of others
                self._renew(error)
                seed = self._next_seed()

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the actions; where that fails all who acted are truncated.

        Raises:
            BrayError: the environment keeps failing.
        """
        self._limit.count_step()
        try:
            return self._game.step(actions)
        except BrayError:
            raise
        except Exception as error:  # noqa: BLE001  the boundary to code of others
            info = {ERROR: self._renew(error)}
            return {agent: AgentTick(None, truncated=True, info=info) for agent in actions}

    def _renew(self, error: Exception) -> str:
        """Make the environment anew; return what it raised."""
        while True:
            words = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            self._num_errors += 1
            tell_error(self._name, words)
            self._limit.count_error(words, error)
            try:
                self._close_quietly()
                self._game = self._make()
                if self._seed is not None:  # its next reset may bring none
                    self._game.reset(self._next_seed())
            except Exception as another:  # noqa: BLE001  the boundary to code of others
                error = another
            else:
                return words

    def _next_seed(self) -> int | None:
        """Return a seed that differs from error to error, the same in each run."""
        return None if self._seed is None else (self._seed + _SEED_STEP * self._num_errors) % 2**31

    def _close_quietly(self) -> None:
        try:
            self._game.close()
        except Exception as error:  # noqa: BLE001  it is broken already
            logger.debug("environment: %s: not closed: %s", self._name, error)

    def close(self) -> None:
        """Close the environment."""
        self._game.close()
