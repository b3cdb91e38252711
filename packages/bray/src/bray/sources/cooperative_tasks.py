"""Cooperative tasks for several agents, vectorised; shapes as in `bray_actor.runners.teams`.

`spread` is MPE's simple_spread (Lowe et al. 2017, "Multi-agent actor-critic for mixed cooperative-
competitive environments"), `spread-apart` the same for agents that do not see one another, and
`two-step` the game of Rashid et al. 2018, §5. Any other name is an environment of PettingZoo whose
agents act at once, theirs or your own: see `MultiAgentSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bray.sources.config import EnvironmentSourceConfig
from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.runners.parallel_teams import ParallelTeams
from bray_actor.runners.teams import Mask, TeamObservation, Teams, TeamStep
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest

_MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)
_ACCELERATION = 5.0
_DT = 0.1
_KEPT_SPEED = 0.75
_DIAMETER = 0.3
_FORCE, _MARGIN = 100.0, 1e-3


class Spread:
    """Three agents cover three landmarks and must not bump into one another.

    An agent sees its speed, its place, and where landmarks and other agents are from there; the
    state is every speed, place and landmark. The reward is half of (− the sum over landmarks of
    the distance of the nearest agent − the collisions of an agent, on average), as the mean of
    simple_spread's. An episode is cut after 25 steps.

    Args:
        num_teams: N.
        sees_others: whether an agent sees where the others are.
    """

    num_agents = 3
    num_actions = len(_MOVES)
    state_size = 6 * num_agents
    episode_length = 25

    def __init__(self, num_teams: int, *, sees_others: bool = True) -> None:
        if num_teams < 1:
            raise ConfigError(f"num_teams: expected 1 or more, got {num_teams}")
        self.num_teams = num_teams
        self._sees_others = sees_others
        m = self.num_agents
        self.observation_size = 4 + 2 * m + 2 * (m - 1) * sees_others
        self._random = np.random.default_rng()
        self.place, self.speed, self.landmark = np.zeros((3, num_teams, m, 2))
        self._steps = np.zeros(num_teams, int)
        self._others = np.array([[j for j in range(m) if j != i] for i in range(m)])

    def reset(self, which: Mask, seed: int | None = None) -> None:
        """Begin episodes with everything at random places within ±1."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        shape = (int(which.sum()), self.num_agents, 2)
        self.place[which] = self._random.uniform(-1, 1, shape)
        self.landmark[which] = self._random.uniform(-1, 1, shape)
        self.speed[which] = 0.0
        self._steps[which] = 0

    def look(self) -> TeamObservation:
        """Return what there is to see."""
        n, m = self.num_teams, self.num_agents
        landmarks = self.landmark[:, None] - self.place[:, :, None]  # [N, M, M, 2]
        parts = [self.speed, self.place, landmarks.reshape(n, m, -1)]
        if self._sees_others:
            others = self.place[:, self._others] - self.place[:, :, None]
            parts.append(others.reshape(n, m, -1))
        state = np.concatenate([self.speed, self.place, self.landmark], 1).reshape(n, -1)
        return TeamObservation(
            np.concatenate(parts, -1).astype(np.float32), state.astype(np.float32)
        )

    def step(self, action: npt.NDArray[Any]) -> TeamStep:
        """Take moves `[N, M]`: 0 none, 1 left, 2 right, 3 down, 4 up."""
        force = _ACCELERATION * _MOVES[action] + self._bumps()
        self.place += self.speed * _DT
        self.speed = self.speed * _KEPT_SPEED + force * _DT
        self._steps += 1
        reward = -0.5 * (self._uncovered() + self._collisions())
        truncated = self._steps >= self.episode_length
        return TeamStep(reward.astype(np.float32), np.zeros_like(truncated), truncated)

    def _apart(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return vectors and distances between agents, `[N, M, M, 2]` and `[N, M, M]`."""
        apart = self.place[:, :, None] - self.place[:, None]
        return apart, np.sqrt(np.square(apart).sum(-1))

    def _bumps(self) -> npt.NDArray[np.float64]:
        """Return the forces `[N, M, 2]` by which agents push one another away."""
        apart, distance = self._apart()
        depth = np.logaddexp(0, (_DIAMETER - distance) / _MARGIN) * _MARGIN
        size = _FORCE * depth / np.where(distance > 0, distance, 1.0)
        bumps: npt.NDArray[np.float64] = (size[..., None] * apart).sum(2)
        return bumps

    def _uncovered(self) -> npt.NDArray[np.float64]:
        """Return the sum of the landmarks' distances to their nearest agent, `[N]`."""
        distance = np.sqrt(np.square(self.landmark[:, :, None] - self.place[:, None]).sum(-1))
        uncovered: npt.NDArray[np.float64] = distance.min(2).sum(1)
        return uncovered

    def _collisions(self) -> npt.NDArray[np.float64]:
        """Return how many others an agent touches, on average, `[N]`."""
        touching = (self._apart()[1] < _DIAMETER).sum((1, 2)) - self.num_agents
        collisions: npt.NDArray[np.float64] = touching / self.num_agents
        return collisions

    def close(self) -> None:
        """Nothing to close."""


class TwoStep:
    """The first agent's first action chooses one of two matrix games, which both then play.

    One pays 7 whatever they do; the other 8 if both choose action 1, 0 if both choose 0, else 1.
    No sum of the two agents' own values is right for it: VDN takes the 7. Both see the state.
    """

    num_agents = 2
    num_actions = 2
    observation_size = state_size = 3
    payoff = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)

    def __init__(self, num_teams: int) -> None:
        if num_teams < 1:
            raise ConfigError(f"num_teams: expected 1 or more, got {num_teams}")
        self.num_teams = num_teams
        self._at = np.zeros(num_teams, int)
        """0: the choice; 1, 2: the games."""

    def reset(self, which: Mask, seed: int | None = None) -> None:
        """Begin episodes; nothing is drawn."""
        self._at[which] = 0

    def look(self) -> TeamObservation:
        """Return the state as one-hot, to all."""
        state = np.eye(3, dtype=np.float32)[self._at]
        return TeamObservation(np.repeat(state[:, None], self.num_agents, 1), state)

    def step(self, action: npt.NDArray[Any]) -> TeamStep:
        """Choose, or play."""
        plays = self._at > 0
        paid = self.payoff[self._at - 1, action[:, 0], action[:, 1]]
        self._at = np.where(plays, self._at, 1 + action[:, 0])
        return TeamStep(np.where(plays, paid, np.float32(0)), plays, np.zeros_like(plays))

    def close(self) -> None:
        """Nothing to close."""


