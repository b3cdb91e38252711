"""Versions of a trial's models, and what is known of them: results against each other, ratings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import CodecError, NotFoundError
from bray_model.retention import Retention
from bray_model.versions import VersionStore

FILE = "league.json"
MAX_PLAYERS = 400
"""Shown at once; of more the newest."""
_MAX_VERSIONS = 2000


def versions(trial: Path) -> list[dict[str, Any]]:
    """Return the models of a trial: versions with time and size, newest first, clones, exports."""
    return [_model(trial / "models" / name) for name in _folders(trial / "models")]


def _model(path: Path) -> dict[str, Any]:
    store = VersionStore(path / "versions", Retention())
    try:
        numbers, pinned, problem = store.versions(), set(store.pinned()), None
    except CodecError as error:
        numbers, pinned, problem = [], set(), str(error)
    files = [(number, path / "versions" / f"{number}.safetensors") for number in numbers]
    found = [
        {
            "version": number,
            "pinned": number in pinned,
            "saved_s": file.stat().st_mtime,
            "bytes": file.stat().st_size,
        }
        for number, file in files[-_MAX_VERSIONS:]
        if file.exists()
    ]
    return {
        "name": path.name,
        "versions": found[::-1],
        "num_versions": len(numbers),
        "clones": _folders(path / "clones"),
        "exports": _folders(path / "onnx"),
        "problem": problem,
    }


def league(trial: Path) -> dict[str, Any]:
    """Return the players of a trial's league, their win rates and games.

    Returns:
        `{"players": [N], "roles": {player: role}, "rates": [N, N] (None without a game), "games":
        [N, N], "num_left_out"}`; the row's player's point of view.

    Raises:
        NotFoundError: the trial has none.
        CodecError: its file cannot be read.
    """
    state, payoff = _read(trial)
    try:
        players = [str(name) for name in payoff["players"]]
        score, games = _tables(len(players), payoff["results"])
        learners = dict(state.get("league", {}).get("learners", {}))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise CodecError(f"{trial / FILE}: not a league: {error!r}") from error
    left_out = max(0, len(players) - MAX_PLAYERS)
    score, games = score[left_out:, left_out:], games[left_out:, left_out:]
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.round(score / games, 3)
    return {
        "players": players[left_out:],
        "roles": {name: str(role) for name, role in learners.items() if name in players},
        "rates": [[None if np.isnan(rate) else rate for rate in row] for row in rates.tolist()],
        "games": np.round(games, 1).tolist(),
        "num_left_out": left_out,
    }


def ratings(trial: Path) -> dict[str, Any]:
    """Return `{"players", "rating", "low", "high"}`: Elo fitted to all games, 95 % intervals.

    Raises:
        NotFoundError: the trial has no league.
        CodecError: its file cannot be read.
    """
    from bray_algo.elo import fit_elo  # imports torch

    _, payoff = _read(trial)
    try:
        players = [str(name) for name in payoff["players"]]
        score, games = _tables(len(players), payoff["results"])
        fit = fit_elo(score, games)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CodecError(f"{trial / FILE}: not a league: {error!r}") from error
    low, high = fit.interval()
    columns = {"rating": fit.rating, "low": low, "high": high}
    return {"players": players, **{n: np.round(c, 1).tolist() for n, c in columns.items()}}


def _read(trial: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a league's file and the payoff table in it."""
    path = trial / FILE
    try:
        state = json.loads(path.read_bytes())
        payoff = state["payoff"] if "payoff" in state else state["ratings"]
        return state, {"players": payoff["players"], "results": payoff["results"]}
    except FileNotFoundError:
        raise NotFoundError(f"league: trial {trial.name} has no {FILE}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"{path}: not a league: {error!r}") from error


def _tables(number: int, results: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return scores and games `[N, N]` of rows `[i, j, won, drawn, lost, played]`."""
    score, games = np.zeros((number, number)), np.zeros((number, number))
    for i, j, won, drawn, lost, _ in results:
        if not 0 <= i < j < number:
            raise ValueError(f"players {i} and {j} of {number}")
        score[i, j], score[j, i] = won + drawn / 2, lost + drawn / 2
        games[i, j] = games[j, i] = won + drawn + lost
    return score, games


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(e.name for e in entries if e.name[0] != "." and e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
