"""How a search goes: how many trials, how many at once, which come next, which end early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bray_core.errors import ConfigError
from bray_core.settings.ranges import PositiveInt, Range, check_fields

Sampler: TypeAlias = Literal["tpe", "random", "gp", "grid"]
Pruner: TypeAlias = Literal["median", "halving", "hyperband", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOptions:
    """Settings of a search."""

    trials: PositiveInt = 50
    """Trials of the whole search, those of an earlier launch included."""
    jobs: Annotated[int, Range(minimum=1, maximum=1000)] = 1
    """Trials that run at the same time, each in a process of its own."""
    sampler: Sampler = "tpe"
    """What chooses settings: `tpe` and `gp` learn from the trials before, `random` does not, `grid`
    tries all choices one after the other."""
    pruner: Pruner = "median"
    """What ends trials early that do worse than others did: `median`, `halving`, `hyperband`, or
    `none`."""
    evaluations: Annotated[int, Range(minimum=1, maximum=1000)] = 10
    """Evaluations of a trial, at equal distances over its budget of frames, by which it is pruned.
    Each costs the episodes that the goal says."""
    seed: Annotated[int, Range(minimum=0, maximum=2**31)] = 1
    """Seed of the sampler. The trials have the seed of the template."""
    runtime: Literal["local", "ray"] = "local"
    """Where a trial's parts run: in its process, or as workers on a Ray cluster."""
    address: str | None = None
    """Address of a running Ray cluster; None starts one for the trial."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.address is not None and self.runtime != "ray":
            raise ConfigError("address: is for runtime ray, got runtime local: add --runtime ray")
        if self.runtime == "ray" and self.address is None and self.jobs > 1:
            raise ConfigError(
                f"jobs: expected 1 where each trial starts a Ray of its own, got {self.jobs}: name "
                "a running cluster with --address, or let Ray Tune share it out (`bray.tune`)"
            )
