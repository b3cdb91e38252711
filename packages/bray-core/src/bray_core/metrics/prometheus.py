"""Metrics as Prometheus text, format 0.0.4."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from bray_core.metrics import Registry
from bray_core.metrics.sample import Kind

WINDOW_S = 60.0
"""Time over which quantiles are taken."""
QUANTILES = (0.5, 0.9, 0.99)

_BAD = re.compile(r"[^A-Za-z0-9_]")

logger = logging.getLogger(__name__)


class PrometheusRow(TypedDict):
    """One metric of one process, to be written; JSON can hold it."""

    name: str
    labels: dict[str, str]
    kind: Kind
    value: float
    """Value by the metric's kind; counts are those since the process began."""
    count: int
    total: float
    """Sum of all values of a mean since the process began."""
    quantiles: dict[str, float]
    """Quantiles of a mean over the last minute."""


def rows(registry: Registry) -> list[PrometheusRow]:
    """Return what this process has recorded so far."""
    return [
        PrometheusRow(
            name=series.name,
            labels=series.labels,
            kind=series.kind,
            value=series.value,
            count=series.all_count,
            total=series.all_total,
            quantiles={str(q): sample.quantile(q) for q in QUANTILES}
            if series.kind == "mean"
            else {},
        )
        for sample, series in registry.recent(WINDOW_S)
    ]


def metric_name(name: str, kind: Kind) -> str:
    """Return a metric's name in Prometheus: `model/forward_s` is `bray_model_forward_seconds`."""
    flat = "bray_" + _BAD.sub("_", name)
    if flat.endswith("_s") and not flat.endswith("_per_s"):
        flat = flat[:-1] + "seconds"
    return f"{flat}_total" if kind == "count" else flat


def text(workers: Mapping[str, Sequence[PrometheusRow]]) -> str:
    """Return metrics as Prometheus text.

    Args:
        workers: Rows by worker; those of a worker named "" get no label `worker`.
    """
    families: dict[str, list[tuple[str, PrometheusRow]]] = {}
    for worker, its in workers.items():
        for row in its:
            families.setdefault(metric_name(row["name"], row["kind"]), []).append((worker, row))
    return "".join(line for name, its in families.items() for line in _family(name, its))


def _family(name: str, its: Sequence[tuple[str, PrometheusRow]]) -> Iterable[str]:
    source, kind = its[0][1]["name"], its[0][1]["kind"]
    yield f"# HELP {name} {source}: see docs/metrics.md of bray.\n"
    kinds = {"count": "counter", "mean": "summary"}
    yield f"# TYPE {name} {kinds.get(kind, 'gauge')}\n"
    for worker, row in its:
        if (row["name"], row["kind"]) != (source, kind):
            logger.warning("metrics: %s and %s are both %s there", source, row["name"], name)
            continue
        known = {"worker": worker} if worker else {}
        if kind != "mean":
            yield f"{name}{labels(row['labels'], **known)} {number(row['value'])}\n"
            continue
        for q, value in row["quantiles"].items():
            yield f"{name}{labels(row['labels'], quantile=q, **known)} {number(value)}\n"
        yield f"{name}_sum{labels(row['labels'], **known)} {number(row['total'])}\n"
        yield f"{name}_count{labels(row['labels'], **known)} {row['count']}\n"


def labels(own: Mapping[str, str], **more: str) -> str:
    """Return labels as Prometheus text."""
    both = {**own, **more}
    if not both:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in both.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number(value: float) -> str:
    """Return a number as Prometheus text, which has words for numbers that are not finite."""
    if math.isfinite(value):
        return f"{value:.10g}"
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
