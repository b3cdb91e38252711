"""PettingZoo's parallel environments as teams that a runner steps in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.environments.error_limit import Renewal
from bray_actor.environments.error_words import RAISED
from bray_actor.environments.finite import are_ordinary, check_reward
from bray_actor.environments.outcomes import at_a_glance, check_observation
from bray_actor.runners.teams import Mask, TeamObservation, TeamStep
from bray_actor.spaces import import_gymnasium
from bray_core.errors import ConfigError, SpecError

_ALONE = "train it with `ppo source.kind=agents`"
_NO_MASK = f"which algorithms of teams do not read: they would play what is not allowed: {_ALONE}"


class ParallelTeams:
    """Several `pettingzoo.ParallelEnv` of one kind, stepped one after the other.

    The team's reward is the mean of its agents'. The state is the environment's own (`state()`)
    where it has a `state_space`, else all that its agents see. Observations are flattened, choices
    among them to one-hot vectors. An agent that is not there yet or has left sees zeros, gets no
    reward, and its actions are dropped ("death masking", Yu et al. 2022, "The surprising
    effectiveness of PPO in cooperative multi-agent games", §5.5); the episode ends when all have
    left, or their last steps terminated or truncated.

    One that raises, or returns what no environment does, is made anew; its episode counts as
    truncated at the last observation, as with `RecoveringEnvironment`.

    Args:
        make: Function that makes one environment.
        num_teams: N.
        name: What is played, for messages.

    Raises:
        ConfigError: agents differ in their spaces, their observations have no fixed size or an
            action mask, or their actions are not Discrete.
    """

    def __init__(self, make: Callable[[], Any], num_teams: int, name: str = "ParallelEnv") -> None:
        if num_teams < 1:
            raise ConfigError(f"num_teams: expected 1 or more, got {num_teams}")
        self._envs = [make() for _ in range(num_teams)]
        self._renewals = [Renewal(make, name) for _ in range(num_teams)]
        first = self._envs[0]
        self._agents: list[str] = list(first.possible_agents)
        self.num_teams = num_teams
        self.num_agents = len(self._agents)
        self._space = first.observation_space(self._agents[0])
        self._is_fit = at_a_glance(self._space)
        self._flatten = partial(import_gymnasium().spaces.flatten, self._space)
        self.observation_size, self.num_actions, self._first = _sizes(first)
        space = getattr(first, "state_space", None)
        self._has_state = space is not None
        self.state_size = (
            self.num_agents * self.observation_size if space is None else int(np.prod(space.shape))
        )
        self._seen = np.zeros((num_teams, self.num_agents, self.observation_size), np.float32)
        self._state = np.zeros((num_teams, self.state_size), np.float32)

    def reset(self, which: Mask, seed: int | None = None) -> None:
        """Begin episodes, with another environment where that fails; n is seeded with `seed + n`.

        Raises:
            BrayError: an environment keeps failing.
            ConfigError: one tells action masks in its infos.
        """
        for team in np.nonzero(which)[0].tolist():
            self._reset(team, None if seed is None else seed + team)

    def _reset(self, team: int, seed: int | None) -> None:
        renewal = self._renewals[team]
        if seed is not None:
            renewal.seed = seed
        while True:
            try:
                observation, infos = self._envs[team].reset(seed=seed)
                self._see(team, observation, set(self._agents))
                tells_mask = any("action_mask" in info for info in infos.values())
            except RAISED as error:  # the boundary to code of others
                renewal.renew(self._envs[team], partial(self._begin, team), error)
                seed = renewal.next_seed()
                continue
            if tells_mask:
                raise ConfigError(f"environment: its infos have an action_mask, {_NO_MASK}")
            return

    def _begin(self, team: int, env: Any) -> None:
        self._envs[team] = env
        seed = self._renewals[team].next_seed()
        if seed is not None:  # its next reset may bring none
            env.reset(seed=seed)

    def look(self) -> TeamObservation:
        """Return what there is to see."""
        return TeamObservation(self._seen.copy(), self._state.copy())

    def step(self, action: npt.NDArray[Any]) -> TeamStep:
        """Take actions `[N, M]`; where that fails the team's episode is truncated.

        Raises:
            BrayError: an environment keeps failing.
        """
        n = self.num_teams
        done = TeamStep(np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))
        for team, taken in enumerate((action + self._first).tolist()):
            renewal = self._renewals[team]
            renewal.count_step()
            try:
                reward, terminated, truncated = self._step(team, taken)
            except RAISED as error:  # the boundary to code of others
                renewal.renew(self._envs[team], partial(self._begin, team), error)
                reward, terminated, truncated = 0.0, False, True
            done.reward[team] = reward
            done.terminated[team], done.truncated[team] = terminated, truncated
        return done

    def _step(self, team: int, taken: list[int]) -> tuple[float, bool, bool]:
        """Return a team's reward, and whether its episode terminated or was truncated."""
        env = self._envs[team]
        playing = set(env.agents)
        observation, rewards, terminated, truncated, _ = env.step(
            {agent: one for agent, one in zip(self._agents, taken, strict=True) if agent in playing}
        )
        reward = sum(rewards.get(agent, 0.0) for agent in playing) / self.num_agents
        check_reward(reward, "step: reward")
        self._see(team, observation, playing | set(env.agents))
        has_ended = all(terminated.get(one) or truncated.get(one) for one in env.agents)
        is_terminated = has_ended and all(terminated.values())
        return reward, is_terminated, has_ended and not is_terminated

    def _see(self, team: int, observation: dict[str, Any], playing: set[str]) -> None:
        """Keep what a team sees; where something is wrong, what it saw before stays.

        Raises:
            SpecError: an observation is none of its space, or the state has no finite numbers.
        """
        found = np.zeros_like(self._seen[team])
        for index, agent in enumerate(self._agents):
            seen = observation.get(agent) if agent in playing else None
            if seen is None:
                continue
            if not self._is_fit(seen):
                check_observation(self._space, seen, f"observation of {agent!r}")
            found[index] = self._flatten(seen)
        state = np.ravel(self._envs[team].state() if self._has_state else found)
        if state.size != self.state_size or not are_ordinary(state):
            raise SpecError(
                f"state: expected {self.state_size} finite numbers, got {state.size}: "
                f"{str(state)[:80]}"
            )
        self._seen[team], self._state[team] = found, state

    def close(self) -> None:
        """Close all; where one raises the log says it."""
        for env, renewal in zip(self._envs, self._renewals, strict=True):
            renewal.close(env)


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
                    f"{agents[0]!r} and {got} of {agent!r}: pad the smaller in a wrapper, or "
                    f"{_ALONE}"
                )
    if not observation.is_np_flattenable or not isinstance(action, spaces.Discrete):
        raise ConfigError(
            "environment: expected observations of a fixed size and Discrete actions, "
            f"got {observation} and {action}: {_ALONE}"
        )
    if isinstance(observation, spaces.Dict) and "action_mask" in observation.spaces:
        raise ConfigError(f"environment: its observations have an action_mask, {_NO_MASK}")
    return int(spaces.flatdim(observation)), int(action.n), int(action.start)


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two agents' spaces flatten alike; the bounds of a Box may differ."""
    spaces = import_gymnasium().spaces
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return bool(one.shape == other.shape)
    return bool(one == other)
