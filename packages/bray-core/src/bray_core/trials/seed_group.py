"""Trials of one template that differ by their seed, and what they say together.

`bray train … --seeds 5` names them `walker-1` to `walker-5`: trials whose names differ by the last
number alone are a group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

_NAME = re.compile(r"(.+)-\d{1,9}")
LEAST_TRIALS = 2
"""Trials that make a group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSpread:
    """One figure over the seeds of a group."""

    num_seeds: int
    """Seeds that have the figure."""
    median: float
    """Median of the seeds."""
    interquartile_mean: float
    """Mean of the middle half: a quarter of the seeds, rounded down, is left out at each end.

    Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    """
    least: float
    """The worst seed's figure, if more is better."""
    greatest: float
    """The best seed's figure, if more is better."""


def spread(values: Iterable[float]) -> SeedSpread | None:
    """Return what seeds say together; None where none has a finite figure."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return None
    cut = len(known) // 4
    return SeedSpread(
        num_seeds=len(known),
        median=median(known),
        interquartile_mean=fmean(known[cut : len(known) - cut]),
        least=known[0],
        greatest=known[-1],
    )


def group_of(name: str) -> str | None:
    """Return the name of the group that a trial's name says, without its number."""
    found = _NAME.fullmatch(name)
    return found[1] if found else None


def groups(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the groups among trials: their names by the name of the group."""
    found: dict[str, list[str]] = {}
    for name in names:
        if (group := group_of(name)) is not None:
            found.setdefault(group, []).append(name)
    return {
        group: sorted(members, key=lambda name: (len(name), name))
        for group, members in found.items()
        if len(members) >= LEAST_TRIALS
    }
