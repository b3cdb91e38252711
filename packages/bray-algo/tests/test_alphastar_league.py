"""AlphaStar's rules one by one: drawn shares, moments of freezing, resets; states that go on."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from bray_algo.league.alphastar import FrozenCopy, League
from bray_algo.league.league_rules import LeagueRules
from bray_algo.league.matchmaking import pfsp_weights

LEARNERS: Any = {
    "main": "main",
    "twin": "main",
    "spy": "main_exploiter",
    "critic": "league_exploiter",
}
PURE = LeagueRules(prior_games=0, decay=1)
DRAWS = 4000
ERROR = 0.035  # over four standard deviations of a share of 4000


def shares(league: League, learner: str) -> dict[tuple[str, str], float]:
    drawn = Counter(
        (m.reason, m.opponent) for m in (league.opponent(learner) for _ in range(DRAWS))
    )
    return {key: number / DRAWS for key, number in drawn.items()}


def beats(league: League, player: str, opponent: str, won: int, lost: int) -> None:
    for score in [1.0] * won + [0.0] * lost:
        league.record(player, opponent, score)


def test_without_past_players_main_agents_play_themselves() -> None:
    league = League(LEARNERS, rules=PURE, seed=0)
    assert set(shares(league, "main")) == {("self_play", "main"), ("self_play", "twin")}
    assert set(shares(league, "critic")) == {("target", "main"), ("target", "twin")}
    assert set(shares(league, "spy")) == {("target", "main"), ("target", "twin")}


def test_a_main_agent_plays_half_pfsp_and_a_share_against_the_forgotten() -> None:
    league = League(LEARNERS, rules=PURE, seed=1)
    for learner in ("main", "main", "spy", "critic"):
        league.freeze(learner)
    beats(league, "main", "main-1", 9, 1)
    beats(league, "main", "main-2", 6, 4)
    beats(league, "main", "spy-1", 2, 8)
    beats(league, "main", "critic-1", 1, 1)
    got = shares(league, "main")
    hard = pfsp_weights([0.9, 0.6, 0.2, 0.5])
    for name, weight in zip(["main-1", "main-2", "spy-1", "critic-1"], hard, strict=True):
        assert got.get(("pfsp", name), 0) == pytest.approx(0.5 * weight, abs=ERROR)
    lost = pfsp_weights([0.6, 0.2])  # main-1 is not forgotten; the critic's copy never is
    for name, weight in zip(["main-2", "spy-1"], lost, strict=True):
        assert got[("forgotten", name)] == pytest.approx(0.15 * weight, abs=ERROR)
    assert got[("self_play", "main")] == pytest.approx(0.175, abs=ERROR)
    assert got[("self_play", "twin")] == pytest.approx(0.175, abs=ERROR)


def test_with_nobody_forgotten_that_share_is_self_play() -> None:
    league = League({"main": "main"}, rules=PURE, seed=2)
    league.freeze("main")
    beats(league, "main", "main-1", 8, 2)
    got = shares(league, "main")
    assert got[("pfsp", "main-1")] == pytest.approx(0.5, abs=ERROR)
    assert got[("self_play", "main")] == pytest.approx(0.5, abs=ERROR)


def test_a_struggling_main_agent_climbs_by_the_others_copies() -> None:
    league = League({"main": "main", "twin": "main"}, rules=PURE, seed=3)
    for _ in range(2):
        league.freeze("twin")
    beats(league, "main", "twin", 1, 9)
    beats(league, "main", "twin-1", 1, 1)
    beats(league, "main", "twin-2", 1, 9)
    got = shares(league, "main")
    assert ("self_play", "twin") not in got
    even = pfsp_weights([0.5, 0.1], "var")
    total = got[("curriculum", "twin-1")] + got[("curriculum", "twin-2")]
    assert got[("curriculum", "twin-1")] / total == pytest.approx(even[0], abs=0.08)
    assert total == pytest.approx(0.175, abs=ERROR)


def test_a_main_exploiter_has_a_curriculum_while_it_loses() -> None:
    league = League({"main": "main", "spy": "main_exploiter"}, rules=PURE, seed=4)
    assert league.freeze("main") == FrozenCopy("main", "main-1", False)
    beats(league, "spy", "main", 1, 9)
    got = shares(league, "spy")
    assert got[("curriculum", "main-1")] == pytest.approx(0.5, abs=ERROR)
    assert got[("target", "main")] == pytest.approx(0.5, abs=ERROR)
    beats(league, "spy", "main", 9, 1)
    assert set(shares(league, "spy")) == {("target", "main")}


def test_a_league_exploiter_plays_all_past_players() -> None:
    league = League(LEARNERS, rules=PURE, seed=5)
    for learner in ("main", "spy", "critic"):
        league.freeze(learner)
    beats(league, "critic", "main-1", 1, 3)
    got = shares(league, "critic")
    want = pfsp_weights([0.25, 0.5, 0.5])
    for name, weight in zip(["main-1", "spy-1", "critic-1"], want, strict=True):
        assert got[("pfsp", name)] == pytest.approx(weight, abs=ERROR)


def test_main_agents_are_frozen_by_the_clock_and_never_reset() -> None:
    league = League(LEARNERS, rules=LeagueRules(main_period=100), seed=0)
    assert league.advance("main", 99) is None
    assert league.advance("main", 1) == FrozenCopy("main", "main-1", False)
    assert league.advance("main", 99) is None
    assert league.advance("main", 50) == FrozenCopy("main", "main-2", False)
    assert league.copies() == ["main-1", "main-2"]
    assert league.copies("main_exploiter") == []


def test_main_exploiters_are_frozen_when_they_beat_all_main_agents_and_begin_anew() -> None:
    league = League(LEARNERS, rules=PURE, seed=0)
    beats(league, "spy", "main", 8, 2)
    assert league.advance("spy", 1) is None  # not yet the twin
    beats(league, "spy", "twin", 7, 3)
    assert league.advance("spy", 1) is None  # more than 70 %
    beats(league, "spy", "twin", 1, 0)
    assert league.advance("spy", 1) == FrozenCopy("spy", "spy-1", True)
    assert league.payoff.win_rate("spy", "main") == 0.5  # another policy's results
    assert league.advance("spy", int(4e9) - 1) is None
    assert league.advance("spy", 1) == FrozenCopy("spy", "spy-2", True)


def test_league_exploiters_are_frozen_when_they_beat_the_league_and_sometimes_begin_anew() -> None:
    league = League({"main": "main", "critic": "league_exploiter"}, rules=PURE, seed=0)
    assert league.advance("critic", 1) is None  # nobody to have beaten
    league.freeze("main")
    beats(league, "critic", "main-1", 8, 2)
    first = league.advance("critic", 1)
    assert first is not None
    assert first.name == "critic-1"
    resets = [league.advance("critic", int(2e9)) for _ in range(400)]
    assert all(resets)
    assert sum(freeze.reset for freeze in resets if freeze) / 400 == pytest.approx(0.25, abs=0.09)


def test_a_lucky_game_decides_nothing() -> None:
    league = League({"main": "main", "spy": "main_exploiter"}, seed=0)
    beats(league, "spy", "main", 6, 0)
    assert league.advance("spy", 1) is None
    beats(league, "spy", "main", 2, 0)
    assert league.advance("spy", 1) is not None


def test_it_goes_on_where_it_was_saved() -> None:
    league = League(LEARNERS, seed=7)
    for learner in ("main", "spy", "critic", "main"):
        league.freeze(learner)
        league.advance(learner, 5)
        league.record("critic", "main-1", 1.0)
    league.record("main", "main", 1.0)  # against itself: nothing to count
    assert league.payoff.num_games.sum() == 2 * 4
    again = League.from_state(json.loads(json.dumps(league.state())))
    for name in [*LEARNERS] * 50:
        assert again.opponent(name) == league.opponent(name)
        assert again.advance(name, 10**8) == league.advance(name, 10**8)
    assert again.state() == league.state()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: League({}), "learners: expected one main or more"),
        (lambda: League({"a": "main", "b": "coach"}), "b: expected one of"),  # type: ignore[dict-item]
        (lambda: League(LEARNERS).opponent("x"), r"learner: expected one of \['main'"),
        (lambda: League(LEARNERS).advance("main", -1), "num_steps: expected 0 or more, got -1"),
        (lambda: League(LEARNERS).record("main", "x", 1), "player: expected one of the table's 4"),
        (lambda: LeagueRules(pfsp=0.9), r"self_play \+ pfsp: expected at most 1, got 0.35 \+ 0.9"),
        (lambda: LeagueRules(decay=2), "decay: expected 0 to 1, got 2"),
        (lambda: LeagueRules(power=-1), "power: expected 0 or more, got -1"),
        (lambda: League.from_state({}), "state: expected what state"),
        (
            lambda: League.from_state({**League(LEARNERS).state(), "frozen": {"a": "main"}}),
            "state: expected what state",
        ),
    ],
)
def test_nonsense_is_refused(use: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()


def test_copies_may_be_named_and_dropped() -> None:
    league = League({"main": "main"}, seed=0)
    assert league.freeze("main", "main:v3") == FrozenCopy("main", "main:v3", False)
    assert league.advance("main", 2 * 10**9, "main:v4") == FrozenCopy("main", "main:v4", False)
    league.freeze("main")
    league.record("main", "main:v3", 1.0)
    league.drop("main:v3")
    assert league.copies() == ["main:v4", "main-3"]
    assert league.payoff.players == ("main", "main:v4", "main-3")
    assert league.freeze("main").name == "main-4"  # main-3 is taken
    with pytest.raises(ValueError, match="name: expected a frozen player, got 'main'"):
        league.drop("main")
    with pytest.raises(ValueError, match="name: expected a new player, got 'main:v4'"):
        league.freeze("main", "main:v4")
