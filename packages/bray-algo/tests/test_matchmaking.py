from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.league.champion import Champion, promotion_verdict
from bray_algo.league.elo import elo_expected
from bray_algo.league.matchmaking import difficulty_weights, past_weights, pfsp_weights
from bray_algo.league.trueskill import TrueSkillRating, chances, update

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(RATES, st.floats(0, 6))
def test_pfsp_weighs_as_the_paper_says(rates: list[float], power: float) -> None:
    formulas = {
        "hard": [(1 - x) ** power for x in rates],
        "var": [x * (1 - x) for x in rates],
        "linear": [min(0.5, 1 - x) for x in rates],
    }
    for kind, weights in formulas.items():
        total = sum(weights)
        want = [w / total for w in weights] if total else [1 / len(rates)] * len(rates)
        assert pfsp_weights(rates, kind, power) == pytest.approx(want)  # type: ignore[arg-type]


def test_past_versions() -> None:
    assert past_weights(1).tolist() == [1]
    assert past_weights(4).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert past_weights(4, latest=1).tolist() == [0, 0, 0, 1]
    assert past_weights(6, latest=0.8, window=0.4).tolist() == pytest.approx(
        [0, 0, 0, 0.1, 0.1, 0.8]
    )
    assert past_weights(100, window=0.001)[-2] == 1


@given(RATES, st.floats(0, 1), st.floats(0, 0.5), st.floats(0, 1))
def test_wanted_weights_are_probabilities(
    rates: list[float], wanted: float, width: float, exploration: float
) -> None:
    weights = difficulty_weights(rates, wanted, width=width, exploration=exploration)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= exploration / len(rates) - 1e-12
    gaps = np.abs(np.array(rates) - wanted)
    assert weights[gaps.argmin()] == pytest.approx(weights.max())


def test_the_nearest_is_drawn_however_far() -> None:
    assert difficulty_weights([0.1, 0.2], 0.9, width=0, exploration=0).tolist() == [0, 1]
    assert difficulty_weights([0.0, 0.001], 1.0, width=1e-3, exploration=0)[1] > 0.99
    assert difficulty_weights([0.4, 0.6], 0.5, width=0.0, exploration=0).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("wanted", [0.35, 0.5, 0.7])
def test_a_player_of_unknown_skill_wins_as_often_as_wanted(wanted: float) -> None:
    """Thirty opponents of known skill, one player to be found out: what a product does."""
    rng = np.random.default_rng(0)
    pool = [TrueSkillRating(mu, 1.0) for mu in np.linspace(5, 45, 30)]
    player, skill, wins = TrueSkillRating(), 31.0, []
    for _ in range(1000):
        rates = [chances(player, each, draw_probability=0).score for each in pool]
        weights = difficulty_weights(rates, wanted, width=0.03, exploration=0.05)
        chosen = pool[rng.choice(len(pool), p=weights)]
        gap = skill - chosen.mu + rng.normal(0, math.sqrt(2) * 25 / 6)
        wins.append(float(gap > 0))
        player, _ = update(player, chosen, wins[-1], draw_probability=0)
    assert abs(player.mu - skill) < 2
    assert np.mean(wins[200:]) == pytest.approx(wanted, abs=0.06)


def test_the_gate_asks_for_a_bound() -> None:
    assert promotion_verdict(30, 40) == "promote"
    assert promotion_verdict(22, 40) == "play"  # 55 %, but by luck perhaps
    assert promotion_verdict(10, 40) == "reject"
    assert promotion_verdict(220, 400) == "promote"
    assert promotion_verdict(203, 400) == "reject"  # undecided to the end
    assert promotion_verdict(0, 0) == "play"
    assert promotion_verdict(240, 400, threshold=0.55) == "promote"
    assert promotion_verdict(230, 400, threshold=0.55) == "reject"
    assert promotion_verdict(27, 40, num_looks=20) == "play"  # one look would have passed it
    assert promotion_verdict(27, 40) == "promote"


@pytest.mark.parametrize(("chance", "least", "most"), [(0.5, 0.0, 0.05), (0.65, 0.9, 1.0)])
def test_equals_are_seldom_promoted_and_betters_often(
    chance: float, least: float, most: float
) -> None:
    rng = np.random.default_rng(0)
    promoted = 0
    for _ in range(400):
        champion = Champion(best="old")
        champion.challenge("new")
        verdict = "play"
        while verdict == "play":
            verdict = champion.record(float(rng.random() < chance))
        assert champion.challenger is None
        promoted += champion.best == "new"
    assert least <= promoted / 400 <= most


def test_a_champion_goes_on_where_it_was_saved() -> None:
    champion = Champion(best="v1", look_every=20)
    champion.challenge("v2")
    for _ in range(17):
        champion.record(1.0)
    again = Champion.from_state(champion.state())
    assert [champion.record(1.0) for _ in range(3)] == ["play", "play", "promote"]
    assert [again.record(1.0) for _ in range(3)] == ["play", "play", "promote"]
    assert again.best == "v2"
    again.challenge("v3")
    assert (again.score, again.games) == (0, 0)


def test_elo_predicts_for_the_difficulty_too() -> None:
    ratings = [1000.0, 1400, 1800]
    rates = [elo_expected(1400, rating) for rating in ratings]
    assert difficulty_weights(rates, 0.1, exploration=0).argmax() == 2


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: pfsp_weights([0.5], power=-1), "power: expected a finite number"),
        (lambda: past_weights(0), "num_versions: expected 1 or more, got 0"),
        (lambda: past_weights(2, latest=2), "latest: expected 0 to 1, got 2"),
        (lambda: past_weights(2, window=0), "window: expected above 0 to 1, got 0"),
        (lambda: difficulty_weights([], 0.5), "win_rates"),
        (lambda: difficulty_weights([0.5], 2), "wanted: expected 0 to 1, got 2"),
        (lambda: difficulty_weights([0.5], 0.5, width=-1), "width: expected 0 or more, got -1"),
        (lambda: difficulty_weights([0.5], 0.5, exploration=2), "exploration: expected 0 to 1"),
        (lambda: promotion_verdict(1, 2, threshold=2), "threshold: expected 0 to 1, got 2"),
        (lambda: promotion_verdict(1, 2, num_looks=0), "num_looks: expected 1 or more, got 0"),
        (
            lambda: promotion_verdict(1, 2, confidence=0.5),
            "confidence: expected above 0.5, below 1",
        ),
        (lambda: promotion_verdict(3, 2), "score: expected 0 to the finite number of games"),
        (lambda: Champion(best="a", look_every=0), "look_every: expected 1 to max_games=400"),
        (lambda: Champion(best="a", confidence=1), "confidence: expected above 0.5"),
        (lambda: Champion(best="a").challenge("a"), "name: expected another than the best"),
        (lambda: Champion(best="a").record(1), "challenger: expected one"),
        (lambda: Champion(best="a", challenger="b").record(2), "score: expected 0 to 1, got 2"),
    ],
)
def test_nonsense_is_refused(use: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
