"""Numbers of AlphaStar's league: shares of the games, win rates and periods.

Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning",
Methods, "Multi-agent learning", and its supplement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueRules:
    """Numbers of the rules; the defaults are the paper's, unless a line says otherwise."""

    self_play: float = 0.35
    """Share of a main learner's games against the current main learners, itself included. More
    finds new play sooner; with too much the learner forgets what the past played."""
    pfsp: float = 0.5
    """Share of its games against all frozen players, by f_hard. The rest is against those that it
    has forgotten how to beat."""
    forgotten_win_rate: float = 0.7
    """Win rate against a frozen main player below which it counts as forgotten (supplement)."""
    strong_exploiter_win_rate: float = 0.3
    """Win rate against a frozen main exploiter below which it counts as forgotten (supplement)."""
    struggling_win_rate: float = 0.3
    """Win rate against a main learner below which a main learner plays that one's frozen copies
    by f_var instead: opponents of its own strength teach more (supplement)."""
    curriculum_win_rate: float = 0.2
    """Win rate below which a main exploiter plays frozen main players by f_var; the supplement has
    0.1."""
    curriculum: float = 0.5
    """Share of such an exploiter's games that are against them; the supplement has 1."""
    freeze_win_rate: float = 0.7
    """Win rate of an exploiter against each of its targets above which it is frozen."""
    main_period: float = 2e9
    """Steps between two copies of a main learner. Short ones fill the league with players that are
    nearly the same; long ones leave gaps in its history."""
    main_exploiter_timeout: float = 4e9
    """Steps after which a main exploiter is frozen at the latest."""
    league_exploiter_timeout: float = 2e9
    """Steps after which a league exploiter is frozen at the latest."""
    league_exploiter_reset: float = 0.25
    """Probability that a frozen league exploiter begins anew; a main exploiter always does."""
    power: float = 2.0
    """Exponent p of f_hard (1 − x)^p; larger ones play the hardest opponents alone."""
    decay: float = 0.99
    """Factor on the earlier games of two players after each further one (supplement): 0.99 keeps
    about the last 100. Small ones follow a learner fast and are noisy; 1 forgets nothing."""
    prior_games: float = 10.0
    """Number of games at 0.5 added to every win rate, so that one lucky game neither freezes a
    learner nor hides an opponent for good. Not the paper's: it has 0, and billions of steps."""

    def __post_init__(self) -> None:
        for name, value in _fields(self).items():
            is_free = name.endswith(("_period", "_timeout")) or name in ("power", "prior_games")
            if not 0 <= value < math.inf or (not is_free and value > 1):
                raise ValueError(
                    f"{name}: expected {'0 or more' if is_free else '0 to 1'}, got {value}"
                )
        if self.self_play + self.pfsp > 1 + 1e-9:
            raise ValueError(
                f"self_play + pfsp: expected at most 1, got {self.self_play} + {self.pfsp}"
            )


def _fields(rules: LeagueRules) -> dict[str, float]:
    return {name: getattr(rules, name) for name in LeagueRules.__slots__}
