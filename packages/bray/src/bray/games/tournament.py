"""A tournament of the versions of a pool, which fills its payoff table."""

from __future__ import annotations

import torch

from bray.games.match import PolicyPlayer, play
from bray.games.version_pool import VersionPool
from bray_algo.games import Boards

PAIRS_AT_ONCE = 2048
"""Number of pairs whose games are played side by side."""


async def play_tournament(
    pool: VersionPool, game: Boards, games_per_pair: int, *, seed: int
) -> int:
    """Play until each two versions have so many games, each side first equally often.

    Pairs with the fewest games come first, and the pool is saved after each `PAIRS_AT_ONCE`, so a
    tournament that is interrupted goes on where it was. Actions are drawn from the policies.

    Args:
        pool: Pool whose versions play.
        game: Rules of the game.
        games_per_pair: Number of games of each pair, even; pairs that have more keep them. The
            ratings' intervals narrow with its square root.
        seed: Seed of the drawn actions.

    Returns:
        Number of games played now.
    """
    generator = torch.Generator().manual_seed(seed)
    players = {name: PolicyPlayer(game, pool[name], generator) for name in pool.names}
    played = 0
    while pairs := _unfinished(pool, games_per_pair):
        both = pairs + [(other, one) for one, other in pairs]
        scores = await play(game, players, both)
        for (one, other), score in zip(both, scores, strict=True):
            pool.payoff.record(one, other, float(score))
        played += len(both)
        pool.save()
    return played


def _unfinished(pool: VersionPool, games_per_pair: int) -> list[tuple[str, str]]:
    order = {name: index for index, name in enumerate(pool.names)}
    games = pool.payoff.games
    return [
        (one, other)
        for one, other in pool.payoff.fewest_games(PAIRS_AT_ONCE)
        if games[order[one], order[other]] < games_per_pair
    ]
