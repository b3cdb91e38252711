from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import elo_update, pfsp_weights
from bray_algo.league.elo import elo_expected


def test_elo_is_zero_sum_and_moves_towards_the_result() -> None:
    assert elo_update(1500, 1500, 1.0) == (1508.0, 1492.0)
    one, other = elo_update(1700, 1500, 0.0)
    assert one + other == pytest.approx(3200)
    assert one < 1690
    with pytest.raises(ValueError, match="score: expected 0 to 1, got 2"):
        elo_update(0, 0, 2)


def test_pfsp() -> None:
    assert pfsp_weights([0.0, 0.5, 1.0]).tolist() == pytest.approx([0.8, 0.2, 0.0])
    assert pfsp_weights([0.0, 0.5, 1.0], "var").tolist() == [0, 1, 0]
    assert pfsp_weights([1.0, 1.0]).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "win_rates"),
        (([2.0],), "win_rates"),
        (([math.nan, 0.5],), "win_rates"),
        (([0.5], "soft"), "kind: expected 'hard'"),
    ],
)
def test_nonsense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pfsp_weights(*arguments)


def test_four_hundred_points_are_ten_to_one() -> None:
    assert elo_expected(1900, 1500) == pytest.approx(10 / 11)
    assert elo_expected(1500, 1900) == pytest.approx(1 / 11)


@given(st.floats(0, 3000), st.floats(0, 3000), st.sampled_from([0.0, 0.5, 1.0]))
def test_elo_keeps_the_sum(one: float, other: float, score: float) -> None:
    assert sum(elo_update(one, other, score)) == pytest.approx(one + other)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(["hard", "var"]))
def test_weights_are_probabilities(rates: list[float], kind: Any) -> None:
    weights = pfsp_weights(rates, kind)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
