"""Equilibria of games whose solution is known, and of random ones by the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.league.equilibrium import exploitability, fictitious_play, nash, symmetrised

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def test_rock_paper_scissors() -> None:
    found = nash(RPS)
    assert found.row == pytest.approx([1 / 3] * 3)
    assert found.column == pytest.approx([1 / 3] * 3)
    assert found.value == pytest.approx(0)
    assert exploitability(RPS, [1, 0, 0]) == 1
    assert exploitability(RPS, [1 / 3] * 3) == pytest.approx(0)
    assert exploitability(RPS, [1, 0, 0], [0, 0, 1]) == 2  # paper wins 1, rock would win 1


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4))
def test_two_by_two_has_a_formula(numbers: list[float]) -> None:
    payoff = np.array(numbers).reshape(2, 2)
    (a, b), (c, d) = payoff.tolist()
    maximin, minimax = payoff.min(1).max(), payoff.max(0).min()
    found = nash(payoff)
    if maximin == minimax:  # a saddle point
        assert found.value == pytest.approx(maximin, abs=1e-9)
    else:  # von Neumann
        assert found.value == pytest.approx((a * d - b * c) / (a + d - b - c), abs=1e-6)
    assert exploitability(payoff, found.row, found.column) == pytest.approx(0, abs=1e-8)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_nobody_gains_by_leaving(rows: int, columns: int, seed: int, is_tied: bool) -> None:
    rng = np.random.default_rng(seed)
    size = (rows, columns)
    payoff = rng.integers(-1, 2, size).astype(float) if is_tied else rng.normal(3, 10, size)
    found = nash(payoff)
    assert found.row.sum() == pytest.approx(1)
    assert found.column.sum() == pytest.approx(1)
    assert min(found.row.min(), found.column.min()) >= 0
    assert exploitability(payoff, found.row, found.column) == pytest.approx(0, abs=1e-8)
    assert nash(-payoff.T).value == pytest.approx(-found.value, abs=1e-8)


def test_a_league_of_two_hundred() -> None:
    rng = np.random.default_rng(0)
    half = rng.uniform(-1, 1, (200, 200))
    payoff = half - half.T  # antisymmetric: the value is 0
    found = nash(payoff)
    assert found.value == pytest.approx(0, abs=1e-9)
    assert exploitability(payoff, found.row) == pytest.approx(0, abs=1e-8)
    assert exploitability(np.zeros((200, 200)), nash(np.zeros((200, 200))).row) == 0
    copies = np.repeat(np.repeat(RPS, 60, 0), 60, 1)  # as degenerate as payoff tables get
    assert exploitability(copies, nash(copies).row) == pytest.approx(0, abs=1e-9)


def test_fictitious_play_comes_near() -> None:
    payoff = np.random.default_rng(3).normal(size=(20, 30))
    played = [fictitious_play(payoff, steps) for steps in (100, 10_000)]
    gaps = [exploitability(payoff, mix.row, mix.column) for mix in played]
    assert gaps[1] < gaps[0] / 3
    assert gaps[1] < 0.1
    assert played[1].value == pytest.approx(nash(payoff).value, abs=0.1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: nash([]), r"payoff: expected finite \[M, N\], got shape \(0,\)"),
        (lambda: nash([[np.nan]]), "payoff: expected finite"),
        (lambda: fictitious_play(RPS, 0), "num_steps: expected 1 or more, got 0"),
        (lambda: exploitability(RPS, [1, 0]), r"row: expected \[3\] of probabilities"),
        (lambda: exploitability(RPS, [1, 1, 0]), "row"),
        (lambda: exploitability(RPS, [1, 0, 0], [2, -1, 0]), "column"),
        (lambda: exploitability(RPS + 1, [1, 0, 0]), "payoff: expected antisymmetric"),
        (lambda: exploitability(RPS[:2], [1, 0]), "payoff: expected antisymmetric"),
    ],
)
def test_nonsense_is_refused(use: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()


def test_a_symmetrised_game_has_the_equilibria_of_both_sides() -> None:
    rng = np.random.default_rng(0)
    payoff = rng.normal(size=(3, 4))
    game = symmetrised(payoff)
    assert game.shape == (12, 12)
    for i, j, k, m in rng.integers(0, 3, (20, 4)):
        mine_as_row, as_column = payoff[i, m], -payoff[k, j]  # each side half of the time
        assert game[i * 4 + j, k * 4 + m] == pytest.approx((mine_as_row + as_column) / 2)
    both = nash(game)
    assert both.value == pytest.approx(0, abs=1e-9)
    sides = both.row.reshape(3, 4)
    assert exploitability(payoff, sides.sum(1), sides.sum(0)) == pytest.approx(0, abs=1e-9)
