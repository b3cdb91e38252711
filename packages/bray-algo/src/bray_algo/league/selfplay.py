"""Whom to play in self-play: probabilities of opponents, and the gate that a new best must pass."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from bray_algo.league.intervals import Floats, wilson_interval
from bray_algo.scalars import check_count, check_fraction, check_limit, check_not_negative

Verdict = Literal["promote", "reject", "play"]


def pfsp_weights(
    win_rates: npt.ArrayLike,
    kind: Literal["hard", "var", "linear"] = "hard",
    power: float = 2.0,
) -> Floats:
    """Return the probability of each opponent by prioritised fictitious self-play.

    Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods: f_hard(x) = (1 − x)^p
    prefers those who beat us, f_var(x) = x (1 − x) those of our own strength; the supplement's
    league exploiters draw by min(½, 1 − x). All equal where every weight is zero.

    Args:
        win_rates: our chance to beat each opponent, `[N]`, 0 to 1.
        kind: `hard`, `var`, or `linear` for the last one.
        power: p of f_hard, 0 and above; larger ones favour the hardest.

    Raises:
        ValueError: no opponents, a rate out of range, an unknown kind, or a negative power.
    """
    rates = _rates(win_rates)
    if kind not in ("hard", "var", "linear"):
        raise ValueError(f"kind: expected 'hard', 'var' or 'linear', got {kind!r}")
    if not 0 <= power < np.inf:
        raise ValueError(f"power: expected a finite number of 0 or more, got {power}")
    if kind == "hard":
        return _normalised((1 - rates) ** power)
    return _normalised(rates * (1 - rates) if kind == "var" else np.minimum(0.5, 1 - rates))


def past_weights(num_versions: int, *, latest: float = 0.0, window: float = 1.0) -> Floats:
    """Return the probability of each version, oldest first, the last being the latest.

    The latest with a fixed probability, otherwise one of the past uniformly: of all of them
    (fictitious self-play; Heinrich et al. 2015), or of the newest share δ (Bansal et al. 2018,
    "Emergent complexity via multi-agent competition", §3.4). Where there is no past the latest
    has it all. OpenAI Five has `latest=0.8` (OpenAI 2019, appendix N).

    Args:
        num_versions: N, 1 or more.
        latest: probability of the latest, 0 to 1; 1 is naive self-play.
        window: the share of past versions to draw from, above 0 to 1, rounded up.

    Raises:
        ValueError: a number is out of its range.
    """
    check_count("num_versions", num_versions)
    check_fraction("latest", latest)
    if not 0 < window <= 1:
        raise ValueError(f"window: expected above 0 to 1, got {window}")
    num_past = int(np.ceil(window * (num_versions - 1)))
    weights = np.zeros(num_versions)
    weights[-1 - num_past : -1] = (1 - latest) / max(num_past, 1)
    weights[-1] = latest if num_past else 1.0
    return weights


def wanted_weights(
    win_rates: npt.ArrayLike, wanted: float, *, width: float = 0.05, exploration: float = 0.1
) -> Floats:
    """Return the probability of each opponent when a player shall win a wanted share of games.

    Difficulty: those whose predicted win rate is near the wanted one, by a Gaussian of `width`
    around it, relative to the nearest, so that far from all the nearest is still drawn; and with
    the probability `exploration` any one, so that predictions are put to the test.

    Args:
        win_rates: the player's predicted chance to beat each opponent, `[N]`, 0 to 1: from a
            payoff table, or of ratings (`trueskill.chances`, `elo.elo_expected`).
        wanted: win rate, 0 to 1.
        width: how far from it is near; 0 draws the nearest alone.
        exploration: probability of a uniform draw, 0 to 1.

    Raises:
        ValueError: no opponents, or a number is out of its range.
    """
    rates = _rates(win_rates)
    check_fraction("wanted", wanted)
    check_fraction("exploration", exploration)
    check_not_negative("width", width)
    distance = np.abs(rates - wanted)
    beyond = (distance**2 - distance.min() ** 2) / max(2 * width**2, 1e-12)
    near = _normalised(np.exp(-beyond))
    return (1 - exploration) * near + exploration / len(rates)


def gate(
    score: float,
    games: float,
    *,
    threshold: float = 0.5,
    confidence: float = 0.95,
    max_games: float = 400,
    num_looks: int = 1,
) -> Verdict:
    """Return whether a challenger takes the champion's place.

    `promote` once its win rate lies above the threshold with this confidence (Wilson's lower
    bound), `reject` once it lies below it or after `max_games`, `play` until then. AlphaGo Zero
    (Silver et al. 2017, Methods, "Evaluator") has 55 % of 400 games without a bound.

    Args:
        score: the challenger's wins plus half the draws against the champion.
        games: of the two.
        threshold: win rate to be above, 0 to 1.
        confidence: one-sided, of either verdict.
        max_games: rejected when undecided after so many.
        num_looks: how often the gate is asked while the games go on. Each look is one more chance
            to pass by luck; Bonferroni's correction keeps the confidence for all of them together.

    Raises:
        ValueError: a number is out of its range.
    """
    check_fraction("threshold", threshold)
    check_count("num_looks", num_looks)
    check_limit("max_games", max_games)
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence: expected above 0.5, below 1, got {confidence}")
    two_sided = 1 - 2 * (1 - confidence) / num_looks
    lower, upper = wilson_interval(score, games, two_sided)
    if lower > threshold:
        return "promote"
    return "reject" if upper < threshold or games >= max_games else "play"


def _rates(win_rates: npt.ArrayLike) -> Floats:
    rates = np.asarray(win_rates, np.float64)
    if rates.ndim != 1 or not len(rates) or not ((rates >= 0) & (rates <= 1)).all():  # NaN too
        raise ValueError(f"win_rates: expected [N] of 0 to 1, got {win_rates!r}")
    return rates


def _normalised(weights: Floats) -> Floats:
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
