"""Recording metrics: the values of a process are aggregated there, window by window.

`record` appends to a list; the list becomes a `Sample` (sum, bounds, sketch of quantiles) once it
is long, or when a window ends. A process of a launch hands its windows to the launch's hub
(`bray_core.metrics.hub`) about once a second, so that `query` answers for all of them, wherever it
is asked. Names are `<component>/<what>_<unit>`; `docs/metrics.md` defines each.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from bray_core.errors import ConfigError
from bray_core.metrics.history import History
from bray_core.metrics.media import Media
from bray_core.metrics.sample import KINDS, Kind, Sample, key
from bray_core.settings.choice import check_choice

MAX_NAMES = 4096
"""Number of distinct names with labels; more are counted in `metrics/dropped_names`."""
MAX_NAME = 200
"""Number of characters of a name, or of a label's value."""
MAX_MEDIA = 16
"""Number of pictures and texts that wait to be written; older ones are dropped."""

_DROPPED = "metrics/dropped_names"
_CHUNK = 1024
"""Number of values that wait before they are added to a sample."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)*")
_RESERVED = ("quantile", "worker")
_BAD_VALUE = re.compile(r"[{}=,\n]")


class MetricsQuerier(Protocol):
    """Answers queries in a process that is not the hub, such as the uplink to it."""

    def query(self, name: str, window_s: float, labels: dict[str, str]) -> Sample:
        """See `Registry.query`."""
        ...


class _Series:
    """One metric of one process: values that wait, the window so far, and what came before."""

    __slots__ = ("all_count", "all_total", "kind", "labels", "name", "unsent", "value", "values")

    def __init__(self, name: str, labels: dict[str, str], kind: Kind) -> None:
        self.name = name
        self.labels = labels
        self.kind = kind
        self.values: list[float] = []
        self.unsent: Sample | None = None
        self.value = 0.0
        self.all_count = 0
        self.all_total = 0.0


class _Shared(threading.local):
    """Labels that all metrics of a thread get."""

    labels: dict[str, str] = {}  # noqa: RUF012  the process's own; a thread has another for a while


class Registry:
    """The metrics of one process. Thread-safe, bounded; `record` waits for nobody."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._shared = _Shared()
        self.elsewhere: MetricsQuerier | None = None
        """Answers queries where this process is not the hub; None in the hub and without one."""
        self.on_first: Callable[[], None] | None = None
        """Called once, when the first value is recorded."""
        self.reset()

    def reset(self) -> None:
        """Forget everything, in a process that was just forked: a lock may have been held."""
        self._naming = threading.RLock()  # a finaliser may record while this thread holds it
        self._folding = threading.Lock()
        self._forget()

    def clear(self) -> None:
        """Forget everything."""
        with self._naming, self._folding:
            self._forget()

    def _forget(self) -> None:
        self._lookup: dict[Any, _Series] = {}
        self._series: dict[str, _Series] = {}
        self._window: dict[str, Sample] = {}
        self._history = History()
        self._since = time.monotonic()
        self._media: list[Media] = []

    # Recording.

    def record(self, name: str, value: Any, *, kind: Kind = "mean", **labels: str) -> None:
        """Record a value, or an array of them; labels tell metrics of one name apart.

        Args:
            name: `<component>/<what>_<unit>`.
            value: A number, or an array `[...]` of which each element counts.
            kind: How the values of a window become one; the same at each call.
            labels: Labels such as `map="desert"`. Each combination is a metric of its own: use few.

        Raises:
            ConfigError: The name, kind, a label or the value is not valid.
        """
        if shared := self._shared.labels:
            labels = {**shared, **labels}
        series = self._lookup.get((name, *labels.items()) if labels else name)
        if series is None or series.kind != kind:
            series = self._find(name, labels, kind)
            if series is None:
                return
        values = series.values
        # No lock: appending and cutting off the front are each one step of the interpreter.
        if type(value) is float:
            values.append(value)
        else:
            values.extend(_numbers(value))
        if len(values) >= _CHUNK and self._folding.acquire(blocking=False):
            try:
                self._fold(series)
            finally:
                self._folding.release()

    @contextmanager
    def labelled(self, **labels: str) -> Iterator[None]:
        """Give labels to all that this thread records inside the context.

        Args:
            labels: Labels such as `trainer="hunter"`, which tell several of a kind apart.
        """
        before = self._shared.labels
        self._shared.labels = {**before, **labels}
        try:
            yield
        finally:
            self._shared.labels = before

    def label_process(self, **labels: str) -> None:
        """Give labels to all that this process records from now on, in threads of its own too."""
        _Shared.labels = {**_Shared.labels, **labels}

    def _find(self, name: str, labels: dict[str, str], kind: Kind) -> _Series | None:
        """Return a metric's series, made if it is new; None if there are too many."""
        _check(name, labels, kind)
        full = key(name, labels)
        if (on_first := self.on_first) is not None:
            self.on_first = None
            on_first()
        with self._naming:
            series = self._series.get(full)
            if series is None:
                series = self._make(full, name, labels, kind)
                if series is None:
                    return None
            if len(self._lookup) < 2 * self._max_names:  # the same labels may come in any order
                self._lookup[(name, *labels.items()) if labels else name] = series
        if series.kind != kind:
            raise ConfigError(f"kind: {full} is recorded as {series.kind!r}, got {kind!r}")
        return series

    def _make(self, full: str, name: str, labels: dict[str, str], kind: Kind) -> _Series | None:
        num_names = len(self._series) - (_DROPPED in self._series)
        if num_names >= self._max_names and name != _DROPPED:
            self.record("metrics/dropped_names", 1.0, kind="count")
            return None
        series = self._series[full] = _Series(name, dict(labels), kind)
        return series

    def _fold(self, series: _Series) -> None:
        """Make the values that wait part of the window. Called with `_folding` held."""
        count = len(series.values)
        if not count:
            return
        values = series.values[:count]
        del series.values[:count]
        self._open(series).add_values(values)

    def _open(self, series: _Series) -> Sample:
        full = key(series.name, series.labels)
        sample = self._window.get(full)
        if sample is None:
            sample = self._window[full] = Sample(series.name, series.labels, series.kind)
        return sample

    def merge(self, samples: Iterable[Sample]) -> None:
        """Add samples drained elsewhere to this registry's current window."""
        for sample in samples:
            try:
                series = self._find(sample.name, sample.labels, sample.kind)
            except ConfigError:  # of another kind there: the first one stays
                series = self._series.get(sample.key)
                if series is None:
                    self.record("metrics/dropped_names", 1.0, kind="count")
            if series is not None:
                with self._folding:
                    self._open(series).add(sample)

    # Reading.

    def roll(self) -> list[Sample]:
        """End the window and return what it gathered; it also goes into the history."""
        with self._folding:
            for series in list(self._series.values()):
                self._fold(series)
            window, self._window = self._window, {}
            samples = list(window.values())
            for full, sample in window.items():
                self._note(self._series[full], sample)
            start, self._since = self._since, time.monotonic()
            if samples:
                self._history.add(samples, start, self._since)
        return [sample.copy() for sample in samples]

    def _note(self, series: _Series, sample: Sample) -> None:
        series.all_count += sample.count
        series.all_total += sample.total
        series.value = series.all_total if series.kind == "count" else sample.value
        if series.unsent is None:
            series.unsent = sample.copy()
        else:
            series.unsent.add(sample)

    def drain(self) -> list[Sample]:
        """End the window and return all that was not drained before, to be `merge`d elsewhere."""
        self.roll()
        samples = []
        with self._folding:
            for series in list(self._series.values()):
                if series.unsent is not None:
                    samples.append(series.unsent)
                    series.unsent = None
        return samples

    def restore(self, samples: Iterable[Sample]) -> None:
        """Take back what was drained and did not arrive."""
        with self._folding:
            for sample in samples:
                series = self._series[sample.key]
                if series.unsent is not None:
                    sample.add(series.unsent)
                series.unsent = sample

    def snapshot(self) -> dict[str, float]:
        """End the window and return the newest value of every metric seen so far."""
        self.roll()
        return {full: s.value for full, s in list(self._series.items()) if s.all_count}

    def query(self, name: str, window_s: float, **labels: str) -> Sample:
        """Return the recent values of a metric, from all processes of this launch.

        Args:
            name: Name of the metric.
            window_s: Seconds to look back, rounded up to whole windows of about a second.
            labels: Labels that a metric must have to count; it may have more.

        Returns:
            Its `count`, `total`, `mean`, `minimum`, `maximum`, `last` and `quantile(q)`; a count
            of 0 where nothing was recorded.

        Raises:
            ConfigError: `window_s` is not above 0.
            DeadlineError: The hub of the launch does not answer.
        """
        if not window_s > 0:
            raise ConfigError(f"window_s: expected more than 0 seconds, got {window_s}")
        _check(name, labels, "mean")
        if self.elsewhere is not None:
            return self.elsewhere.query(name, window_s, labels)
        self.roll()
        with self._folding:
            return self._history.query(name, labels, time.monotonic() - window_s)

    def recent(self, window_s: float) -> list[Recent]:
        """Return the recent values of each metric, and its totals since the beginning."""
        self.roll()
        with self._folding:
            gathered = self._history.gather(time.monotonic() - window_s)
            return [
                Recent(gathered.get(full) or Sample(s.name, s.labels, s.kind), s)
                for full, s in list(self._series.items())
                if s.all_count
            ]

    # Pictures and texts.

    def show(self, name: str, content: Any, *, frames_per_s: float = 30.0) -> None:
        """Show a text, picture or video in TensorBoard.

        At most 16 of them wait to be written; older ones are dropped.

        Args:
            name: `<component>/<what>`.
            content: Text (Markdown), pixels of an image `[H, W]` or `[H, W, C]`, or of a video
                `[T, H, W, C]`; uint8, C is 1, 3 or 4.
            frames_per_s: Frames per second of a video.

        Raises:
            ConfigError: The name or the content is not valid.
        """
        _check(name, {}, "last")
        self.add_media([Media.from_content(name, content, frames_per_s)])

    def add_media(self, media: Iterable[Media]) -> None:
        """Add pictures and texts that another process sent."""
        with self._naming:
            self._media = [*self._media, *media][-MAX_MEDIA:]

    def take_media(self) -> list[Media]:
        """Return the pictures and texts since the last call."""
        with self._naming:
            media, self._media = self._media, []
        return media


