"""Nanoseconds of recording one value, beside Prometheus' and OpenTelemetry's clients.

    uv run --with prometheus-client --with opentelemetry-sdk python -m benchmarks.micro.metrics

A value each, from a list, in a loop whose own cost is taken off; one thread, and four that record
at the same time. The time is the process's own (CPU), since these machines are shared. A round
measures all peers, one after the other; printed are the medians of the rounds, and of each round's
ratio to bray. bray keeps sum, bounds, last and quantiles to 1 %; the
histograms of the others keep buckets with fixed bounds. Also: what ending a window costs, the error
of the quantiles, and the time that a query takes over two minutes of windows.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence

import numpy as np
from benchmarks.harness import Report, in_turns, main

from bray_core.metrics import Registry

Record = Callable[[float], object]
CALLS = 50_000
NUM_THREADS = 4


def recorders() -> dict[str, Record]:
    """Return what records one value, by name; peers that are not installed are left out."""
    registry = Registry()
    record = registry.record
    registry.record("warm/up", 1.0)
    found: dict[str, Record] = {
        "bray record (mean, quantiles)": lambda v: record("a/latency_s", v),
        "bray record (count)": lambda v: record("a/steps", v, kind="count"),
        "bray record, one label": lambda v: record("a/latency_s", v, map="desert"),
    }
    try:
        found |= prometheus()
    except ImportError:
        print("prometheus_client: not installed")
    try:
        found |= opentelemetry()
    except ImportError:
        print("opentelemetry: not installed")
    return found


def prometheus() -> dict[str, Record]:
    """Return those of prometheus_client, with children looked up before, as it recommends."""
    from prometheus_client import CollectorRegistry, Counter, Histogram

    registry = CollectorRegistry()
    histogram = Histogram("latency_seconds", "x", registry=registry)
    labelled = Histogram("other_seconds", "x", ["map"], registry=registry)
    counter = Counter("steps", "x", registry=registry)
    return {
        "prometheus_client Histogram.observe": histogram.observe,
        "prometheus_client Counter.inc": counter.inc,
        "prometheus_client labels().observe": lambda v: labelled.labels("desert").observe(v),
    }


def opentelemetry() -> dict[str, Record]:
    """Return those of OpenTelemetry's SDK."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    meter = MeterProvider(metric_readers=[InMemoryMetricReader()]).get_meter("benchmark")
    histogram = meter.create_histogram("latency")
    counter = meter.create_counter("steps")
    attributes = {"map": "desert"}
    return {
        "opentelemetry Histogram.record": histogram.record,
        "opentelemetry Counter.add": counter.add,
        "opentelemetry record, one attribute": lambda v: histogram.record(v, attributes),
    }


def loop_s(record: Record, values: Sequence[float]) -> float:
    """Return the seconds of CPU of recording each value."""
    started = time.process_time()
    for value in values:
        record(value)
    return time.process_time() - started


def threads_s(record: Record, values: Sequence[float]) -> float:
    """Return the seconds of CPU of recording all values, a part in each of several threads."""
    parts = [values[i::NUM_THREADS] for i in range(NUM_THREADS)]
    threads = [threading.Thread(target=loop_s, args=(record, part)) for part in parts]
    started = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.process_time() - started


def compare(rounds: int, report: Report) -> None:
    """Print a row a recorder, alone and in several threads."""
    values = np.random.default_rng(0).lognormal(-7, 1, CALLS).tolist()
    every = recorders()

    def alone_ns(record: Record) -> float:
        return (loop_s(record, values) - loop_s(lambda _: None, values)) / CALLS * 1e9

    def together_ns(record: Record) -> float:
        return threads_s(record, values) / CALLS * 1e9

    base = "bray record (mean, quantiles)"
    for title, cost in (("one thread", alone_ns), (f"{NUM_THREADS} threads", together_ns)):
        ways = {name: lambda cost=cost, record=r: cost(record) for name, r in every.items()}
        report.table(title, in_turns(ways, rounds), unit="ns a call", base=base)


def windows() -> None:
    """Print what goes on beside the hot path."""
    random = np.random.default_rng(0)
    registry = Registry()
    for _ in range(120):
        for name in range(60):
            registry.record(f"a/m{name}", random.lognormal(-7, 1, 100))
        started = time.process_time()
        registry.drain()
        roll_s = time.process_time() - started
    started = time.process_time()
    found = registry.query("a/m7", 1000.0)
    query_s = time.process_time() - started
    print(f"ending a window of 60 metrics, 100 values each: {roll_s * 1e3:.2f} ms")
    print(f"query over 120 windows, {found.count} values: {query_s * 1e3:.2f} ms")
    values = random.lognormal(-7, 2, 100_000)
    registry.record("a/exact", values)
    for q in (0.5, 0.9, 0.99, 0.999):
        exact = float(np.quantile(values, q, method="lower"))
        off = registry.query("a/exact", 1000.0).quantile(q) / exact - 1
        print(f"quantile {q}: {off:+.2%} off numpy's")


def benchmark(options: Namespace, report: Report) -> None:
    """Run the comparison."""
    compare(options.rounds, report)
    windows()


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=9)
