"""The payoff table against a plain list of games, and at scale."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.league.intervals import beta_interval, wilson_interval
from bray_algo.league.payoff import PayoffTable

NAMES = ["ann", "bob", "cid", "dot"]
GAMES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])).filter(
        lambda game: game[0] != game[1]
    ),
    max_size=40,
)
Games = list[tuple[int, int, float]]


def table_of(games: Games, decay: float = 1.0) -> PayoffTable:
    table = PayoffTable(NAMES, decay=decay)
    for one, other, score in games:
        table.record(NAMES[one], NAMES[other], score)
    return table


def seen_by(one: int, other: int, games: Games) -> list[float]:
    """The scores of one against the other, from either side, in order."""
    return [s if a == one else 1 - s for a, b, s in games if {a, b} == {one, other}]


@given(GAMES, st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([0.0, 3.0]))
def test_it_counts_as_a_list_of_games_does(games: Games, decay: float, prior: float) -> None:
    table = table_of(games, decay)
    for i in range(4):
        for j in range(4):
            scores = seen_by(i, j, games) if i != j else []
            weights = [decay**k for k in reversed(range(len(scores)))]
            counted = {
                s: sum(w for w, t in zip(weights, scores, strict=True) if s == t)
                for s in (0, 0.5, 1)
            }
            assert table.wins[i, j] == pytest.approx(counted[1])
            assert table.draws[i, j] == pytest.approx(counted[0.5])
            assert table.losses[i, j] == pytest.approx(counted[0])
            assert table.games[i, j] == pytest.approx(sum(weights))
            assert table.num_games[i, j] == len(scores)
            total = sum(weights) + prior
            score = counted[1] + counted[0.5] / 2 + prior / 2
            rate = table.win_rate(NAMES[i], NAMES[j], prior_games=prior)
            assert rate == pytest.approx(score / total if total else 0.5)
    assert table.matrix() + table.matrix().T == pytest.approx(np.ones((4, 4)))


@given(GAMES)
def test_it_goes_on_where_it_was_saved(games: Games) -> None:
    table = table_of(games, decay=0.9)
    again = PayoffTable.from_state(json.loads(json.dumps(table.state())))
    for each in (table, again):
        each.add("eve")
        each.record("eve", "ann", 0.5)
        each.record("bob", "ann", 1.0)
    assert again.players == table.players
    assert again.decay == table.decay
    for name in ("wins", "draws", "losses", "num_games"):
        assert getattr(again, name).tolist() == getattr(table, name).tolist()


@given(GAMES, st.integers(0, 3))
def test_a_player_leaves_with_its_games(games: Games, gone: int) -> None:
    table = table_of(games)
    table.remove(NAMES[gone])
    rest = [i for i in range(4) if i != gone]
    assert table.players == tuple(NAMES[i] for i in rest)
    assert table.wins.tolist() == table_of(games).wins[np.ix_(rest, rest)].tolist()
    table.add(NAMES[gone])
    assert not table.games[-1].any()
    assert not table.num_games[:, -1].any()


def test_a_player_begins_anew() -> None:
    table = table_of([(0, 1, 1.0), (1, 2, 1.0)])
    table.forget("ann")
    assert table.num_games.sum() == 2
    assert table.win_rate("ann", "bob") == 0.5
    assert table.win_rate("bob", "cid") == 1.0


def test_intervals_are_those_of_the_counts() -> None:
    table = table_of([(0, 1, 1.0), (0, 1, 0.5), (2, 0, 1.0)])
    for kind, interval in (("wilson", wilson_interval), ("beta", beta_interval)):
        lower, upper = table.interval(confidence=0.9, kind=kind)  # type: ignore[arg-type]
        assert [lower[0, 1], upper[0, 1]] == pytest.approx(
            [float(x) for x in interval(1.5, 2, 0.9)]
        )
        assert [lower[1, 0], upper[1, 0]] == pytest.approx([1 - upper[0, 1], 1 - lower[0, 1]])


def test_an_evaluator_plays_the_pairs_of_the_fewest_games() -> None:
    table = table_of([(0, 1, 1.0), (0, 1, 0.5), (2, 0, 1.0)])
    assert table.fewest_games(4) == [("ann", "dot"), ("bob", "cid"), ("bob", "dot"), ("cid", "dot")]
    assert table.fewest_games(9, ["cid", "bob", "ann"])[-1] == ("bob", "ann")
    assert table.fewest_games(0) == []
    for _ in range(33):
        ((one, other),) = table.fewest_games(1)
        table.record(one, other, 1.0)
    assert table.num_games[np.triu_indices(4, 1)].tolist() == [6] * 6


def test_recent_games_count_more() -> None:
    table = PayoffTable("ab", decay=0.99)
    for score in [0.0] * 500 + [1.0] * 500:
        table.record("a", "b", score)
    assert table.win_rate("a", "b") == pytest.approx(1 - 0.99**500, abs=1e-3)
    assert table.num_games[0, 1] == 1000


def test_two_hundred_players_and_a_hundred_thousand_games_take_seconds() -> None:
    rng = np.random.default_rng(0)
    table = PayoffTable((f"v{i}" for i in range(200)), decay=0.999)
    one = rng.integers(0, 200, 100_000)
    other = (one + rng.integers(1, 200, 100_000)) % 200
    scores = rng.choice([0.0, 0.5, 1.0], 100_000)
    games = [
        (f"v{i}", f"v{j}", s)
        for i, j, s in zip(one.tolist(), other.tolist(), scores.tolist(), strict=True)
    ]
    start = time.perf_counter()
    for game in games:
        table.record(*game)
    for _ in range(1000):
        table.win_rates("v7")
    text = json.dumps(table.state())
    assert PayoffTable.from_state(json.loads(text)).matrix().tolist() == table.matrix().tolist()
    assert time.perf_counter() - start < 10  # about 1 s; a machine may be busy
    assert table.num_games.sum() == 200_000
    assert len(text) < 3e6


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda t: PayoffTable(decay=1.5), "decay: expected 0 to 1, got 1.5"),
        (lambda t: PayoffTable(["a", "a"]), "name: expected a new player, got 'a'"),
        (lambda t: t.add(""), "name: expected a non-empty string, got ''"),
        (lambda t: t.record("ann", "eve", 1), "player: expected one of the table's 4, got 'eve'"),
        (lambda t: t.record("ann", "ann", 1), "opponent: expected another than 'ann'"),
        (lambda t: t.record("ann", "bob", 0.3), "score: expected 1, 0.5 or 0, got 0.3"),
        (lambda t: t.interval(kind="normal"), "kind: expected 'wilson' or 'beta', got 'normal'"),
        (lambda t: t.interval(confidence=0), "confidence: expected between 0 and 1, got 0"),
        (lambda t: t.matrix(prior_games=-1), "prior_games: expected 0 or more, got -1"),
        (lambda t: t.remove("eve"), "got 'eve'"),
        (lambda t: PayoffTable.from_state({}), "state: expected what state"),
        (
            lambda t: PayoffTable.from_state({**t.state(), "results": [[1, 0, 1, 0, 0, 1]]}),
            "state: expected what state",
        ),
        (
            lambda t: PayoffTable.from_state({**t.state(), "results": [[0, 9, 1, 0, 0, 1]]}),
            "state: expected what state",
        ),
    ],
)
def test_nonsense_is_refused(use: Any, message: str) -> None:
    table = table_of([(0, 1, 1.0)])
    before = table.state()
    with pytest.raises(ValueError, match=message):
        use(table)
    assert table.state() == before
