"""The values of one metric in one window: their number, sum, bounds and distribution."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
import numpy as np

from bray_core.errors import ConfigError
from bray_core.metrics import sketch

Kind: TypeAlias = Literal["mean", "sum", "count", "min", "max", "last"]
"""How values of one window become one: `count` adds up over all windows, `sum` within one."""
KINDS = get_args(Kind)

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Bin = Annotated[int, msgspec.Meta(ge=-sketch.MAX_BIN, le=sketch.MAX_BIN)]


class Sample(msgspec.Struct):
    """The values of one metric over some time: their number, sum, bounds and distribution."""

    name: Annotated[str, msgspec.Meta(max_length=500)]
    labels: dict[str, str] = {}
    kind: Kind = "mean"
    count: _Count = 0
    total: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    last: float = math.nan
    bins: dict[_Bin, _Count] = {}
    """Number of values in each bin of the quantile sketch (`bray_core.metrics.sketch`)."""

    def add_values(self, values: list[float]) -> None:
        """Add values, the newest last."""
        array = np.array(values, np.float64)
        self.count += len(values)
        with np.errstate(invalid="ignore"):  # inf - inf
            self.total += float(array.sum())
        self.minimum = min(self.minimum, float(np.fmin.reduce(array)))
        self.maximum = max(self.maximum, float(np.fmax.reduce(array)))
        self.last = values[-1]
        sketch.merge(self.bins, sketch.bins(array))

    def add(self, other: Sample) -> None:
        """Merge a later window of the same metric into this one."""
        if not other.count:
            return
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.last = other.last
        sketch.merge(self.bins, other.bins)

    def copy(self) -> Sample:
        """Return a copy that shares nothing with this sample."""
        return msgspec.structs.replace(self, bins=dict(self.bins))

    @property
    def key(self) -> str:
        """The name with its labels: `name{a=x,b=y}`."""
        return key(self.name, self.labels)

    @property
    def mean(self) -> float:
        """Mean of the values; NaN where there are none."""
        return self.total / self.count if self.count else math.nan

    @property
    def value(self) -> float:
        """Value of the window by the metric's kind."""
        if self.kind in ("sum", "count"):
            return self.total
        values = {"mean": self.mean, "min": self.minimum, "max": self.maximum, "last": self.last}
        return values[self.kind]

    def quantile(self, q: float) -> float:
        """Return a quantile, within one per cent of itself; NaN where there is no value.

        Raises:
            ConfigError: `q` is not from 0 to 1.
        """
        if not 0 <= q <= 1:
            raise ConfigError(f"q: expected 0 to 1, got {q}")
        value = sketch.quantile(self.bins, q)
        return min(max(value, self.minimum), self.maximum) if self.bins else value


def key(name: str, labels: dict[str, str]) -> str:
    """Return a metric's name with its labels, in their order."""
    if not labels:
        return name
    return f"{name}{{{','.join(f'{k}={labels[k]}' for k in sorted(labels))}}}"
