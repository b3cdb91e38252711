"""A league's players: their results against each other, and the ratings that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray.viewer.trial_file import opener_of
from bray_core.errors import CodecError, NotFoundError
from bray_core.files.json_file import read_object

FILE = "league.json"
_BROKEN = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError)
_MAX_MESSAGE = 1000
_MAX_NAME = 200
MAX_PLAYERS = 400
"""Number of players that are shown at once: the newest."""
_MAX_LEAGUE_BYTES = 16 * 1024 * 1024


def league(trial: Path) -> dict[str, object]:
    """Return the players of a trial's league, their win rates and their numbers of games.

    Returns:
        `{"players": [N], "roles": {player: role}, "rates": [N, N] (None without a game), "games":
        [N, N], "num_left_out"}`. A row holds the win rates of its player.

    Raises:
        NotFoundError: the trial has no league.
        CodecError: its file cannot be read.
    """
    state, payoff = _read(trial)
    try:
        players, left_out = _players(payoff)
        score, games = _tables(len(players) + left_out, payoff["results"], left_out)
        learners = dict(state.get("league", {}).get("learners", {}))
    except _BROKEN as error:
        raise CodecError(f"{trial / FILE}: not a league: {error!r}"[:_MAX_MESSAGE]) from error
    with np.errstate(invalid="ignore", divide="ignore"):  # players without a game: 0 / 0
        rates = np.round(score / games, 3)
    return {
        "players": players,
        "roles": {n: str(role)[:_MAX_NAME] for n, role in learners.items() if n in players},
        "rates": [[None if np.isnan(rate) else rate for rate in row] for row in rates.tolist()],
        "games": np.round(games, 1).tolist(),
        "num_left_out": left_out,
    }


def ratings(trial: Path) -> dict[str, object]:
    """Return `{"players", "rating", "low", "high"}`: Elo ratings and their 95 % intervals.

    Only the newest `MAX_PLAYERS` are rated: the time of a fit grows with the cube of their number.

    Raises:
        NotFoundError: the trial has no league.
        CodecError: its file cannot be read.
    """
    from bray_algo.league.elo import fit_elo  # imports torch

    _, payoff = _read(trial)
    try:
        players, left_out = _players(payoff)
        fit = fit_elo(*_tables(len(players) + left_out, payoff["results"], left_out))
        low, high = fit.interval()
    except _BROKEN as error:
        raise CodecError(f"{trial / FILE}: not a league: {error!r}"[:_MAX_MESSAGE]) from error
    columns = {"rating": fit.rating, "low": low, "high": high}
    return {"players": players, **{n: np.round(c, 1).tolist() for n, c in columns.items()}}


def _read(trial: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a league's file and the payoff table in it."""
    path = trial / FILE
    try:
        state = read_object(path, opener_of(trial), _MAX_LEAGUE_BYTES)
        if state is None:
            raise NotFoundError(
                f"{trial.name} has no league: runs whose policies play one another have one"
            )
        payoff = state["payoff"] if "payoff" in state else state["ratings"]
        return state, {"players": payoff["players"], "results": payoff["results"]}
    except _BROKEN as error:
        raise CodecError(f"{path}: not a league: {error!r}"[:_MAX_MESSAGE]) from error


def _players(payoff: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return the names of the players that are shown, and how many older ones are not."""
    every = list(payoff["players"])
    left_out = max(0, len(every) - MAX_PLAYERS)
    return [str(name)[:_MAX_NAME] for name in every[left_out:]], left_out


def _tables(
    number: int, results: Any, left_out: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return scores and games `[N, N]` of rows `[i, j, won, drawn, lost, played]`.

    Args:
        number: number of players.
        results: the rows.
        left_out: number of players, the oldest, whose games are left out.
    """
    size = number - left_out
    score, games = np.zeros((size, size)), np.zeros((size, size))
    for first, second, won, drawn, lost, _ in results:
        if not 0 <= first < second < number:
            raise ValueError(f"players {first} and {second} of {number}")
        i, j = first - left_out, second - left_out
        if i >= 0:
            # A draw is half a win for both.
            score[i, j], score[j, i] = won + drawn / 2, lost + drawn / 2
            games[i, j] = games[j, i] = won + drawn + lost
    if not (np.isfinite(score).all() and np.isfinite(games).all()):
        raise ValueError("expected numbers of games, got some that are not finite")
    return score, games
