"""The best version so far, the one that challenges it, and when it takes the title."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bray_algo.league.intervals import wilson_interval
from bray_algo.validation.scalars import check_count, check_fraction, check_limit

PromotionVerdict = Literal["promote", "reject", "play"]


@dataclass(slots=True, kw_only=True)
class Champion:
    """Latest against best, by names: a challenger is promoted when it is surely the better one.

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
    """Name of the best version: the one to train against, and to deploy."""
    threshold: float = 0.5
    """Win rate against the best that a challenger must exceed, 0 to 1. AlphaGo Zero: 0.55."""
    confidence: float = 0.95
    """One-sided confidence that a verdict before `max_games` is right; above 0.5, below 1."""
    max_games: int = 400
    """Number of games after which an undecided challenger is rejected."""
    look_every: int = 20
    """Games between two verdicts. Fewer may decide sooner, but each look costs confidence, and so
    more games (`num_looks` of `promotion_verdict`)."""
    challenger: str | None = None
    """Name of the version that is being tried; None while there is none."""
    score: float = 0.0
    """The challenger's wins plus half its draws against the best."""
    games: int = 0
    """Number of games that the challenger has played against the best."""

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

    def record(self, score: float) -> PromotionVerdict:
        """Count a game of the challenger against the best: 1 it won, 0.5 a draw, 0 it lost.

        Returns:
            `promote`: the challenger is the best now; `reject`: it has failed, try another; `play`:
            play on.

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
        """Return all fields, as JSON takes them, for `from_state`."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Champion:
        """Return the champion and challenger that `state` described."""
        return cls(**state)

    def _verdict(self) -> PromotionVerdict:
        return promotion_verdict(
            self.score,
            self.games,
            threshold=self.threshold,
            confidence=self.confidence,
            max_games=self.max_games,
            # Rounded up: the last look may come early.
            num_looks=-(-self.max_games // self.look_every),
        )


def promotion_verdict(
    score: float,
    games: float,
    *,
    threshold: float = 0.5,
    confidence: float = 0.95,
    max_games: float = 400,
    num_looks: int = 1,
) -> PromotionVerdict:
    """Return whether a challenger takes the champion's place.

    `promote` once its win rate lies above the threshold with this confidence (Wilson's lower
    bound), `reject` once it lies below it or after `max_games`, `play` until then. AlphaGo Zero
    (Silver et al. 2017, Methods, "Evaluator") has 55 % of 400 games without a bound.

    Args:
        score: Wins plus half the draws of the challenger against the champion.
        games: Number of games between the two.
        threshold: Win rate to exceed, 0 to 1; usually 0.5 to 0.55. Higher ones keep a champion
            that is no longer the best.
        confidence: One-sided confidence in either verdict, above 0.5 and below 1; usually 0.95.
            The higher, the more games are played before one is known.
        max_games: Number of games after which an undecided challenger is rejected; `math.inf` is
            no limit.
        num_looks: Number of times the verdict is asked for while the games go on. Each look is one
            more chance to pass by luck; Bonferroni's correction keeps the confidence for all of
            them together.

    Raises:
        ValueError: a number is out of its range.
    """
    check_fraction("threshold", threshold)
    check_count("num_looks", num_looks)
    check_limit("max_games", max_games)
    if not 0.5 < confidence < 1:
        raise ValueError(f"confidence: expected above 0.5, below 1, got {confidence}")
    # One-sided at either bound, shared out over all looks (Bonferroni).
    two_sided = 1 - 2 * (1 - confidence) / num_looks
    lower, upper = wilson_interval(score, games, two_sided)
    if lower > threshold:
        return "promote"
    return "reject" if upper < threshold or games >= max_games else "play"
