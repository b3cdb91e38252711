"""What algorithms for teams say where a team plays beside policies of other kinds.

There an environment tells the members of a team more than they see by themselves, see
`bray_actor.multi_agent.team_game`: so their rows are recorded and answered as those of any agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

from bray.run import Run
from bray.training.recorded_policy import RecordedPolicy
from bray_actor.multi_agent.team import Rows
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.spaces import LeafSpace, Spaces

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamShape:
    """The sizes of a team's networks."""

    num_agents: int
    """Number of agents, M."""
    observation_size: int
    """Numbers that an agent sees, D."""
    state_size: int
    """Numbers of the state, S."""
    num_actions: int
    """Number of actions of each agent, A."""

    @classmethod
    def of(cls, spaces: Spaces) -> TeamShape:
        """Return the sizes of a team whose rows are those of `TeamGame`.

        Args:
            spaces: what a member sees and may do, or the team as one.
        """
        seen = nested.flatten(spaces.observation)
        num_actions = ActionVector(spaces.action).sizes[0]
        if "agents" in seen:
            num_agents, size = seen["agents"].shape
        else:
            num_agents, size = seen["agent"].sizes[0], seen["own"].num_numbers
        return cls(
            num_agents=num_agents,
            observation_size=size,
            state_size=seen["state"].num_numbers,
            num_actions=num_actions,
        )


class TeamPolicy(RecordedPolicy[C]):
    """An algorithm for teams, which trains one alone, and also beside other policies."""

    rows: ClassVar[Rows]
    """What is recorded of a team: a row of each member, or one of the whole team."""
    num_agents: int = 1
    """Number of agents of the team, M; known once the algorithm is settled."""

    def check_spaces(self, spaces: Spaces) -> None:
        """Refuse a team whose members do not choose one of several actions.

        Raises:
            ConfigError: says what is chosen.
        """
        action = spaces.action
        if not isinstance(action, LeafSpace) or action.kind != "category":
            raise ConfigError(
                f"environment: {spaces.origin}: expected one choice (Discrete) of each agent for "
                f"{self.title}, got {action}: train its agents with PPO"
            )

    def settled(self, run: Run, spaces: Spaces) -> Self:
        """Return the algorithm with the size of its team."""
        made = super().settled(run, spaces)
        made.num_agents = TeamShape.of(spaces).num_agents
        return made