class Recent(NamedTuple):
    """A metric's last windows together, and its totals."""

    sample: Sample
    series: _Series


def is_name(name: object) -> bool:
    """Return whether a metric may be called so, such as `trainer/entropy`."""
    return isinstance(name, str) and len(name) <= MAX_NAME and bool(_NAME.fullmatch(name))


def _check(name: str, labels: dict[str, str], kind: str) -> None:
    if not is_name(name):
        raise ConfigError(
            f"name: expected <component>/<what> of letters, digits, '_', '-' and '.', got {name!r}"
        )
    check_choice("kind", kind, KINDS)
    for label, value in labels.items():
        if not isinstance(value, str) or _BAD_VALUE.search(value) or len(value) > MAX_NAME:
            raise ConfigError(
                f"{label}: expected a short text without '{{', '}}', '=', ',', got {value!r}"
            )
        if label in _RESERVED:
            raise ConfigError(f"{label}: is a label of bray's own: choose another")


def _numbers(value: Any) -> list[float]:
    """Return the elements of a value that is no float.

    Raises:
        ConfigError: The value is neither a number nor an array of them.
    """
    if isinstance(value, int):  # also bool
        return [float(value)]
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged; a tensor on a GPU or in a graph
        array = None
    if array is None or array.dtype.kind not in "biuf":
        raise ConfigError(f"value: expected a number or an array of them, got {value!r}")
    numbers: list[float] = array.astype(np.float64).ravel().tolist()
    return numbers


_default = Registry()
os.register_at_fork(after_in_child=_default.reset)  # the parent reports what it has recorded
record = _default.record
labelled = _default.labelled
label_process = _default.label_process
query = _default.query
show = _default.show
drain = _default.drain
merge = _default.merge
snapshot = _default.snapshot


def registry() -> Registry:
    """Return the registry of this process, which the functions of this module use."""
    return _default