TASKS = ("spread", "spread-apart", "two-step")


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamSourceConfig(EnvironmentSourceConfig):
    """Teams that play side by side."""

    environment: str
    """What is played: `spread`, `spread-apart`, `two-step`; or a name of PettingZoo
    (`simple_spread_v3`), a module with `parallel_env`, or a class or function of yours
    (`module:function`, `file.py:Class`) that returns a `ParallelEnv`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the environment is made with, such as `{N: 5}`."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around it, the innermost first: `module:Class` or `file.py:Class`."""


def make_teams(source: TeamSourceConfig, num_teams: int) -> Teams:
    """Make N copies of a task.

    Args:
        source: what is played.
        num_teams: N.

    Raises:
        ConfigError: there is no such task, its agents are not alike, or they play in turns.
        MissingExtraError: what it needs is not installed.
    """
    task = source.environment
    if task in TASKS:
        if source.kwargs or source.wrappers:
            raise ConfigError(f"source: {task} takes neither kwargs nor wrappers: remove them")
        if task == "two-step":
            return TwoStep(num_teams)
        return Spread(num_teams, sees_others=task == "spread")
    spec = MultiAgentSpec(environment=task, kwargs=source.kwargs, wrappers=source.wrappers)
    try:
        return ParallelTeams(spec.make_parallel, num_teams, str(spec))
    except ConfigError as error:
        if near := closest(task, TASKS):
            raise ConfigError(f"{error}{near}") from error
        raise
