"""PettingZoo's environments as gamecores: one session per agent, named `game/agent`.

The body of `start` tells which game it is and which agent: `{"game", "agent"}`; the other bodies
are those of `PolicyActor`. An agent's session starts when the agent appears and ends when it
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bray_actor.gamecores.actor_client import connect, exchange_bodies
from bray_actor.spaces import check_spaces, to_action, to_arrays
from bray_core import codec
from bray_core.errors import ConfigError
from bray_server import Client, Request
from bray_server.sessions.services import Service


def play_parallel(
    environment: Any,
    actors: str | Service,
    *,
    episodes: int,
    seed: int = 0,
    game_offset: int = 0,
    token: str | None = None,
    delta: bool = False,
    timeout_s: float = 60.0,
) -> list[dict[str, float]]:
    """Play an environment in which all agents act at once.

    Args:
        environment: A `pettingzoo.ParallelEnv`.
        actors: Address of the actors, or a function that makes a session's actor: see
            `bray_actor.gamecores.gamecore.play`.
        episodes: Number of games to play.
        seed: Seed of the first reset.
        game_offset: Number of the first game; keeps the sessions of several processes apart.
        token: Bearer token.
        delta: Whether to offer delta encoding of the ticks, over TCP.
        timeout_s: Longest wait for the answer of each exchange.

    Returns:
        Each game's return by agent.

    Raises:
        ConfigError: a space cannot be played, or an action is outside the action space.
        ServiceError: the server answered with an error.
    """
    options = (episodes, seed, game_offset, token, delta, timeout_s)
    return _play(_parallel_game, environment, actors, *options)


def play_aec(
    environment: Any,
    actors: str | Service,
    *,
    episodes: int,
    seed: int = 0,
    game_offset: int = 0,
    token: str | None = None,
    delta: bool = False,
    timeout_s: float = 60.0,
) -> list[dict[str, float]]:
    """Play an environment in which agents act in turn (agent environment cycle).

    The reward of a tick is what the agent got since its last action.

    Args:
        environment: A `pettingzoo.AECEnv`.

    All other arguments, what is returned and the errors are those of `play_parallel`.
    """
    options = (episodes, seed, game_offset, token, delta, timeout_s)
    return _play(_aec_game, environment, actors, *options)


def _play(
    game: Callable[[Any, Client, int, int | None], dict[str, float]],
    environment: Any,
    actors: str | Service,
    episodes: int,
    seed: int,
    game_offset: int,
    token: str | None,
    delta: bool,
    timeout_s: float,
) -> list[dict[str, float]]:
    if episodes < 1:
        raise ConfigError(f"episodes: expected 1 or more, got {episodes}")
    with connect(actors, token=token, timeout_s=timeout_s, delta=delta) as client:
        return [
            game(environment, client, game_offset + index, seed if index == 0 else None)
            for index in range(episodes)
        ]


class _Seat:
    """An agent in a game, and its session."""

    def __init__(self, env: Any, game: int, agent: str) -> None:
        self._space = env.observation_space(agent)
        self._action_space = env.action_space(agent)
        check_spaces(self._space, self._action_space, agent)
        self._session = f"{game}/{agent}"
        self._start = codec.encode({"game": str(game), "agent": agent})
        self._message: dict[str, Any] = {}
        self._has_acted = False
        self.total = 0.0

    def start(self) -> Request:
        return Request("start", self._session, self._start)

    def see(
        self,
        observation: Any,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        """Take what the environment shows; without an observation the last one stands."""
        if observation is not None:
            self._message = {"observation": to_arrays(self._space, observation)}
        self.total += float(reward)
        if self._has_acted or terminated or truncated:
            self._message["reward"] = float(reward)
            self._message["terminated"] = bool(terminated)
            self._message["truncated"] = bool(truncated)

    def tick(self) -> Request:
        self._has_acted = True
        return Request("tick", self._session, codec.encode(self._message))

    def action(self, reply: bytes) -> Any:
        return to_action(self._action_space, codec.decode(reply)["action"])

    def end(self) -> Request:
        return Request("end", self._session, codec.encode(self._message))


def _parallel_game(env: Any, client: Client, game: int, seed: int | None) -> dict[str, float]:
    observations, _ = env.reset(seed=seed)
    seats: dict[str, _Seat] = {}
    while env.agents:
        playing = list(env.agents)
        new = [agent for agent in playing if agent not in seats]
        for agent in new:
            seats[agent] = _Seat(env, game, agent)
            seats[agent].see(observations[agent])
        exchange_bodies(client, [seats[agent].start() for agent in new])
        replies = exchange_bodies(client, [seats[agent].tick() for agent in playing])
        actions = {a: seats[a].action(reply) for a, reply in zip(playing, replies, strict=True)}
        observations, rewards, terminated, truncated, _ = env.step(actions)
        for agent in playing:
            seats[agent].see(
                observations.get(agent), rewards[agent], terminated[agent], truncated[agent]
            )
        gone = [agent for agent in playing if agent not in env.agents]
        exchange_bodies(client, [seats[agent].end() for agent in gone])
    return {agent: seat.total for agent, seat in seats.items()}


def _aec_game(env: Any, client: Client, game: int, seed: int | None) -> dict[str, float]:
    env.reset(seed=seed)
    seats: dict[str, _Seat] = {}
    for agent in env.agent_iter():
        seat = seats.get(agent)
        is_new = seat is None
        if seat is None:
            seat = seats[agent] = _Seat(env, game, agent)
        observation, reward, terminated, truncated, _ = env.last()
        seat.see(observation, reward, terminated, truncated)
        if is_new:
            exchange_bodies(client, [seat.start()])
        if terminated or truncated:
            exchange_bodies(client, [seat.end()])
            env.step(None)
        else:
            (reply,) = exchange_bodies(client, [seat.tick()])
            env.step(seat.action(reply))
    return {agent: seat.total for agent, seat in seats.items()}
