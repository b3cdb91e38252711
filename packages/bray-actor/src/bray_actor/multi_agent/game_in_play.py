"""One environment and the game that is played in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bray_actor.environments.error_limit import ERROR
from bray_actor.episodes import metrics_of_info
from bray_actor.multi_agent.environment import AgentTick, MultiAgentEnvironment, takes_options
from bray_actor.multi_agent.player import Player
from bray_actor.multi_agent.seat import Cast, GameResult, Seat
from bray_actor.multi_agent.seat_batch import Place, SeatBatches
from bray_actor.multi_agent.seat_record import SeatRecord
from bray_core.errors import ConfigError


class GameInPlay:
    """Plays one environment, game after game.

    Args:
        environment: Environment that is played.
        index: Its number among those that are played together.
        cast: Says before each game who plays.
        batches: Rows of the seats.
        seed: Seed of the casts and of the policies' draws.
        record_of: Function that returns where a seat's steps are recorded.
        info_metrics: Keys of the agents' infos that are metrics of their episodes, too.
    """

    def __init__(
        self,
        environment: MultiAgentEnvironment,
        index: int,
        cast: Cast,
        batches: SeatBatches,
        *,
        seed: int,
        record_of: Callable[[Seat], SeatRecord | None],
        info_metrics: Sequence[str] = (),
    ) -> None:
        self._env = environment
        self._index = index
        self._cast = cast
        self._batches = batches
        self._seed = seed
        self._record_of = record_of
        self._info_metrics = info_metrics
        self._metrics: dict[str, dict[str, float]] = {}
        self.reset_options: Mapping[str, Any] | None = None
        """Options that later games begin with; None: none."""
        self._random = random.Random(f"{seed}/{index}/cast")
        self._number = 0
        self._seats: dict[str, Seat] = {}
        self._acting: list[str] = []
        self.players: dict[str, Player] = {}
        """Those who have taken part in this game, by agent."""
        self.num_rounds = 0
        """Number of times that agents have acted in this game."""

    def begin(self, seed: int | None = None) -> None:
        """Begin a game with a cast of its own.

        Args:
            seed: Seed of the environment's draws; None goes on with those of before.

        Raises:
            ConfigError: the cast leaves an agent without a seat.
        """
        self._leave()
        self._seats = dict(self._cast.draw(self._random))
        missing = [agent for agent in self._env.agents if agent not in self._seats]
        if missing:
            raise ConfigError(
                f"cast: expected a seat for each of {list(self._env.agents)}, got none for "
                f"{missing}"
            )
        self._seats = {agent: self._seats[agent] for agent in self._env.agents}
        for agent, seat in self._seats.items():
            self._batches.reserve(seat, (self._index, agent))
        self._number += 1
        self.num_rounds = 0
        self._metrics = {}
        self._see(self._reset(seed))
        if self.is_over:
            raise ConfigError(
                "environment: a game began in which nobody acts: its reset must return the tick of "
                "an agent that acts"
            )

    def check_reset_options(self) -> None:
        """Refuse options for an environment whose `reset` takes none.

        Raises:
            ConfigError: it takes none.
        """
        if not takes_options(self._env):
            raise ConfigError(
                "source.curriculum: expected an environment that takes options, reset(seed, "
                f"options=…), got {getattr(self._env, 'name', type(self._env).__name__)}"
            )

    def _reset(self, seed: int | None) -> Mapping[str, AgentTick]:
        if self.reset_options is None:
            return self._env.reset(seed)
        reset: Any = self._env.reset
        ticks: Mapping[str, AgentTick] = reset(seed, options=dict(self.reset_options))
        return ticks

    def _leave(self) -> None:
        for agent, seat in self._seats.items():
            self._batches.release(seat, (self._index, agent))
        self.players, self._seats, self._acting = {}, {}, []

    @property
    def seats(self) -> Mapping[str, Seat]:
        """Seat of each agent of this game."""
        return self._seats

    @property
    def is_over(self) -> bool:
        """Whether nobody acts any more."""
        return not self._acting

    @property
    def acting(self) -> list[tuple[Place, Player]]:
        """Those who act next, in the environment's order of agents."""
        return [((self._index, agent), self.players[agent]) for agent in self._acting]

    def step(self) -> bool:
        """Take the actions of those who act; return False where the game has become void.

        Raises:
            BrayError: the environment keeps failing.
        """
        self.num_rounds += 1
        ticks = self._env.step({agent: self.players[agent].action for agent in self._acting})
        if any(ERROR in tick.info for tick in ticks.values()):
            self.drop()
            return False
        self._see(ticks)
        return True

    def drop(self) -> None:
        """Drop what is not pushed yet of the game."""
        for player in self.players.values():
            player.drop()
        self._acting = []

    def _see(self, ticks: Mapping[str, AgentTick]) -> None:
        for agent in sorted(ticks, key=self._order):
            if agent not in self.players:
                self.players[agent] = self._player(agent)
            self.players[agent].see(ticks[agent])
            if ticks[agent].has_ended:
                self._note_metrics(agent, ticks[agent])
        self._acting = [
            agent for agent in self._seats if agent in ticks and not ticks[agent].has_ended
        ]
        if self.is_over:
            self._end_the_rest()

    def _note_metrics(self, agent: str, tick: AgentTick) -> None:
        found = metrics_of_info(tick.info, None, self._info_metrics)
        if found:
            self._metrics[agent] = found

    def _order(self, agent: str) -> int:
        if agent not in self._seats:
            raise ConfigError(
                f"environment: expected one of the agents {list(self._seats)}, got {agent!r}: "
                "`agents` (possible_agents of PettingZoo) must name all who may ever take part"
            )
        return list(self._seats).index(agent)

    def _player(self, agent: str) -> Player:
        seat = self._seats[agent]
        name = f"{seat.config.seed}/{self._seed}/{self._index}/{self._number}/{agent}"
        spaces = self._env.spaces(agent)
        return Player(agent, seat, spaces, random.Random(name), self._record_of(seat))

    def _end_the_rest(self) -> None:
        """Truncate those whom the environment has not told of the end."""
        for player in self.players.values():
            if not player.has_ended:
                player.see(AgentTick(None, truncated=True))

    def result(self) -> GameResult:
        """Return who played, and what it brought."""
        return GameResult(
            {agent: seat.name for agent, seat in self._seats.items()},
            {agent: player.episode_return for agent, player in self.players.items()},
            {agent: player.length for agent, player in self.players.items()},
            metrics=self._metrics,
        )

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
