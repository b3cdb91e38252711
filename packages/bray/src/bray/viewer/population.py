"""Versions of a trial's models, and what is known of them: results against each other, ratings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray.viewer.trial_file import entries, open_file, opener_of
from bray_core.errors import CodecError, NotFoundError
from bray_core.files.json_file import read_object
from bray_core.files.regular_file import refused
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

FILE = "league.json"
_BROKEN = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError)
_MAX_MESSAGE = 1000
_MAX_NAME = 200
MAX_PLAYERS = 400
"""Shown at once; of more the newest."""
_MAX_VERSIONS = 2000
_MAX_MODELS = 100
_MAX_LEAGUE_BYTES = 16 * 1024 * 1024
_MAX_INDEX_BYTES = 4 * 1024 * 1024


def versions(trial: Path) -> list[dict[str, Any]]:
    """Return the models of a trial: versions with time and size, newest first, clones, exports."""
    return [
        _model(trial, trial / "models" / name)
        for name in _folders(trial, trial / "models")[:_MAX_MODELS]
    ]


def _model(trial: Path, path: Path) -> dict[str, Any]:
    numbers: list[int] = []
    pinned: set[int] = set()
    problem = None
    try:
        if entries(trial, path / "versions"):
            _refuse_index(trial, path / "versions" / "index.json")
            store = VersionStore(path / "versions", Retention())
            numbers, pinned = store.versions(), set(store.pinned())
    except (CodecError, OSError, OverflowError) as error:
        problem = str(error)[:_MAX_MESSAGE]
    shown = numbers[-_MAX_VERSIONS:]
    found = [_version(path / "versions", number, number in pinned) for number in reversed(shown)]
    return {
        "name": path.name,
        "versions": [one for one in found if one is not None],
        "num_versions": len(numbers),
        "clones": _folders(trial, path / "clones")[:_MAX_VERSIONS],
        "exports": _folders(trial, path / "onnx")[:_MAX_VERSIONS],
        "problem": problem,
    }


def _refuse_index(trial: Path, index: Path) -> None:
    """Refuse an index of versions that lies elsewhere, is no file or too long for one."""
    with suppress(FileNotFoundError), open_file(trial, index) as file:
        if file.seek(0, os.SEEK_END) > _MAX_INDEX_BYTES:
            raise refused(index, f"expected {_MAX_INDEX_BYTES} bytes at most")


def _version(folder: Path, number: int, is_pinned: bool) -> dict[str, Any] | None:
    try:
        found = (folder / f"{number}.safetensors").lstat()
    except OSError:  # deleted meanwhile
        return None
    return {
        "version": number,
        "pinned": is_pinned,
        "saved_s": found.st_mtime,
        "bytes": found.st_size,
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
        players, left_out = _players(payoff)
        score, games = _tables(len(players) + left_out, payoff["results"], left_out)
        learners = dict(state.get("league", {}).get("learners", {}))
    except _BROKEN as error:
        raise CodecError(f"{trial / FILE}: not a league: {error!r}"[:_MAX_MESSAGE]) from error
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.round(score / games, 3)
    return {
        "players": players,
        "roles": {n: str(role)[:_MAX_NAME] for n, role in learners.items() if n in players},
        "rates": [[None if np.isnan(rate) else rate for rate in row] for row in rates.tolist()],
        "games": np.round(games, 1).tolist(),
        "num_left_out": left_out,
    }


def ratings(trial: Path) -> dict[str, Any]:
    """Return `{"players", "rating", "low", "high"}`: Elo fitted to their games, 95 % intervals.

    Of more than `MAX_PLAYERS` the newest are rated: a fit takes time that grows with their cube.

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
            raise NotFoundError(f"league: trial {trial.name} has no {FILE}")
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
        number: how many players there are.
        results: the rows.
        left_out: players at the beginning whose games are not looked at.
    """
    size = number - left_out
    score, games = np.zeros((size, size)), np.zeros((size, size))
    for first, second, won, drawn, lost, _ in results:
        if not 0 <= first < second < number:
            raise ValueError(f"players {first} and {second} of {number}")
        i, j = first - left_out, second - left_out
        if i >= 0:
            score[i, j], score[j, i] = won + drawn / 2, lost + drawn / 2
            games[i, j] = games[j, i] = won + drawn + lost
    if not (np.isfinite(score).all() and np.isfinite(games).all()):
        raise ValueError("expected numbers of games, got some that are not finite")
    return score, games


def _folders(trial: Path, path: Path) -> list[str]:
    return sorted(entry.name for entry in entries(trial, path) if entry.is_dir())
