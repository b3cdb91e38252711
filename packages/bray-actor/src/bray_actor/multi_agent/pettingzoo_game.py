"""What PettingZoo's environments have in common, whoever acts when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from bray_actor.multi_agent.agent_view import AgentView, agents_of, tells_masks
from bray_core.spaces import Spaces


def given(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a reset with options; none without: some environments take none."""
    return {} if options is None else {"options": dict(options)}


class PettingZooGame(ABC):
    """Agents and spaces of one of PettingZoo's environments.

    Args:
        environment: Environment of PettingZoo.
    """

    def __init__(self, environment: Any) -> None:
        self._env = environment
        self._agents = agents_of(environment)
        self._tells_mask = tells_masks(self._first_infos())
        self._views: dict[str, AgentView] = {}

    @abstractmethod
    def _first_infos(self) -> Mapping[str, Any]:
        """Reset the environment with seed 0; return the infos by agent."""

    @property
    def agents(self) -> Sequence[str]:
        """Names of all agents that may ever take part."""
        return self._agents

    def spaces(self, agent: str) -> Spaces:
        """Return what an agent sees and may do."""
        return self._view(agent).spaces

    def _view(self, agent: str) -> AgentView:
        if agent not in self._views:
            self._views[agent] = AgentView(self._env, agent, tells_mask=self._tells_mask)
        return self._views[agent]

    def render(self) -> Any:
        """Return the game as it stands, an image `[H, W, 3]` or text; None: it draws nothing."""
        try:
            return self._env.render()
        except NotImplementedError:  # PettingZoo's own, where an environment has none
            return None

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
