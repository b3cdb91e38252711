"""The numbers of AlphaStar's league."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["main", "main_exploiter", "league_exploiter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueRules:
    """The numbers of the rules; the defaults are the paper's, unless a line says otherwise."""

    self_play: float = 0.35
    """Share of a main learner's games against the current main learners, itself included."""
    pfsp: float = 0.5
    """Share against all frozen players, by f_hard. The rest is against the forgotten ones."""
    forgotten_win_rate: float = 0.7
    """A frozen main player below this is forgotten (supplement)."""
    strong_exploiter_win_rate: float = 0.3
    """A frozen main exploiter below this is strong (supplement)."""
    struggling_win_rate: float = 0.3
    """Below this against a main learner, another plays its frozen copies by f_var (supplement)."""
    curriculum_win_rate: float = 0.2
    """Below this a main exploiter plays frozen main players by f_var; the supplement has 0.1 …"""
    curriculum: float = 0.5
    """… in this share of those games; the supplement has 1."""
    freeze_win_rate: float = 0.7
    """An exploiter that wins more than this against each of its targets is frozen."""
    main_period: float = 2e9
    """Steps between two copies of a main learner."""
    main_exploiter_timeout: float = 4e9
    """Steps after which a main exploiter is frozen at the latest."""
    league_exploiter_timeout: float = 2e9
    """Steps after which a league exploiter is frozen at the latest."""
    league_exploiter_reset: float = 0.25
    """Probability that a frozen league exploiter begins anew; a main exploiter always does."""
    power: float = 2.0
    """p of f_hard (1 − x)^p."""
    decay: float = 0.99
    """Of earlier games of two players after each further one (supplement)."""
    prior_games: float = 10.0
    """Games at 0.5 in every win rate, so that one lucky game neither freezes a learner nor hides an
    opponent for good. Not the paper's: it has 0, and billions of steps."""

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
