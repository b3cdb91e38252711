"""Whole games without recording: evaluations and matches."""

from __future__ import annotations

from collections.abc import Sequence

from bray_actor.multi_agent.environment import MultiAgentEnvironment
from bray_actor.multi_agent.game_in_play import GameInPlay
from bray_actor.multi_agent.seat import Cast, GameResult
from bray_actor.multi_agent.seat_batch import SeatBatches
from bray_core.process.running_loop import run_to_end
from bray_core.settings.ranges import PositiveInt, check_value

_SEED_STEP = 1_000_003


def play_games(
    environments: Sequence[MultiAgentEnvironment],
    cast: Cast,
    num_games: int,
    seed: int,
    *,
    max_steps: int,
) -> list[GameResult]:
    """Play whole games and record nothing; return how they ended.

    The games are shared out to the environments beforehand: if whoever is done first took the next
    one, short games would be preferred. Each game has a seed of its own. A game that became void is
    played again.

    Args:
        environments: Environments that are stepped side by side; they stay open.
        cast: Says before each game who plays which agent.
        num_games: Number of games.
        seed: Seed of the environments, casts and draws.
        max_steps: Steps of an environment after which its game is cut, with the returns so far.

    Returns:
        The results, in the order of the games' numbers.

    Raises:
        ConfigError: an argument is below 1, or the cast leaves an agent without a seat.
        Exception: the error of a model.
    """
    for name, value in (("num_games", num_games), ("max_steps", max_steps)):
        check_value(name, value, PositiveInt)
    check_value("environments", len(environments), PositiveInt)
    batches = SeatBatches()
    shares = [
        _Share(
            GameInPlay(env, index, cast, batches, seed=seed, record_of=lambda _: None),
            numbers=list(range(index, num_games, len(environments))),
            seed=seed,
        )
        for index, env in enumerate(environments[:num_games])
    ]
    run_to_end(_play(shares, batches, max_steps))
    results = {number: result for share in shares for number, result in share.results.items()}
    return [results[number] for number in range(num_games)]


class _Share:
    """The games that one environment is to play."""

    def __init__(self, game: GameInPlay, numbers: list[int], seed: int) -> None:
        self.game = game
        self.results: dict[int, GameResult] = {}
        self._numbers = numbers
        self._seed = seed
        self._num_begun = 0

    def begin(self) -> None:
        """Begin the next game, or the same one again if it was void; nothing if all are played."""
        if (done := len(self.results)) < len(self._numbers):
            attempt = self._num_begun - done  # a void game's seed is not played again
            self._num_begun += 1
            number = self._numbers[done]
            self.game.begin((self._seed + _SEED_STEP * (number + 1) + attempt) % 2**31)

    @property
    def is_done(self) -> bool:
        """Whether all its games are played."""
        return len(self.results) == len(self._numbers)

    def step(self, max_steps: int) -> None:
        """Take the actions; note the result of a game that is over."""
        if not self.game.step():
            self.begin()
        elif self.game.is_over or self.game.num_rounds >= max_steps:
            self.results[self._numbers[len(self.results)]] = self.game.result()
            self.begin()


async def _play(shares: list[_Share], batches: SeatBatches, max_steps: int) -> None:
    for share in shares:
        share.begin()
    while playing := [share for share in shares if not share.is_done]:
        await batches.act([each for share in playing for each in share.game.acting])
        for share in playing:
            share.step(max_steps)
