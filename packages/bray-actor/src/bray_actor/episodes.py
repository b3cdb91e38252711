"""What an episode tells besides its rewards: its return, its length, and metrics of its own.

A metric of an episode has a name and a finite number, such as `success: 1`. Each becomes the metric
`episode/<name>`, the mean over the episodes of a second. Names are bounded, because a simulator
over the network may send any.
"""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bray_core import metrics
from bray_core.errors import ConfigError, SpecError

MAX_NAMES = 64
"""Names of episode metrics that one process takes."""
MAX_NAME_CHARS = 64
"""Characters of one name."""
_KEPT = 10_000
"""Newest episodes that are kept until somebody takes them."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class PlayedEpisode(NamedTuple):
    """An episode of training that has ended."""

    episode_return: float
    """Sum of its rewards, as the environment gave them."""
    length: int | None = None
    """Number of its steps; None where the source does not tell."""
    metrics: Mapping[str, float] = {}
    """What the environment said of it, by name."""


@dataclass(slots=True)
class MetricNames:
    """The names of episode metrics that were seen: 64 at most. Thread-safe."""

    known: set[str] = field(default_factory=set)
    """The names so far."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a name is added."""

    def admit(self, origin: str, names: Sequence[str]) -> None:
        """Take names.

        Raises:
            SpecError: they would be too many together with those before.
        """
        if self.known.issuperset(names):
            return
        with self.lock:
            new = [name for name in names if name not in self.known]
            if len(self.known) + len(new) > MAX_NAMES:
                raise SpecError(
                    f"{origin}: expected at most {MAX_NAMES} names in one process, got "
                    f"{new[0]!r} beyond: a name says what is measured, not of which episode"
                )
            self.known.update(new)


_NAMES = MetricNames()


def checked_metrics(given: Any, origin: str = "metrics") -> dict[str, float]:
    """Return an episode's metrics as plain numbers.

    Args:
        given: mapping of names to finite numbers or flags.
        origin: where they come from, for messages.

    Raises:
        SpecError: it is no such mapping, or holds too much; names the key.
    """
    if not isinstance(given, Mapping):
        raise SpecError(f"{origin}: expected numbers by name, got {type(given).__name__}")
    if len(given) > MAX_NAMES:
        raise SpecError(f"{origin}: expected at most {MAX_NAMES} names, got {len(given)}")
    return {_checked_name(name, origin): _number(given[name], origin, name) for name in given}


def check_names(setting: str, names: Sequence[str]) -> None:
    """Refuse names of metrics that a setting lists.

    Raises:
        ConfigError: one is no name of a metric, or there are too many.
    """
    try:
        checked_metrics(dict.fromkeys(names, 0.0), setting)
    except SpecError as error:
        raise ConfigError(str(error)) from error


def _checked_name(name: Any, origin: str) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise SpecError(
            f"{origin}: expected names of letters, digits, _ . and -, of at most "
            f"{MAX_NAME_CHARS} characters, got {name!r:.100}"
        )
    return name


def _number(value: Any, origin: str, name: str) -> float:
    if isinstance(value, np.ndarray | np.generic) and np.size(value) == 1:
        value = np.asarray(value).reshape(()).item()
    if not isinstance(value, int | float):
        got = f"an array {value.shape}" if isinstance(value, np.ndarray) else repr(value)[:100]
        raise SpecError(f"{origin}: {name}: expected a number, got {got}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SpecError(f"{origin}: {name}: expected a finite number, got {value!r:.100}")
    return number


def record_metrics(found: Mapping[str, float], origin: str = "metrics", **labels: str) -> None:
    """Record an episode's metrics as `episode/<name>`.

    Args:
        found: what `checked_metrics` returned.
        origin: where they come from, for messages.
        **labels: labels of the metrics, such as `phase="evaluation"`.

    Raises:
        SpecError: this process has seen too many other names.
    """
    if not found:
        return
    _NAMES.admit(origin, list(found))
    for name, value in found.items():
        metrics.record(f"episode/{name}", value, kind="mean", **labels)


def metrics_of_info(
    info: Mapping[str, Any], row: int | None, names: Sequence[str]
) -> dict[str, float]:
    """Return the metrics in the info of a step that ended an episode.

    They are those of `info["metrics"]`, and the named keys of the info itself.

    Args:
        info: a single environment's info; or a vector environment's, arrays with `_name` masks.
        row: number of the environment in a vector environment; None of a single one.
        names: keys of the info that are metrics, too; one that is absent is left out.

    Raises:
        SpecError: one is no finite number.
    """
    found = dict(_entries(info, row, names))
    inner = _entry(info, "metrics", row)
    if inner is not None:
        if not isinstance(inner, Mapping):
            raise SpecError(
                f"environment: info: metrics: expected numbers by name, got {inner!r:.100}"
            )
        of_row = isinstance(info.get("metrics"), Mapping) and row is not None
        plain = [name for name in inner if not (of_row and _is_mask(inner, name))]
        found |= dict(_entries(inner, row if of_row else None, plain))
    return checked_metrics(found, "environment: info: metrics") if found else {}


def metrics_of_row(
    info: Mapping[str, Any], row: int, mode: str, names: Sequence[str]
) -> dict[str, float]:
    """Return what one environment of a vector environment says of its episode, which has ended.

    Args:
        info: the vector environment's info.
        row: number of the environment.
        mode: when it begins anew: `SameStep`, `NextStep` or `Disabled`.
        names: see `metrics_of_info`.

    Raises:
        SpecError: see `metrics_of_info`.
    """
    told = info.get("final_info", {}) if mode == "SameStep" else info
    if isinstance(told, Mapping):
        return metrics_of_info(told, row, names)
    return metrics_of_info(told[row] or {}, None, names)  # a list, one info of each environment


def _is_mask(info: Mapping[str, Any], name: str) -> bool:
    """Return whether a key is the mask of another, as Gymnasium's vector environments add them."""
    return isinstance(name, str) and name[:1] == "_" and name[1:] in info


def _entries(
    info: Mapping[str, Any], row: int | None, names: Sequence[str]
) -> list[tuple[str, Any]]:
    pairs = ((name, _entry(info, name, row)) for name in names)
    return [(name, value) for name, value in pairs if value is not None]


def _entry(info: Mapping[str, Any], name: str, row: int | None) -> Any:
    """Return what an info says of one environment; None where it says nothing."""
    if name not in info or row is None:
        return info.get(name)
    mask = info.get(f"_{name}")
    if mask is not None and not mask[row]:
        return None
    value = info[name]
    return value if isinstance(value, Mapping) else value[row]


class EpisodeLog:
    """Episodes that ended, kept until they are taken: the newest 10,000. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._episodes: deque[tuple[str, PlayedEpisode]] = deque(maxlen=_KEPT)

    def add(self, session: str, episode: PlayedEpisode) -> None:
        """Add the episode of a session."""
        with self._lock:
            self._episodes.append((session, episode))

    def take(self) -> list[PlayedEpisode]:
        """Return the episodes since the last call, by the names of their sessions."""
        with self._lock:
            found, self._episodes = self._episodes, deque(maxlen=_KEPT)
        return [episode for _, episode in sorted(found, key=lambda pair: pair[0])]
