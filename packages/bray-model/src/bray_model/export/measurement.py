"""How long a forward takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bray_core.nested import Nested
from bray_model.engines.engine import Engine

_MIN_RUNS = 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """One setting of one backend."""

    backend: str
    num_threads: int
    batch_size: int
    median_us: float
    """Of one forward."""

    @property
    def rows_per_s(self) -> float:
        """Rows answered in a second by one forward after the other."""
        return self.batch_size * 1e6 / self.median_us


def median_us(engine: Engine, inputs: tuple[Nested, ...], seconds: float) -> float:
    """Return the median time of a forward in microseconds, measured for about so many seconds."""
    engine.run(inputs)  # the first run allocates
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < _MIN_RUNS:
        began = time.perf_counter()
        engine.run(inputs)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def table(measured: Sequence[Measurement], agreement: Mapping[str, float] | None = None) -> str:
    """Return the measurements as text, with the agreement of the backends that have one."""
    width = max(len("backend"), *(len(m.backend) for m in measured))
    lines = [f"{'backend':<{width}}  threads  batch   us a forward     rows/s"]
    if agreement:
        lines[0] += "  same arg-max"
    for m in measured:
        line = f"{m.backend:<{width}}  {m.num_threads:7}  {m.batch_size:5}  {m.median_us:13,.1f}"
        line += f"  {m.rows_per_s:9,.0f}"
        if agreement and m.backend in agreement:
            line += f"  {agreement[m.backend]:12.2%}"
        lines.append(line)
    return "\n".join(lines)
