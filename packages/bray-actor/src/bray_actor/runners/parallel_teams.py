"""PettingZoo's parallel environments as teams that a runner steps in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.runners.teams import Mask, TeamObservation, TeamStep
from bray_actor.spaces import import_gymnasium
from bray_core.errors import ConfigError


class ParallelTeams:
    """Several `pettingzoo.ParallelEnv` of one kind, stepped one after the other.

    The team's reward is the mean of its agents'. The state is the environment's own (`state()`)
    where it has a `state_space`, else all that its agents see. Observations are flattened, choices
    among them to one-hot vectors. An agent that is not there yet or has left sees zeros, gets no
    reward, and its actions are dropped ("death masking", Yu et al. 2022, "The surprising
    effectiveness of PPO in cooperative multi-agent games", §5.5); the episode ends when all have
    left.

    Args:
        make: Function that makes one environment.
        num_teams: N.

    Raises:
        ConfigError: agents differ in their spaces, their observations have no fixed size or an
            action mask, or their actions are not Discrete.
    """

    def __init__(self, make: Callable[[], Any], num_teams: int) -> None:
        if num_teams < 1:
            raise ConfigError(f"num_teams: expected 1 or more, got {num_teams}")
        self._envs = [make() for _ in range(num_teams)]
        first = self._envs[0]
        self._agents: list[str] = list(first.possible_agents)
        self.num_teams = num_teams
        self.num_agents = len(self._agents)
        self._flatten = partial(
            import_gymnasium().spaces.flatten, first.observation_space(self._agents[0])
        )
        self.observation_size, self.num_actions, self._first = _sizes(first)
        space = getattr(first, "state_space", None)
        self._has_state = space is not None
        self.state_size = (
            self.num_agents * self.observation_size if space is None else int(np.prod(space.shape))
        )
        self._seen = np.zeros((num_teams, self.num_agents, self.observation_size), np.float32)
        self._state = np.zeros((num_teams, self.state_size), np.float32)

    def reset(self, which: Mask, seed: int | None = None) -> None:
        """Begin episodes; team n is seeded with `seed + n`."""
        for team in np.nonzero(which)[0].tolist():
            observation, _ = self._envs[team].reset(seed=None if seed is None else seed + team)
            self._see(team, observation, set(self._agents))

    def look(self) -> TeamObservation:
        """Return what there is to see."""
        return TeamObservation(self._seen.copy(), self._state.copy())

    def step(self, action: npt.NDArray[Any]) -> TeamStep:
        """Take actions `[N, M]`."""
        n = self.num_teams
        done = TeamStep(np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))
        for team, env in enumerate(self._envs):
            taken = (action[team] + self._first).tolist()
            playing = set(env.agents)
            observation, reward, terminated, _, _ = env.step(
                {
                    agent: one
                    for agent, one in zip(self._agents, taken, strict=True)
                    if agent in playing
                }
            )
            done.reward[team] = sum(reward.get(agent, 0.0) for agent in playing) / self.num_agents
            done.terminated[team] = not env.agents and all(terminated.values())
            done.truncated[team] = not env.agents and not done.terminated[team]
            self._see(team, observation, playing | set(env.agents))
        return done

    def _see(self, team: int, observation: dict[str, Any], playing: set[str]) -> None:
        for index, agent in enumerate(self._agents):
            seen = observation.get(agent) if agent in playing else None
            self._seen[team, index] = 0.0 if seen is None else self._flatten(seen)
        state = self._envs[team].state() if self._has_state else self._seen[team]
        self._state[team] = np.ravel(state)

    def close(self) -> None:
        """Close all."""
        for env in self._envs:
            env.close()


def _sizes(env: Any) -> tuple[int, int, int]:
    """Return D, A and the first action's number of an environment whose agents are alike."""
    spaces = import_gymnasium().spaces
    agents = list(env.possible_agents)
    if not agents:
        raise ConfigError("environment: expected possible_agents, got none")
    observation, action = env.observation_space(agents[0]), env.action_space(agents[0])
    for agent in agents:
        for name, first in (("observation_space", observation), ("action_space", action)):
            got = getattr(env, name)(agent)
            if not _are_alike(got, first):
                raise ConfigError(
                    f"environment: {name}: expected agents that are alike, got {first} of "
                    f"{agents[0]!r} and {got} of {agent!r}"
                )
    if not observation.is_np_flattenable or not isinstance(action, spaces.Discrete):
        raise ConfigError(
            "environment: expected observations of a fixed size and Discrete actions, "
            f"got {observation} and {action}"
        )
    if isinstance(observation, spaces.Dict) and "action_mask" in observation.spaces:
        raise ConfigError(
            "environment: its observations have an action_mask, which algorithms of teams do not "
            "read: they would play what is not allowed: train it with `ppo source.kind=agents`"
        )
    return int(spaces.flatdim(observation)), int(action.n), int(action.start)


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two agents' spaces flatten alike; the bounds of a Box may differ."""
    spaces = import_gymnasium().spaces
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return bool(one.shape == other.shape)
    return bool(one == other)
