"""Teams as vector environments that `Runner` steps: a row for each agent, or one for each team.

Neither resets itself (`AutoresetMode.DISABLED`), so an episode's last observation is simply the
one that its last step returns. Shapes as in `bray_actor.runners.teams`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.runners.teams import TeamObservation, Teams
from bray_actor.segment import segment_spec
from bray_actor.spaces import import_gymnasium, spec_of
from bray_core.errors import ConfigError
from bray_core.layout import Layout

Step = tuple[
    dict[str, Any],
    npt.NDArray[np.float32],
    npt.NDArray[np.bool_],
    npt.NDArray[np.bool_],
    dict[str, Any],
]


class TeamEnvironment:
    """One row for each team: a joint action, one reward.

    Its observation is `{"agents": [M, D], "state": [S]}`, its action MultiDiscrete `[M]`.

    Args:
        teams: Teams that are stepped.
    """

    def __init__(self, teams: Teams) -> None:
        gymnasium = import_gymnasium()
        self.teams = teams
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
        self.num_envs = teams.num_teams * self.rows_per_team
        self.single_observation_space, self.single_action_space = self._spaces(gymnasium.spaces)

    @property
    def rows_per_team(self) -> int:
        """Rows that begin and end together."""
        return 1

    def _spaces(self, spaces: Any) -> tuple[Any, Any]:
        teams = self.teams
        agents = _reals(spaces, teams.num_agents, teams.observation_size)
        seen = spaces.Dict({"agents": agents, "state": _reals(spaces, teams.state_size)})
        return seen, spaces.MultiDiscrete([teams.num_actions] * teams.num_agents)

    def layout(self, length: int) -> Layout:
        """Return that of segments of at most `length` steps, as `Runner` records them here."""
        observation, action = self.single_observation_space, self.single_action_space
        return Layout(segment_spec(spec_of(observation), spec_of(action), length))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin episodes: of all, or of the rows in `options["reset_mask"]`.

        Raises:
            ConfigError: the mask splits a team.
        """
        whole = np.ones(self.num_envs, bool)
        mask = (options or {}).get("reset_mask", whole).reshape(-1, self.rows_per_team)
        if (mask.any(1) != mask.all(1)).any():
            raise ConfigError("reset_mask: expected whole teams, got some rows of one")
        self.teams.reset(mask.all(1), seed)
        return self._rows(self.teams.look()), {}

    def step(self, action: npt.NDArray[Any]) -> Step:
        """Take one action a row."""
        step = self.teams.step(np.asarray(action).reshape(self.teams.num_teams, -1))
        rows = self.rows_per_team
        reward = np.repeat(step.reward, rows)
        terminated, truncated = np.repeat(step.terminated, rows), np.repeat(step.truncated, rows)
        return self._rows(self.teams.look()), reward, terminated, truncated, {}

    def _rows(self, sight: TeamObservation) -> dict[str, Any]:
        return sight._asdict()

    def close(self) -> None:
        """Close the teams."""
        self.teams.close()


class AgentEnvironment(TeamEnvironment):
    """One row for each agent, so that all share one policy: row n · M + m is agent m of team n.

    Its observation is `{"agent": m, "own": [D], "state": [S]}`, its action Discrete; each agent
    gets the team's reward.
    """

    @property
    def rows_per_team(self) -> int:
        """M."""
        return self.teams.num_agents

    def _spaces(self, spaces: Any) -> tuple[Any, Any]:
        teams = self.teams
        own, state = _reals(spaces, teams.observation_size), _reals(spaces, teams.state_size)
        seen = {"agent": spaces.Discrete(teams.num_agents), "own": own, "state": state}
        return spaces.Dict(seen), spaces.Discrete(teams.num_actions)

    def _rows(self, sight: TeamObservation) -> dict[str, Any]:
        n, m, size = sight.agents.shape
        return {
            "agent": np.tile(np.arange(m), n),
            "own": sight.agents.reshape(n * m, size),  # [N, M, D] -> [N · M, D]
            "state": np.repeat(sight.state, m, axis=0),
        }


def _reals(spaces: Any, *shape: int) -> Any:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)
