"""Games of AlphaZero that people look at: the search of a trial's network, told move by move."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bray.games.benchmark_opponents import BenchmarkOpponent, benchmark_opponent
from bray.games.board_game import PLAYERS, board_text
from bray.games.open_spiel_board import OpenSpielBoard
from bray.trained.agent import export_of
from bray.trained.drawing import Drawing
from bray.trained.play_recorder import PlayRecorder
from bray.trained.watched_games import POSITIONS_PER_S, PlayedGames
from bray.training.algorithm import Parts
from bray_actor.multi_agent.seat import GameResult
from bray_algo.games import PlanesGame, action_values, best_actions
from bray_algo.games.rules import States
from bray_algo.search.mcts import Evaluate, SearchConfig, search
from bray_core.files.trial_folders import EPISODES
from bray_core.settings.choice import check_choice
from bray_core.settings.ranges import PositiveInt, check_value
from bray_model import Model

_POLICY = "policy"
_OPPONENTS = ("random", "search")


class _Player(Protocol):
    def __call__(self, states: States) -> dict[str, Any]:
        """Return a move for one state `[1, S]`, as `decisions.described` says it."""
        ...


def watch_searches(
    trial: Path,
    parts: Parts,
    *,
    episodes: int,
    seed: int,
    save: Path | None,
    against: str | None,
    sample: bool,
    say: Callable[[str], Any],
) -> PlayedGames:
    """Let the search of a trial's network play games; draw them into a video, or tell them as text.

    Args:
        trial: folder of the trial, with the export.
        parts: the trial's settings: `play_simulations` are searched before each move.
        episodes: number of games; the policy begins all of them.
        seed: seed of what is drawn.
        save: file of the video; None: the games are told as text.
        against: `random`, `search` (the opponent of the evaluations); None: the policy itself.
        sample: whether moves are drawn in proportion to the visits, instead of the most visited.
        say: takes a game as text, position by position.

    Raises:
        ConfigError: there is no such opponent, or `episodes` is below 1.
        NotFoundError: the policy was not exported.
    """
    from bray.games.self_player import evaluator

    check_value("episodes", episodes, PositiveInt)
    if against is not None:
        check_choice("against", against, _OPPONENTS)
    measured = benchmark_opponent(parts.source.environment)
    rng = np.random.default_rng(seed)
    drawing = Drawing(save, trial / "watch.gif", say)
    with closing(Model(export_of(trial, None), name=_POLICY)) as model:
        mine = _searching(measured.game, evaluator(model), parts, sample, rng)
        other = mine if against is None else _opponent(against, measured, rng)
        seats = dict(zip(PLAYERS, (_POLICY, against or _POLICY), strict=True))
        results = []
        for number in range(episodes):
            recorder = PlayRecorder(trial / EPISODES, f"watched {seed + number}", POSITIONS_PER_S)
            results.append(_play(measured.game, (mine, other), seats, drawing, recorder))
    drawing.finish()
    return PlayedGames(tuple(results))


def _searching(
    game: PlanesGame, evaluate: Evaluate, parts: Parts, sample: bool, rng: np.random.Generator
) -> _Player:
    config = SearchConfig(num_simulations=parts.agent.play_simulations, noise_fraction=0)

    def move(states: States) -> dict[str, Any]:
        visits = search(game, states, evaluate, config, rng)[0]
        shares = visits / visits.sum()
        action = rng.choice(len(shares), p=shares) if sample else shares.argmax()
        value = float(np.asarray(evaluate(game.observation(states))[1]).reshape(()))
        return {"action": int(action), "value": value, "probabilities": shares.astype(np.float32)}

    return move


def _opponent(name: str, measured: BenchmarkOpponent, rng: np.random.Generator) -> _Player:
    game = measured.game

    def move(states: States) -> dict[str, Any]:
        if name == "random":
            return {"action": int(rng.choice(np.flatnonzero(game.legal(states)[0])))}
        values = action_values(game, states, measured.depth, measured.heuristic)
        return {"action": int(best_actions(values, rng)[0])}

    return move


def _play(
    game: PlanesGame,
    players: tuple[_Player, _Player],
    seats: dict[str, str],
    drawing: Drawing,
    recorder: PlayRecorder,
) -> GameResult:
    """Play one game, and keep it."""
    states, moves = game.initial(1), 0
    found = drawing.add(_Position(game, states[0], 0))
    while np.isnan(outcome := float(game.outcome(states)[0])):
        mover = PLAYERS[moves % 2]
        decision = players[moves % 2](states)
        recorder.tick(found, {"agents": {mover: {"policy": seats[mover], **decision}}})
        states = game.step(states, np.array([decision["action"]]))
        moves += 1
        found = drawing.add(_Position(game, states[0], moves % 2))
    worth = outcome if moves % 2 == 0 else 0.0 - outcome  # told for the one to move
    returns = {PLAYERS[0]: worth, PLAYERS[1]: 0.0 - worth}
    recorder.finish(found, {"terminated": True, "returns": returns})
    return GameResult(seats, returns, {PLAYERS[0]: (moves + 1) // 2, PLAYERS[1]: moves // 2})


class _Position:
    """A position as `Drawing` takes it."""

    def __init__(self, game: PlanesGame, state: npt.NDArray[np.int64], mover: int) -> None:
        self._game = game
        self._state = state
        self._mover = mover

    def render(self) -> str:
        """Return the board as text."""
        if isinstance(self._game, OpenSpielBoard):
            return self._game.text(self._state)
        return board_text(self._game.observation(self._state[None])[0], self._mover)
