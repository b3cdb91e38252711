"""Past windows of metrics, in bounded memory: older ones are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bray_core.metrics.sample import Sample

MAX_WINDOWS = 120
"""Number of windows kept; beyond it the older half is merged in pairs. At one window a second, the
last minute stays exact."""


@dataclass(slots=True)
class _Window:
    start: float
    end: float
    samples: dict[str, Sample]


class History:
    """Past windows in the order of time, merged when somebody asks for them. Not thread-safe."""

    def __init__(self, max_windows: int = MAX_WINDOWS) -> None:
        self._max_windows = max_windows
        self._windows: list[_Window] = []

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, samples: Iterable[Sample], start: float, end: float) -> None:
        """Add a window; the samples belong to the history from now on."""
        self._windows.append(_Window(start, end, {sample.key: sample for sample in samples}))
        if len(self._windows) > self._max_windows:
            old = self._windows[: self._max_windows // 4 * 2]
            pairs = zip(old[::2], old[1::2], strict=True)
            self._windows[: len(old)] = [_joined(*pair) for pair in pairs]

    def query(self, name: str, labels: Mapping[str, str], since: float) -> Sample:
        """Return all values of a metric, over every combination of labels that has the given ones.

        A window that ended after `since` counts with all its values.
        """
        gathered = Sample(name, dict(labels))
        for window in self._windows:
            if window.end <= since:
                continue
            for sample in window.samples.values():
                if sample.name == name and labels.items() <= sample.labels.items():
                    gathered.kind = sample.kind
                    gathered.add(sample)
        return gathered

    def gather(self, since: float) -> dict[str, Sample]:
        """Return what every metric gathered, by name and labels; windows count as in `query`."""
        gathered: dict[str, Sample] = {}
        for window in self._windows:
            if window.end > since:
                for key, sample in window.samples.items():
                    if key in gathered:
                        gathered[key].add(sample)
                    else:
                        gathered[key] = sample.copy()
        return gathered


def _joined(first: _Window, second: _Window) -> _Window:
    for key, sample in second.samples.items():
        if key in first.samples:
            first.samples[key].add(sample)
        else:
            first.samples[key] = sample
    return _Window(first.start, second.end, first.samples)
