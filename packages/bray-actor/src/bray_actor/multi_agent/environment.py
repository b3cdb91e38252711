"""What every environment of several agents can do, whoever acts when.

PettingZoo's parallel environments let all agents act at once, its turn-based ones and board games
one after the other. Here both are one thing: after `reset` and each `step` there is a tick for each
agent that acts next, and for each whose episode has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from bray_core.nested import Nested
from bray_core.spaces import Spaces


class AgentTick(NamedTuple):
    """What one agent is told: it acts next, unless its episode has ended."""

    observation: Nested
    """Arrays as its spaces describe them, an action mask included; None after an end that shows
    nothing more."""
    reward: float = 0.0
    """Sum of its rewards since its action before."""
    terminated: bool = False
    """Whether its episode has ended by itself."""
    truncated: bool = False
    """Whether its episode was cut from outside."""
    info: Mapping[str, Any] = {}
    """What the environment says besides."""

    @property
    def has_ended(self) -> bool:
        """Whether the agent acts no more in this game."""
        return self.terminated or self.truncated


class MultiAgentEnvironment(Protocol):
    """One game of several agents, which may come and go."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of all agents that may ever take part, in a fixed order."""
        ...

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent sees and may do."""
        ...

    def reset(self, seed: int | None = None) -> dict[str, AgentTick]:
        """Begin a game; return the ticks of those who act first.

        An environment that follows a curriculum takes `options`, a mapping, besides.

        Args:
            seed: seed of the environment's draws; None goes on with those of before.
        """
        ...

    def step(self, actions: Mapping[str, Nested]) -> dict[str, AgentTick]:
        """Take the actions of all who were to act; return the next ticks.

        The game is over when none of the ticks is of an agent that acts.

        Args:
            actions: by agent, as `bray_core.action_vector.ActionVector.assemble` makes them.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def takes_options(environment: MultiAgentEnvironment) -> bool:
    """Return whether an environment's `reset` takes options, `reset(seed, options=…)`."""
    told: bool | None = getattr(environment, "takes_options", None)
    if told is not None:
        return told
    parameters = inspect.signature(environment.reset).parameters
    return "options" in parameters or any(
        one.kind is one.VAR_KEYWORD for one in parameters.values()
    )
