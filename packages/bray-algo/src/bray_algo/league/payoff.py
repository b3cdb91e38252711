"""The results of every player against every other: the payoff matrix of a population."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bray_algo.league.intervals import ConfidenceInterval, Floats, beta_interval, wilson_interval
from bray_algo.validation.scalars import check_count, check_fraction, check_not_negative

_SCORES = {1.0: 0, 0.5: 1, 0.0: 2}
_WON, _DRAWN, _LOST = range(3)


class PayoffTable:
    """Games of named players against each other. Not thread-safe.

    Results are counted from both sides; recent ones count more where `decay` is below 1. Arrays
    are in the order of `players`, N of them, the row's player's point of view.

    Args:
        players: Names of the players to begin with.
        decay: Factor on the earlier games of two players after each further one, 0 to 1. At 1
            nothing is forgotten, and a learner's old results hide its new ones; the smaller, the
            fewer games a win rate rests on. AlphaStar's pseudocode has 0.99, about the last 100.

    Raises:
        ValueError: a name comes twice, or the decay is out of range.

    Examples:
        >>> table = PayoffTable(["rock", "paper"])
        >>> table.record("paper", "rock", 1.0)
        >>> table.win_rate("paper", "rock"), table.win_rate("rock", "paper")
        (1.0, 0.0)
    """

    def __init__(self, players: Iterable[str] = (), *, decay: float = 1.0) -> None:
        check_fraction("decay", decay)
        self.decay = decay
        self._index: dict[str, int] = {}
        self._counts = np.zeros((3, 8, 8))  # won, drawn, lost; room for more than there are
        self._played = np.zeros((8, 8), np.int64)
        for name in players:
            self.add(name)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    @property
    def players(self) -> tuple[str, ...]:
        """The names, in the order of rows and columns."""
        return tuple(self._index)

    @property
    def wins(self) -> Floats:
        """Number of games won by the row's player, `[N, N]`, decayed."""
        return self._of(self._counts[_WON])

    @property
    def draws(self) -> Floats:
        """Number of games drawn, `[N, N]`, decayed."""
        return self._of(self._counts[_DRAWN])

    @property
    def losses(self) -> Floats:
        """Number of games lost by the row's player, `[N, N]`, decayed."""
        return self._of(self._counts[_LOST])

    @property
    def games(self) -> Floats:
        """Number of games, `[N, N]`, decayed: what the win rates rest on."""
        return self._of(self._counts.sum(0))

    @property
    def num_games(self) -> npt.NDArray[np.int64]:
        """Number of games ever played, `[N, N]`, whole."""
        return self._played[: len(self), : len(self)].copy()

    def add(self, name: str) -> None:
        """Add a player without a game.

        Raises:
            ValueError: the name is not a string, or there.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: expected a non-empty string, got {name!r}")
        if name in self._index:
            raise ValueError(f"name: expected a new player, got {name!r}, which the table has")
        self._index[name] = len(self._index)
        room = len(self._played)
        if len(self) > room:
            # Room doubles, so that adding N players costs N² in all and not N³.
            self._counts = np.pad(self._counts, ((0, 0), (0, room), (0, room)))
            self._played = np.pad(self._played, ((0, room), (0, room)))

    def remove(self, name: str) -> None:
        """Take a player and its games out."""
        at = self._at(name)
        last = np.arange(len(self._played))
        order = np.concatenate([np.delete(last, at), [at]])
        self.forget(name)
        self._counts = np.ascontiguousarray(self._counts[:, order][:, :, order])
        self._played = np.ascontiguousarray(self._played[order][:, order])
        del self._index[name]
        self._index = {other: i for i, other in enumerate(self._index)}

    def forget(self, name: str) -> None:
        """Drop the games of a player, such as one that begins anew."""
        at = self._at(name)
        self._counts[:, at] = self._counts[:, :, at] = 0
        self._played[at] = self._played[:, at] = 0

    def record(self, player: str, opponent: str, score: float) -> None:
        """Count one game: 1 the player won, 0.5 a draw, 0 the opponent won.

        Raises:
            ValueError: a name is unknown, both are one, or the score is another number.
        """
        i, j = self._at(player), self._at(opponent)
        if i == j:
            raise ValueError(f"opponent: expected another than {player!r}: no result to count")
        if score not in _SCORES:
            raise ValueError(f"score: expected 1, 0.5 or 0, got {score!r}")
        outcome = _SCORES[score]
        if self.decay < 1.0:
            self._counts[:, i, j] *= self.decay
            self._counts[:, j, i] *= self.decay
        self._counts[outcome, i, j] += 1
        # A win of one is a loss of the other: 2 − 0; a draw stays one: 2 − 1.
        self._counts[2 - outcome, j, i] += 1
        self._played[i, j] += 1
        self._played[j, i] += 1

    def win_rate(self, player: str, opponent: str, *, prior_games: float = 0.0) -> float:
        """Return (wins + draws / 2) / games, 0.5 without a game; see `matrix`."""
        return float(self.win_rates(player, [opponent], prior_games=prior_games)[0])

    def win_rates(
        self, player: str, opponents: Sequence[str] | None = None, *, prior_games: float = 0.0
    ) -> Floats:
        """Return the player's win rate against each opponent, `[N]`; None: against all."""
        i = self._at(player)
        columns = slice(len(self)) if opponents is None else [self._at(o) for o in opponents]
        won, drawn, lost = self._counts[:, i, columns]
        return _rate(won + 0.5 * drawn, won + drawn + lost, prior_games)

    def matrix(self, names: Sequence[str] | None = None, *, prior_games: float = 0.0) -> Floats:
        """Return win rates `[N, N]`: 0.5 on the diagonal and where there was no game.

        Args:
            names: Names of rows and columns; None: all players.
            prior_games: Number of games at 0.5 to add to each pair, so that one lucky game says
                little; 0 to 10. Large ones hide real differences between players of few games.
        """
        rates = _rate(self.wins + 0.5 * self.draws, self.games, prior_games)
        if names is None:
            return rates
        at = [self._at(name) for name in names]
        return rates[np.ix_(at, at)]

    def interval(
        self, *, confidence: float = 0.95, kind: Literal["wilson", "beta"] = "wilson"
    ) -> ConfidenceInterval:
        """Return the bounds of all win rates, `[N, N]` each, from the decayed games.

        Raises:
            ValueError: an unknown kind, or a confidence not between 0 and 1.
        """
        if kind not in ("wilson", "beta"):
            raise ValueError(f"kind: expected 'wilson' or 'beta', got {kind!r}")
        bounds = wilson_interval if kind == "wilson" else beta_interval
        return bounds(self.wins + 0.5 * self.draws, self.games, confidence)

    def fewest_games(
        self, num_pairs: int, names: Sequence[str] | None = None
    ) -> list[tuple[str, str]]:
        """Return the pairs that know least of each other, those with the fewest games first.

        What an evaluator plays next, so that the table is up to date (AlphaStar's evaluators).

        Args:
            num_pairs: Number of pairs at most, 0 or more.
            names: Names of the players to pair; None: all players.

        Raises:
            ValueError: a negative number of pairs, or an unknown name.
        """
        check_count("num_pairs", num_pairs, 0)
        names = list(self.players) if names is None else list(names)
        at = [self._at(name) for name in names]
        one, other = np.triu_indices(len(names), 1)
        games = self.games[np.ix_(at, at)][one, other]
        order = np.argsort(games, kind="stable")[:num_pairs]
        return [(names[one[i]], names[other[i]]) for i in order]

    def state(self) -> dict[str, Any]:
        """Return the table as JSON takes it: names, and a row for each pair that has played.

        A row is the indices of the two, games won, drawn and lost by the first, games ever.
        """
        one, other = np.nonzero(np.triu(self.num_games))
        counts = self._counts[:, one, other].T.tolist()
        played = self._played[one, other].tolist()
        pairs = zip(one.tolist(), other.tolist(), counts, played, strict=True)
        results = [[i, j, *count, number] for i, j, count, number in pairs]
        return {"players": list(self.players), "decay": self.decay, "results": results}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> PayoffTable:
        """Return the table that `state` described.

        Raises:
            ValueError: it is not a table's state.
        """
        try:
            table = cls(state["players"], decay=state["decay"])
            for i, j, won, drawn, lost, played in state["results"]:
                counts = np.array([won, drawn, lost], np.float64)
                if not (0 <= i < j < len(table) and (counts >= 0).all() and played > 0):
                    raise ValueError(f"results: {[i, j, won, drawn, lost, played]}")
                table._counts[:, i, j], table._counts[:, j, i] = counts, counts[::-1]
                table._played[i, j] = table._played[j, i] = played
        except (TypeError, ValueError, LookupError) as error:
            raise ValueError(f"state: expected what state() returned, got {error!r}") from error
        return table

    def _of(self, array: Floats) -> Floats:
        return array[: len(self), : len(self)].copy()

    def _at(self, name: str) -> int:
        index = self._index.get(name)
        if index is None:
            raise ValueError(f"player: expected one of the table's {len(self)}, got {name!r}")
        return index


def _rate(score: Floats, games: Floats, prior_games: float) -> Floats:
    check_not_negative("prior_games", prior_games)
    score, games = score + 0.5 * prior_games, games + prior_games
    rate = np.full(games.shape, 0.5)
    np.divide(score, games, out=rate, where=games > 0)
    return rate
