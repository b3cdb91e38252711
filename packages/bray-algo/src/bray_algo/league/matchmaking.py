"""Whom to play in self-play: the probability of each opponent, from win rates or by age."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from bray_algo.league.intervals import Floats
from bray_algo.validation.scalars import (
    check_count,
    check_fraction,
    check_not_negative,
)


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
        win_rates: Our chance to beat each opponent, `[N]`, 0 to 1.
        kind: `hard` for f_hard, `var` for f_var, `linear` for min(½, 1 − x).
        power: p of f_hard, usually 1 to 3; 0 plays all alike, and the larger, the more games go to
            the few hardest opponents, while what was learned against the others may be forgotten.

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
        num_versions: Number N of versions, 1 or more.
        latest: Probability of the latest, 0 to 1; usually 0.5 to 0.8. At 1 (naive self-play) a
            policy may chase its own tail; near 0 it learns slowly, from opponents that it beats.
        window: Share of the past versions to draw from, above 0 to 1, rounded up. A small one
            forgets how to beat the old ones; 1 spends games on those long beaten.

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


def difficulty_weights(
    win_rates: npt.ArrayLike, wanted: float, *, width: float = 0.05, exploration: float = 0.1
) -> Floats:
    """Return the probability of each opponent when a player shall win a wanted share of games.

    This sets a difficulty. Opponents whose predicted win rate is near the wanted one are drawn, by
    a Gaussian of `width` around it, relative to the nearest: so where all are far, the nearest is
    still drawn. With the probability `exploration` any one is, which puts predictions to the test.

    Args:
        win_rates: Predicted chance of the player to beat each opponent, `[N]`, 0 to 1, from a
            payoff table or from ratings (`trueskill.chances`, `elo.elo_expected`).
        wanted: Win rate that the player shall have, 0 to 1.
        width: Distance from the wanted win rate that still counts as near, usually 0.02 to 0.1; 0
            draws the nearest alone, and a wide one misses the wanted rate.
        exploration: Probability of a uniform draw, 0 to 1; usually 0.05 to 0.2. At 0 a wrong
            prediction may never be corrected.

    Raises:
        ValueError: no opponents, or a number is out of its range.
    """
    rates = _rates(win_rates)
    check_fraction("wanted", wanted)
    check_fraction("exploration", exploration)
    check_not_negative("width", width)
    distance = np.abs(rates - wanted)
    # Relative to the nearest: far from all of them, every weight would underflow to 0.
    beyond = (distance**2 - distance.min() ** 2) / max(2 * width**2, 1e-12)
    near = _normalised(np.exp(-beyond))
    return (1 - exploration) * near + exploration / len(rates)


def _rates(win_rates: npt.ArrayLike) -> Floats:
    rates = np.asarray(win_rates, np.float64)
    if rates.ndim != 1 or not len(rates) or not ((rates >= 0) & (rates <= 1)).all():  # NaN too
        raise ValueError(f"win_rates: expected [N] of 0 to 1, got {win_rates!r}")
    return rates


def _normalised(weights: Floats) -> Floats:
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
