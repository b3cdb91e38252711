"""A gamecore that plays environments of several agents: a session for each agent of each game.

    python -m bray_actor.gamecores.multi_agent_gamecore --env connect_four_v3
    --address tcp://127.0.0.1:7300 --lanes 8

Each lane is an environment whose games follow each other. The agents of a game are the sides of a
match: their sessions are named `lane/game/agent`, and each says in its `start` who it is. All lanes
share one connection, and the ticks of a round are sent together.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bray_actor.episodes import metrics_of_info
from bray_actor.gamecores.actor_client import connect, exchange_bodies
from bray_actor.gamecores.gamecore_process import add_process_arguments, run_process
from bray_actor.gamecores.lanes import TICK_TIMEOUT_S, check_numbers, lane_seed, lane_share
from bray_actor.multi_agent.environment import (
    AgentTick,
    MultiAgentEnvironment,
    takes_options,
)
from bray_core import codec
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_server import Client, Request
from bray_server.sessions.services import Service

_MOST_SIDES = 64
"""Sides of a match; the agents of a larger game are sessions without one."""


def play_matches(
    make: Callable[[], MultiAgentEnvironment],
    actors: str | Service,
    *,
    games: int | None = None,
    lanes: int = 1,
    seed: int = 0,
    lane_offset: int = 0,
    token: str | None = None,
    delta: bool = False,
) -> list[dict[str, float]]:
    """Play games of several agents against actors.

    Args:
        make: Function that makes an environment, called for each lane.
        actors: Their address, `tcp://host:port` or `http://host:port`; or a function that makes a
            session's actor from its id: they then live in this process.
        games: Number of games, shared out to the lanes beforehand; None plays until the server is
            gone.
        lanes: Number of games played side by side.
        seed: Seed of the environments, together with the lane.
        lane_offset: Number of the first lane; keeps the matches of several processes apart.
        token: Bearer token.
        delta: Whether to offer delta encoding of the ticks, over TCP.

    Returns:
        The returns of each game by agent, in the order of (lane, game).

    Raises:
        ConfigError: a number is out of range.
        ServiceError: the server answered with an error, or is gone.
    """
    check_numbers(seed, lanes=lanes, games=games)
    played = [
        _GameLane(make(), lane_offset + index, lane_share(games, lanes, index))
        for index in range(lanes)
    ]
    try:
        with connect(actors, token=token, timeout_s=TICK_TIMEOUT_S, delta=delta) as client:
            for lane in played:
                lane.begin(lane_seed(seed, lane.number))
            _play(client, played)
    finally:
        for lane in played:
            lane.environment.close()
    return [returns for lane in played for returns in lane.returns]


def _play(client: Client, lanes: Sequence[_GameLane]) -> None:
    """Send the ticks of all games together, until each lane has played its own."""
    while True:
        playing = [lane for lane in lanes if not lane.is_done]
        if not playing:
            return
        _start(client, playing)
        _exchange(client, [request for lane in playing for request in lane.ends()])
        over = [lane for lane in playing if lane.is_over]
        for lane in over:
            lane.finish()
        if over:  # what begins there is sent together with the others' next ticks
            continue
        ticks = [lane.ticks() for lane in playing]
        replies = iter(_exchange(client, [request for some in ticks for request in some]))
        for lane, requests in zip(playing, ticks, strict=True):
            lane.step([next(replies) for _ in requests])


def _start(client: Client, lanes: Sequence[_GameLane]) -> None:
    """Start the sessions of agents that have appeared; take the options that they are told."""
    while requests := [lane.starts() for lane in lanes]:
        replies = iter(_exchange(client, [request for some in requests for request in some]))
        for lane, some in zip(lanes, requests, strict=True):
            lane.take_options([next(replies) for _ in some])
        if not any(requests):
            return


def _exchange(client: Client, requests: list[Request]) -> list[bytes]:
    return exchange_bodies(client, requests) if requests else []


class _GameLane:
    """The games of one environment, one after the other."""

    def __init__(self, environment: MultiAgentEnvironment, number: int, quota: int | None) -> None:
        self.environment = environment
        self.number = number
        self.returns: list[dict[str, float]] = []
        self._quota = quota
        self._actions = {
            agent: ActionVector(environment.spaces(agent).action) for agent in environment.agents
        }
        self._sides = {agent: side for side, agent in enumerate(environment.agents)}
        self._agents: dict[str, _AgentSession] = {}
        self._ended: list[str] = []
        self._options: Mapping[str, Any] | None = None
        """Options that games begin with; None: none were told."""
        self._has_moved = False
        """Whether somebody has acted in the game at hand."""

    @property
    def is_done(self) -> bool:
        """Whether it has played all of its games."""
        return self._quota is not None and len(self.returns) >= self._quota

    @property
    def is_over(self) -> bool:
        """Whether nobody acts any more in the game at hand."""
        return not any(agent.acts for agent in self._agents.values())

    def begin(self, seed: int | None = None) -> None:
        """Begin a game."""
        self._agents = {}
        if not self.is_done:
            self._has_moved = False
            self._see(self._reset(seed))

    def finish(self) -> None:
        """Keep the game's returns, and begin the next one."""
        self.returns.append({name: agent.total for name, agent in self._agents.items()})
        self.begin()

    def _see(self, ticks: Mapping[str, AgentTick]) -> None:
        for name, tick in ticks.items():
            if name not in self._agents:
                self._agents[name] = _AgentSession(f"{self._match}/{name}", self._start(name))
            self._agents[name].see(tick)

    @property
    def _match(self) -> str:
        return f"{self.number}/{len(self.returns)}"

    def _start(self, name: str) -> bytes:
        said = {"agent": name, "lane": self.number}
        if len(self._sides) <= _MOST_SIDES:
            sides = {"side": self._sides[name], "sides": len(self._sides)}
            said |= {"match": self._match, **sides}
        return codec.encode(said)

    def starts(self) -> list[Request]:
        """Return what starts the sessions of agents that have appeared."""
        return [a.start() for a in self._agents.values() if not a.has_started]

    def take_options(self, replies: Sequence[bytes]) -> None:
        """Take the answers to `starts`: a game that has just begun begins anew with other options.

        Raises:
            ConfigError: the environment takes none.
        """
        told = [codec.decode(reply).get("settings") for reply in replies if reply]
        options = next((one for one in told if one is not None), None)
        if self._has_moved or options is None or options == self._options:
            return
        if not takes_options(self.environment):
            raise ConfigError(
                "settings: expected an environment that takes options, reset(seed, options=…), got "
                f"{type(self.environment).__name__}: run without a curriculum"
            )
        self._options = options
        for agent in self._agents.values():
            agent.acts = False
        self._see(self._reset(None))

    def _reset(self, seed: int | None) -> dict[str, AgentTick]:
        if self._options is None:
            return self.environment.reset(seed)
        reset: Any = self.environment.reset
        ticks: dict[str, AgentTick] = reset(seed, options=dict(self._options))
        return ticks

    def ends(self) -> list[Request]:
        """Return what ends the sessions of agents that have left."""
        return [agent.end() for agent in self._agents.values() if agent.is_leaving]

    def ticks(self) -> list[Request]:
        """Return the ticks of the agents that act now."""
        return [agent.tick() for agent in self._agents.values() if agent.acts]

    def step(self, replies: Sequence[bytes]) -> None:
        """Take the answers to `ticks`, in their order."""
        acting = [name for name, agent in self._agents.items() if agent.acts]
        actions = {
            name: _action(self._actions[name], codec.decode(reply)["action"])
            for name, reply in zip(acting, replies, strict=True)
        }
        for name in acting:
            self._agents[name].acts = False
        self._has_moved = True
        self._see(self.environment.step(actions))


