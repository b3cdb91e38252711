"""OpenSpiel's games under a search: against OpenSpiel itself, and against bray's own rules."""

from __future__ import annotations

import pickle

import numpy as np
import pyspiel
import pytest

from bray.games.benchmark_opponents import benchmark_opponent
from bray.games.open_spiel_board import OpenSpielBoard
from bray.templates.loading import compose
from bray_algo.games import TIC_TAC_TOE, action_values
from bray_algo.search.alphazero import SelfPlay
from bray_algo.search.mcts import SearchConfig
from bray_core.cli import main
from bray_core.errors import ConfigError

GAMES = [
    "tic_tac_toe",
    "breakthrough(rows=5,columns=5)",
    "othello",
    "hex(board_size=4)",
    "mancala",  # a player may move twice, and observations are no board
    "dots_and_boxes",
    "clobber(rows=3,columns=4)",
]


@pytest.mark.parametrize("name", GAMES)
def test_random_games_go_as_open_spiel_says(name: str) -> None:
    rng = np.random.default_rng(1)
    board = pickle.loads(pickle.dumps(OpenSpielBoard(name)))
    for _ in range(3):
        states, passes = board.initial(1), 0
        judge = pyspiel.load_game(name).new_initial_state()
        while np.isnan(board.outcome(states))[0]:
            mover = int(states[0, 0]) % 2
            legal = np.flatnonzero(board.legal(states)[0]).tolist()
            planes = board.observation(states)[0]
            assert planes.shape[1:] == board.shape
            assert (planes[-1] == mover).all()
            action = int(rng.choice(legal))
            if judge.current_player() != mover:
                assert legal == [board.num_actions - 1], "the other moves again: this one passes"
                passes += 1
            else:
                assert legal == judge.legal_actions()
                seen = np.asarray(judge.observation_tensor(mover), np.float32)
                np.testing.assert_array_equal(planes[:-1].ravel(), seen)
                judge.apply_action(action)
            states = board.step(states, np.array([action]))
        assert judge.is_terminal()
        mover = int(states[0, 0]) % 2
        assert board.outcome(states)[0] == judge.returns()[mover]
        assert not board.legal(states).any()
        assert (passes > 0) == (name in ("mancala", "dots_and_boxes"))


def test_what_is_forgotten_is_worked_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bray.games.open_spiel_board._KEPT_POSITIONS", 2)
    board = OpenSpielBoard("othello")
    states = board.initial(1)
    for _ in range(8):
        actions = board.legal(states).argmax(1)
        states = board.step(states, actions)
    again = OpenSpielBoard("othello")
    np.testing.assert_array_equal(board.observation(states), again.observation(states))


def test_a_search_values_moves_as_with_our_own_rules() -> None:
    moves = [[4, 0, 8], [0, 1, 3, 4], [2, 4]]
    board = OpenSpielBoard("tic_tac_toe")
    for played in moves:
        ours, theirs = TIC_TAC_TOE.initial(1), board.initial(1)
        for move in played:
            ours = TIC_TAC_TOE.step(ours, np.array([move]))
            theirs = board.step(theirs, np.array([move]))
        want = action_values(TIC_TAC_TOE, ours, 4)
        np.testing.assert_allclose(action_values(board, theirs, 4)[:, :9], want)


def test_self_play_of_a_game_with_double_moves_tells_each_mover_the_end() -> None:
    board = OpenSpielBoard("dots_and_boxes")
    play = SelfPlay(
        board,
        1,
        config=SearchConfig(num_simulations=4),
        rng=np.random.default_rng(0),
        num_random_moves=40,
    )

    def knows_nothing(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(seen), board.num_actions)), np.zeros(len(seen))

    for game in range(4):
        while play.games_ended == game:
            found = play.play(knows_nothing)
        second = found.observation[:, -1, 0, 0] == 1
        assert len({*found.outcome[second], *(0.0 - found.outcome[~second])}) == 1
        assert second.any()
        assert not second.all()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("open_spiel:kuhn_poker", "expected no chance, which a search of positions needs"),
        ("open_spiel:phantom_ttt", "expected nothing hidden"),
        ("open_spiel:chess", "expected games of 2,000 moves at most, got 17,695"),
        ("open_spiel:breaktrough", "no game 'breaktrough', did you mean 'breakthrough'"),
        ("open_spiel:goofspiel", "expected moves in turn"),
        ("chess", "task: expected one of tic-tac-toe, .* or open_spiel:GAME, got 'chess'"),
    ],
)
def test_what_a_search_cannot_play_is_refused(task: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        benchmark_opponent(task)


def test_opponents_look_as_far_as_a_thousand_positions() -> None:
    assert benchmark_opponent("open_spiel:othello").depth == 1
    assert benchmark_opponent("open_spiel:oware").depth == 3
    assert benchmark_opponent("bray:tic-tac-toe").depth == 9


def test_parameters_in_parentheses_are_no_setting() -> None:
    template = compose("alphazero", "open_spiel:hex(board_size=3)", ["num_games=8"])
    assert template.environment == "open_spiel:hex(board_size=3)"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_small_game_is_learnt(tmp_path, capsys) -> None:
    words = ["train", "alphazero", "open_spiel:hex(board_size=3)", "num_games=16"]
    words += ["trainer.evaluate_every=1500", "--goal", "0.75", "--episodes", "40"]
    words += ["--frames", "12000", "--project", str(tmp_path), "--trial", "hex"]
    assert main(words) == 0
    assert "reached its goal" in capsys.readouterr().out
    assert list((tmp_path / "hex").glob("models/*/onnx/*/manifest.json"))
