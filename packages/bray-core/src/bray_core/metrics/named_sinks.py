"""The sinks that a template or a program names, found by the entry point group `bray.sinks`.

An entry is a name, `csv`, or a name with settings, `{wandb: {project: walker}}`; a mapping of names
to settings is taken in place of a list of entries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from bray_core.config import from_mapping
from bray_core.errors import ConfigError
from bray_core.metrics.run_sinks import RunSink, SinkRun
from bray_core.settings.choice import closest

GROUP = "bray.sinks"
SinkEntry: TypeAlias = str | Mapping[str, Any]
SinkEntries: TypeAlias = Sequence[SinkEntry] | Mapping[str, Any]
"""What `sinks:` of a template holds."""

_MAX_SINKS = 20


@dataclass(frozen=True, slots=True)
class NamedSink:
    """A sink that a run writes to, with its settings checked."""

    name: str
    """Name of its entry point."""
    kind: Any
    """Class of the sink, of which `Config` is the class of its settings."""
    config: Any
    """Settings, of the class's `Config`."""

    @property
    def every_s(self) -> float:
        """Least number of seconds between two writes; 0 where its settings have none."""
        return float(getattr(self.config, "every_s", 0.0))

    def check(self) -> None:
        """Refuse a sink that cannot be opened here, such as one whose library is not installed.

        Raises:
            BrayError: What the sink's own `check` says.
        """
        if (check := getattr(self.kind, "check", None)) is not None:
            check(self.config)

    def open(self, run: SinkRun) -> RunSink:
        """Open the sink."""
        made: RunSink = self.kind(run, self.config)
        return made


def check_entries(entries: SinkEntries) -> None:
    """Refuse what cannot be a list of sinks, without looking at what is installed.

    Raises:
        ConfigError: Begins with `sinks`.
    """
    _split(entries)


def find_sinks(entries: SinkEntries) -> list[NamedSink]:
    """Return the sinks that entries name, with their settings.

    Raises:
        ConfigError: There is no such sink, or it does not take its settings.
    """
    return [_found(name, settings) for name, settings in _split(entries).items()]


def is_named(kind: Any) -> bool:
    """Return whether a sink is written where a run names it alone: its class has a `Config`."""
    return dataclasses.is_dataclass(getattr(kind, "Config", None))


def _split(entries: SinkEntries) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each sink by its name."""
    listed: Sequence[SinkEntry]
    listed = [{n: s} for n, s in entries.items()] if isinstance(entries, Mapping) else entries
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise ConfigError(f"sinks: expected a list such as [csv, wandb], got {entries!r:.100}")
    if len(listed) > _MAX_SINKS:
        raise ConfigError(f"sinks: expected {_MAX_SINKS} at most, got {len(listed)}")
    found: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(listed):
        name, settings = _pair(f"sinks[{index}]", entry)
        if name in found:
            raise ConfigError(f"sinks[{index}]: {name!r} is named twice: remove one")
        found[name] = settings
    return found


def _pair(where: str, entry: SinkEntry) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ConfigError(
            f"{where}: expected a name such as csv, or one name with settings such as "
            f"{{wandb: {{project: walker}}}}, got {entry!r:.100}"
        )
    ((name, settings),) = entry.items()
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"sinks.{name}: expected settings by name, got {settings!r:.100}")
    return str(name), settings


def _found(name: str, settings: Mapping[str, Any]) -> NamedSink:
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in known:
        listed = ", ".join(sorted(known)) or "none is installed"
        raise ConfigError(
            f"sinks.{name}: no sink of this name{closest(name, known)}; known: {listed}"
            "; TensorBoard's events and JSON lines are written always"
        )
    try:
        kind = known[name].load()
    except Exception as error:  # the boundary to code of others
        words = f"{type(error).__name__}: {error}"
        raise ConfigError(f"sinks.{name}: cannot be imported: {words}") from error
    if not is_named(kind):
        raise ConfigError(f"sinks.{name}: takes no settings and is always written: remove it")
    return NamedSink(name, kind, from_mapping(settings, kind.Config, f"sinks.{name}"))
