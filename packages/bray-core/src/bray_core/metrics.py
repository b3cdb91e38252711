"""Metrics: recorded anywhere for under a microsecond or two, gathered once a second.

`record` aggregates in this process. `drain` takes what was recorded since the last drain, to be
sent to another process and `merge`d there; `snapshot` is the newest value of each metric. Names
are `<component>/<what>_<unit>`; `docs/metrics.md` defines each.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from bray_core.errors import ConfigError

Kind: TypeAlias = Literal["mean", "sum", "count", "min", "max", "last"]
"""How values of one window become one: `count` adds up over all windows, `sum` within one."""

_KINDS = ("mean", "sum", "count", "min", "max", "last")
MAX_NAMES = 4096
"""Distinct names with labels; what comes beyond is counted in `metrics/dropped_names`."""


@dataclass(slots=True)
class Sample:
    """What one metric gathered in one window."""

    name: str
    kind: Kind
    count: int
    total: float
    minimum: float
    maximum: float
    last: float

    def add(self, other: Sample) -> None:
        """Merge a later window of the same metric into this one."""
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.last = other.last

    @property
    def value(self) -> float:
        """The window's value by the metric's kind."""
        if self.kind == "mean":
            return self.total / self.count
        if self.kind in ("sum", "count"):
            return self.total
        return {"min": self.minimum, "max": self.maximum, "last": self.last}[self.kind]


class Registry:
    """The metrics of one process. Thread-safe and bounded."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._lock = threading.Lock()
        self._window: dict[str, Sample] = {}
        self._values: dict[str, float] = {}
        self._dropped = 0

    def record(self, name: str, value: float, *, kind: Kind = "mean", **labels: str) -> None:
        """Record one value; labels become part of the name: `name{a=x,b=y}`.

        Raises:
            ConfigError: an unknown kind.
        """
        key = _key(name, labels) if labels else name
        value = float(value)
        with self._lock:
            sample = self._window.get(key)
            if sample is None:
                self._open(key, kind, value)
                return
            sample.count += 1
            sample.total += value
            sample.last = value
            if value < sample.minimum:
                sample.minimum = value
            if value > sample.maximum:
                sample.maximum = value

    def _open(self, key: str, kind: Kind, value: float) -> None:
        if kind not in _KINDS:
            raise ConfigError(f"kind: expected one of {', '.join(_KINDS)}, got {kind!r}")
        if len(self._window) >= self._max_names:
            self._dropped += 1
            return
        self._window[key] = Sample(key, kind, 1, value, value, value, value)

    def drain(self) -> list[Sample]:
        """Return what was recorded since the last drain, and begin a new window."""
        with self._lock:
            window, self._window = self._window, {}
            dropped, self._dropped = self._dropped, 0
        samples = list(window.values())
        if dropped:
            count = float(dropped)
            samples.append(
                Sample("metrics/dropped_names", "count", dropped, count, count, count, count)
            )
        return samples

    def merge(self, samples: Iterable[Sample]) -> None:
        """Add samples drained elsewhere to this registry's current window."""
        with self._lock:
            for sample in samples:
                own = self._window.get(sample.name)
                if own is not None:
                    own.add(sample)
                elif len(self._window) < self._max_names:
                    self._window[sample.name] = replace(sample)  # the caller's stays as it is
                else:
                    self._dropped += sample.count

    def snapshot(self) -> dict[str, float]:
        """Close the window and return the newest value of every metric seen so far."""
        samples = self.drain()
        with self._lock:
            for sample in samples:
                self._keep(sample)
            return dict(self._values)

    def _keep(self, sample: Sample) -> None:
        known = sample.name in self._values or sample.name == "metrics/dropped_names"
        if not known and len(self._values) >= self._max_names:
            self._dropped += sample.count
        elif sample.kind == "count":
            self._values[sample.name] = self._values.get(sample.name, 0.0) + sample.value
        else:
            self._values[sample.name] = sample.value


def _key(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{k}={labels[k]}' for k in sorted(labels))}}}"


_default = Registry()
record = _default.record
drain = _default.drain
merge = _default.merge
snapshot = _default.snapshot
