"""Metrics: recording one takes a fraction of a microsecond, and a hub gathers all processes'."""

from bray_core.metrics.recording import (
    MAX_MEDIA,
    MAX_NAME,
    MAX_NAMES,
    Recent,
    Registry,
    drain,
    label_process,
    labelled,
    merge,
    query,
    record,
    registry,
    show,
    snapshot,
)

__all__ = [
    "MAX_MEDIA",
    "MAX_NAME",
    "MAX_NAMES",
    "Recent",
    "Registry",
    "drain",
    "label_process",
    "labelled",
    "merge",
    "query",
    "record",
    "registry",
    "show",
    "snapshot",
]
