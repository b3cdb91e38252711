"""The best version so far, and the one that challenges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bray_algo.league.selfplay import Verdict, gate
from bray_algo.scalars import check_fraction


@dataclass(slots=True, kw_only=True)
class Champion:
    """Latest against best, by names: the challenger is promoted when it passes the gate.

    Examples:
        >>> champion = Champion(best="policy-1")
        >>> champion.challenge("policy-2")
        >>> verdict = "play"
        >>> while verdict == "play":  # games of policy-2 against policy-1, all won
        ...     verdict = champion.record(1.0)
        >>> verdict, champion.best
        ('promote', 'policy-2')
    """

    best: str
    """Whom to train against, and to deploy."""
    threshold: float = 0.5
    """Win rate against the best that is to be exceeded, 0 to 1. AlphaGo Zero: 0.55."""
    confidence: float = 0.95
    """One-sided, that a promotion or a rejection before `max_games` is right; 0.5 to 1."""
    max_games: int = 400
    """Games after which an undecided challenger is rejected."""
    look_every: int = 20
    """Games between two verdicts; each look costs confidence (`gate`, `num_looks`)."""
    challenger: str | None = None
    """The name that is being tried, None while there is none."""
    score: float = 0.0
    """The challenger's wins plus half its draws against the best."""
    games: int = 0
    """Games of the two."""

    def __post_init__(self) -> None:
        if not (1 <= self.look_every <= self.max_games):
            raise ValueError(
                f"look_every: expected 1 to max_games={self.max_games}, got {self.look_every}"
            )
        self._verdict()  # checks the numbers

    def challenge(self, name: str) -> None:
        """Begin to try another version; the games of one before it count no more."""
        if name == self.best:
            raise ValueError(f"name: expected another than the best, got {name!r}")
        self.challenger, self.score, self.games = name, 0.0, 0

    def record(self, score: float) -> Verdict:
        """Count a game of the challenger against the best: 1 it won, 0.5 a draw, 0 it lost.

        Returns:
            `promote`: it is the best now; `reject`: it is not to be tried on; `play`: go on.

        Raises:
            ValueError: there is no challenger, or the score is not within 0 and 1.
        """
        if self.challenger is None:
            raise ValueError("challenger: expected one: call challenge(name) first")
        check_fraction("score", score)
        self.score += score
        self.games += 1
        if self.games % self.look_every and self.games < self.max_games:
            return "play"
        verdict = self._verdict()
        if verdict == "promote":
            self.best = self.challenger
        if verdict != "play":
            self.challenger = None
        return verdict

    def state(self) -> dict[str, Any]:
        """Return all fields, as JSON takes them; `Champion(**state)` goes on there."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Champion:
        """Return what `state` described."""
        return cls(**state)

    def _verdict(self) -> Verdict:
        return gate(
            self.score,
            self.games,
            threshold=self.threshold,
            confidence=self.confidence,
            max_games=self.max_games,
            num_looks=-(-self.max_games // self.look_every),
        )
