"""Metrics: recorded anywhere for a fraction of a microsecond, gathered by the hub of a launch."""

from bray_core.metrics.recording import (
    MAX_NAME,
    MAX_NAMES,
    MAX_SHOWN,
    Recent,
    Registry,
    drain,
    merge,
    query,
    record,
    registry,
    show,
    snapshot,
)

__all__ = [
    "MAX_NAME",
    "MAX_NAMES",
    "MAX_SHOWN",
    "Recent",
    "Registry",
    "drain",
    "merge",
    "query",
    "record",
    "registry",
    "show",
    "snapshot",
]
