"""Population-based training (PBT) as a rule: who copies whom, and what changes then.

Several runs train beside each other. Now and then the worst take over the weights of the best and
go on with changed hyperparameters, so that a schedule of these is found in one training. Jaderberg
et al. 2017, "Population based training of neural networks". Pure functions over scores and
hyperparameters; copying weights is the caller's part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from bray_algo.validation.scalars import check_fraction, check_number

Hyperparameters = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class HyperparameterRange:
    """Range in which a hyperparameter may lie.

    Raises:
        ValueError: the bounds are not in order, or not positive on a log scale.
    """

    low: float
    """Least value."""
    high: float
    """Greatest value."""
    scale: Literal["log", "linear"] = "log"
    """How new values are drawn: evenly over the logarithm, or over the value."""

    def __post_init__(self) -> None:
        if self.scale not in ("log", "linear"):
            raise ValueError(f"scale: expected 'log' or 'linear', got {self.scale!r}")
        check_number("low", self.low)
        check_number("high", self.high)
        if not self.low < self.high or (self.scale == "log" and not self.low > 0):
            raise ValueError(
                f"low, high: expected low < high, positive if scale='log', "
                f"got {self.low}, {self.high}"
            )

    def draw(self, rng: np.random.Generator) -> float:
        """Return a new value from the whole range."""
        if self.scale == "linear":
            return float(rng.uniform(self.low, self.high))
        return self.clip(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))

    def clip(self, value: float) -> float:
        """Return the value, held within the range."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberUpdate:
    """What one member of the population is told to do next."""

    source: int
    """Number of the member whose weights it goes on with; its own number: it stays as it is."""
    hyperparameters: dict[str, float]
    """Hyperparameters that it goes on with: its own if it stays, else the source's, explored."""


def exploit_truncation(
    scores: npt.ArrayLike, rng: np.random.Generator, *, fraction: float = 0.2
) -> list[int]:
    """Return each member's source, by truncation selection (§4.1.1).

    The worst `fraction` each copy one of the best `fraction`, drawn evenly. In a population of two
    or more that is one at least; nobody copies a score that is not above its own.

    Args:
        scores: Scores of the members, `[P]`, the more the better; NaN (diverged) is worst.
        rng: Source of the draws.
        fraction: Share of the members that copy, above 0 to 0.5; usually 0.2. Large ones soon leave
            one family alone; small ones keep bad members for long.

    Raises:
        ValueError: no members, or the fraction is out of range.
    """
    known = _scores(scores)
    if not 0.0 < fraction <= 0.5:
        raise ValueError(f"fraction: expected above 0 to 0.5, got {fraction}")
    # Half at most: nobody may be among the best and the worst.
    count = min(max(1, int(len(known) * fraction)), len(known) // 2)
    order = np.argsort(known, kind="stable")
    sources = list(range(len(known)))
    for member in order[:count]:
        source = int(rng.choice(order[len(known) - count :]))
        if known[source] > known[member]:
            sources[member] = source
    return sources


def exploit_tournament(scores: npt.ArrayLike, rng: np.random.Generator) -> list[int]:
    """Return each member's source, by binary tournament (§4.3).

    Each member meets another, drawn evenly, and copies it if its score is above its own. Arguments
    and errors are those of `exploit_truncation`.
    """
    known = _scores(scores)
    sources = list(range(len(known)))
    for member in range(len(known) if len(known) > 1 else 0):
        other = int(rng.integers(len(known) - 1))
        # Skips the member itself, so that all others are as likely.
        other += other >= member
        if known[other] > known[member]:
            sources[member] = other
    return sources


def explore(
    hyperparameters: Hyperparameters,
    ranges: Mapping[str, HyperparameterRange],
    rng: np.random.Generator,
    *,
    factors: Sequence[float] = (0.8, 1.2),
    resample: float = 0.0,
) -> dict[str, float]:
    """Return changed hyperparameters: each times one of the factors, or drawn anew (§4.1.1).

    Args:
        hyperparameters: Values by name.
        ranges: Ranges of those to be changed, by name; the others stay.
        rng: Source of the draws.
        factors: Positive factors, of which one is drawn evenly for each hyperparameter; usually 0.8
            and 1.2. Factors far from 1 forget what was found, those near 1 search slowly.
        resample: Probability to draw anew from the whole range instead, 0 to 0.25.

    Raises:
        ValueError: a range names no hyperparameter, or a number is out of range.
    """
    unknown = sorted(ranges.keys() - hyperparameters.keys())
    if unknown:
        raise ValueError(f"ranges: expected names of {sorted(hyperparameters)}, got {unknown}")
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ValueError(f"factors: expected positive numbers, got {list(factors)}")
    check_fraction("resample", resample)
    changed = dict(hyperparameters)
    for name, allowed in ranges.items():
        if rng.random() < resample:
            changed[name] = allowed.draw(rng)
        else:
            changed[name] = allowed.clip(hyperparameters[name] * float(rng.choice(factors)))
    return changed


def evolve(
    scores: npt.ArrayLike,
    hyperparameters: Sequence[Hyperparameters],
    ranges: Mapping[str, HyperparameterRange],
    rng: np.random.Generator,
    *,
    fraction: float = 0.2,
    resample: float = 0.0,
) -> list[MemberUpdate]:
    """Return what each member does next: truncation selection, then `explore` for who copied.

    Algorithm 1. Arguments and errors are those of `exploit_truncation` and `explore`.
    """
    sources = exploit_truncation(scores, rng, fraction=fraction)
    if len(hyperparameters) != len(sources):
        raise ValueError(
            f"hyperparameters: expected one for each of {len(sources)} scores, "
            f"got {len(hyperparameters)}"
        )
    return [
        MemberUpdate(
            source=source,
            hyperparameters=dict(hyperparameters[member])
            if source == member
            else explore(hyperparameters[source], ranges, rng, resample=resample),
        )
        for member, source in enumerate(sources)
    ]


def _scores(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    known = np.asarray(scores, np.float64)
    if known.ndim != 1 or not len(known):
        raise ValueError(f"scores: expected [P], not empty, got shape {known.shape}")
    return np.where(np.isnan(known), -np.inf, known)