def _action(actions: ActionVector, answer: Nested) -> Nested:
    """Return the environment's action, of an array of numbers or of the nested action itself."""
    is_nested = isinstance(answer, dict | list | tuple) or np.shape(answer) != actions.spec.shape
    numbers: Any = actions.flatten(answer) if is_nested else answer
    return actions.assemble(np.asarray(numbers, actions.spec.dtype))


class _AgentSession:
    """One agent in one game, and its session."""

    def __init__(self, session: str, said: bytes) -> None:
        self.has_started = False
        self.acts = False
        """Whether it is to act now."""
        self.is_leaving = False
        """Whether it acts no more, and its session is still open."""
        self.total = 0.0
        self._has_left = False
        self._session = session
        self._said = said
        self._has_acted = False
        self._message: dict[str, Any] = {}

    def see(self, tick: AgentTick) -> None:
        """Take what the environment tells; without an observation the last one stands.

        Raises:
            ConfigError: it acts again after it had ended.
        """
        if self._has_left:
            if tick.has_ended:
                return
            raise ConfigError(
                f"environment: session {self._session!r}: expected that an agent which has ended "
                "stays away until the next game, but it acts again: over the wire each agent has "
                "one life a game; let it wait with `terminated` false, or play in process"
            )
        if tick.observation is not None:
            self._message = {"observation": tick.observation}
        self.total += float(tick.reward)
        self.acts, self.is_leaving = not tick.has_ended, tick.has_ended
        if self._has_acted or tick.has_ended:
            self._message["reward"] = float(tick.reward)
            self._message["terminated"] = bool(tick.terminated)
            self._message["truncated"] = bool(tick.truncated)
        if tick.has_ended and (told := metrics_of_info(tick.info, None, ())):
            self._message["metrics"] = told

    def start(self) -> Request:
        """Return what starts its session."""
        self.has_started = True
        return Request("start", self._session, self._said)

    def tick(self) -> Request:
        """Return its tick."""
        self._has_acted = True
        return Request("tick", self._session, codec.encode(self._message))

    def end(self) -> Request:
        """Return what ends its session."""
        self.is_leaving = False
        self._has_left = True
        return Request("end", self._session, codec.encode(self._message))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    made = parser.add_mutually_exclusive_group(required=True)
    made.add_argument("--env", help="a name of PettingZoo, open_spiel:GAME, or module:function")
    made.add_argument("--make", help="how it is made, as JSON: MultiAgentSpec.to_json()")
    parser.add_argument("--games", type=int, help="default: until the server is gone")
    parser.add_argument("--lanes", type=int, default=1, help="games side by side")
    add_process_arguments(parser)
    return parser


def _play_as_told(options: argparse.Namespace) -> list[dict[str, float]]:
    from bray_actor.multi_agent.making import MultiAgentSpec

    spec = MultiAgentSpec.of(options.env) if options.env else None
    return play_matches(
        (spec or MultiAgentSpec.from_json(options.make)).make,
        options.address,
        games=options.games,
        lanes=options.lanes,
        seed=options.seed,
        lane_offset=options.lane_offset,
        token=os.environ.get("BRAY_TOKEN"),
        delta=options.delta,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Play as a process of its own: quiet when it is ended, one line on errors."""
    options = _parser().parse_args(arguments)
    game, is_endless = partial(_play_as_told, options), options.games is None
    return run_process(game, options, lanes=options.lanes, is_endless=is_endless)


if __name__ == "__main__":
    sys.exit(main())
