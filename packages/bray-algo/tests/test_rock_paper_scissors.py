"""A league beside naive self-play: tabular softmax players, policy gradient, a game that cycles.

What comes near the equilibrium is the Nash mixture of the frozen players. No learner does by
itself: the main one is always about to beat those that are hardest now.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bray_algo.league.alphastar import League
from bray_algo.league.equilibrium import exploitability, nash
from bray_algo.league.league_rules import LeagueRules

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
RATE, STEPS, PERIOD = 0.5, 900, 60


def softmax(logits: Any) -> Any:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def learned(logits: Any, opponent: Any) -> Any:
    """One step of the exact policy gradient against a policy: ∂(pᵀ A q)/∂θ."""
    p, gain = softmax(logits), RPS @ softmax(opponent)
    return logits + RATE * p * (gain - p @ gain)


def play(one: Any, other: Any, rng: np.random.Generator) -> float:
    """A game: 1, 0.5 or 0."""
    a, b = (int((softmax(x).cumsum() < rng.random()).sum()) for x in (one, other))
    return float((RPS[min(a, 2), min(b, 2)] + 1) / 2)


def naive_self_play(rng: np.random.Generator) -> list[Any]:
    policy, policies = rng.normal(0, 0.3, 3), []
    for _ in range(STEPS):
        policy = learned(policy, policy)
        policies.append(policy)
    return policies


def league_play(seed: int, rng: np.random.Generator) -> tuple[League, dict[str, Any]]:
    """Three learners by the league's decisions; the returned models are learners and copies."""
    rules = LeagueRules(
        main_period=PERIOD, main_exploiter_timeout=2 * PERIOD, league_exploiter_timeout=PERIOD
    )
    league = League(
        {"main": "main", "spy": "main_exploiter", "critic": "league_exploiter"},
        rules=rules,
        seed=seed,
    )
    models = {name: rng.normal(0, 0.3, 3) for name in league.learners}
    start = dict(models)
    for step in range(STEPS):
        for name in league.learners:
            match = league.opponent(name)
            models[name] = learned(models[name], models[match.opponent])
            league.record(name, match.opponent, play(models[name], models[match.opponent], rng))
            freeze = league.freeze(name) if step == 0 else league.advance(name, 1)
            if freeze:
                models[freeze.name] = models[name]
                if freeze.reset:
                    models[name] = start[name]
    return league, models


def best_mixture(league: League, models: dict[str, Any], rng: np.random.Generator) -> Any:
    """Play every pair of frozen players, and mix them by the Nash equilibrium of the payoffs."""
    copies = league.copies()
    for i, one in enumerate(copies):
        for other in copies[:i]:
            for _ in range(20):
                league.record(one, other, play(models[one], models[other], rng))
    mixture = nash(2 * league.payoff.matrix(copies, prior_games=2) - 1).row
    return sum(w * softmax(models[name]) for w, name in zip(mixture, copies, strict=True))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_league_finds_the_equilibrium_where_naive_self_play_cycles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    naive = naive_self_play(rng)
    gaps = [exploitability(RPS, softmax(policy)) for policy in naive]
    favourites = [int(policy.argmax()) for policy in naive]
    changes = [(a, b) for a, b in pairwise(favourites) if a != b]
    assert min(gaps[-200:]) > 0.1  # it never comes near again
    assert np.mean(gaps[-200:]) > 0.4
    assert len(changes) >= 3
    assert all((b - a) % 3 == 1 for a, b in changes)  # rock → paper → scissors → rock

    league, models = league_play(seed, rng)
    assert exploitability(RPS, best_mixture(league, models, rng)) < 0.05
