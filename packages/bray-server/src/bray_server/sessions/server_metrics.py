"""Metrics of a server: counters, latencies, and their Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bray_core.metrics.prometheus import labels, text

BUCKETS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0
)  # fmt: skip
"""Upper bounds of the latency histogram."""
KINDS = {1: "start", 2: "tick", 3: "end", 4: "call", 0: "page"}
"""Name of each kind of request: those of `frames.Kind`, and `pages.PAGE`."""


class ServerMetrics:
    """Counters and gauges of one server since it started."""

    def __init__(self) -> None:
        self.requests = dict.fromkeys(KINDS, 0)
        self.errors: dict[str, int] = {}
        self.latency = [0] * (len(BUCKETS_S) + 1)
        """Number of requests by the time from their last byte to their reply, as in `BUCKETS_S`."""
        self.latency_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.forwarded = 0
        """Number of requests that another worker answered for this one."""
        self.lost_slow_readers = 0
        self.refused_connections = 0

    def count_error(self, code: str) -> None:
        """Count an error reply."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def snapshot(self, gauges: Mapping[str, float]) -> dict[str, Any]:
        """Return all metrics as plain numbers, which can be sent to another worker."""
        return {
            "requests": {KINDS[kind]: count for kind, count in self.requests.items()},
            "errors": dict(self.errors),
            "latency": list(self.latency),
            "latency_s": self.latency_s,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "forwarded": self.forwarded,
            "lost_slow_readers": self.lost_slow_readers,
            "refused_connections": self.refused_connections,
            "gauges": dict(gauges),
        }


_TOTALS = {
    "bytes_in": ("bray_received_bytes_total", "Bytes of request bodies."),
    "bytes_out": ("bray_sent_bytes_total", "Bytes of reply bodies."),
    "forwarded": ("bray_forwarded_total", "Requests that another worker answered."),
    "lost_slow_readers": (
        "bray_slow_readers_total",
        "Connections cut because the client read nothing.",
    ),
    "refused_connections": (
        "bray_refused_connections_total",
        "Connections beyond the limit.",
    ),
}
_GAUGES = {
    "sessions": "Sessions that are open.",
    "connections": "Connections that are open.",
    "requests_under_way": "Requests that wait for their answer.",
    "streams": "Pages that are being sent in pieces.",
    "bytes_in_flight": "Bytes of large requests and replies that are held.",
}


def prometheus(workers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Prometheus text, format 0.0.4: server metrics, then those that processes recorded.

    Args:
        workers: A `Server.snapshot` by worker; a single worker named "" gets no label.
    """
    lines: list[str] = []

    def family(name: str, kind: str, about: str, rows: Iterable[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name} {about}")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{labels} {value:.10g}" for labels, value in rows)

    def by_label(key: str, label: str) -> Iterable[tuple[str, float]]:
        for worker, metrics in workers.items():
            for value, count in sorted(metrics[key].items()):
                yield _labels(worker, **{label: value}), count

    family("bray_requests_total", "counter", "Requests by kind.", by_label("requests", "kind"))
    family("bray_errors_total", "counter", "Error replies by code.", by_label("errors", "code"))
    for key, (name, about) in _TOTALS.items():
        family(name, "counter", about, ((_labels(w), f[key]) for w, f in workers.items()))
    for key, about in _GAUGES.items():
        rows = ((_labels(w), f["gauges"].get(key, 0)) for w, f in workers.items())
        family(f"bray_{key}", "gauge", about, rows)
    _histogram(lines, workers)
    recorded = {worker: metrics["recorded"] for worker, metrics in workers.items()}
    return "\n".join(lines) + "\n" + text(recorded)


def _histogram(lines: list[str], workers: Mapping[str, Mapping[str, Any]]) -> None:
    name = "bray_request_seconds"
    lines.append(f"# HELP {name} Time from a request's last byte to its reply.")
    lines.append(f"# TYPE {name} histogram")
    for worker, metrics in workers.items():
        total = 0
        for bound, count in zip((*BUCKETS_S, "+Inf"), metrics["latency"], strict=True):
            total += count
            lines.append(f"{name}_bucket{_labels(worker, le=str(bound))} {total}")
        lines.append(f"{name}_sum{_labels(worker)} {metrics['latency_s']:.9g}")
        lines.append(f"{name}_count{_labels(worker)} {total}")


def _labels(worker: str, **own: str) -> str:
    return labels(own, worker=worker) if worker else labels(own)
