"""Rules of self-play as pure functions: ratings, and whom to play next."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def elo_expected(rating: float, opponent: float) -> float:
    """Return the expected score of a player, 0 to 1: 1 / (1 + 10^((R_b − R_a) / 400)).

    Elo 1978, "The rating of chessplayers, past and present", with the logistic curve.
    """
    return float(1.0 / (1.0 + 10.0 ** ((opponent - rating) / 400.0)))


def elo_update(
    rating: float, opponent: float, score: float, k: float = 16.0
) -> tuple[float, float]:
    """Return both ratings after a game of score 1 (won), 0.5 (drawn) or 0 (lost).

    R' = R + k (score − expected), the opponent's the other way.

    Raises:
        ValueError: the score is not within 0 and 1.
    """
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"score: expected 0 to 1, got {score}")
    change = k * (score - elo_expected(rating, opponent))
    return rating + change, opponent - change


def pfsp_weights(win_rates: npt.ArrayLike, kind: Literal["hard", "var"] = "hard") -> Floats:
    """Return the probability of each opponent by prioritised fictitious self-play.

    Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods: f_hard(x) = (1 − x)²
    prefers those who beat us, f_var(x) = x (1 − x) those of our own strength.

    Args:
        win_rates: our chance to beat each opponent, `[N]`, 0 to 1.
        kind: `hard` or `var`.

    Raises:
        ValueError: no opponents, a rate out of range, or an unknown kind.
    """
    rates = np.asarray(win_rates, np.float64)
    if rates.ndim != 1 or not len(rates) or not ((rates >= 0) & (rates <= 1)).all():  # NaN too
        raise ValueError(f"win_rates: expected [N] of 0 to 1, got {win_rates!r}")
    if kind not in ("hard", "var"):
        raise ValueError(f"kind: expected 'hard' or 'var', got {kind!r}")
    weights = (1 - rates) ** 2 if kind == "hard" else rates * (1 - rates)
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(rates), 1 / len(rates))
