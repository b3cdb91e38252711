"""How long `bray --help` takes, beside an empty Python process. Median of ten each.

uv run python benchmarks/cli.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def median_s(command: list[str]) -> float:
    """Return the median wall time of ten runs."""
    times = []
    for _ in range(10):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    """Print both and their ratio."""
    empty = median_s([sys.executable, "-c", "pass"])
    ours = median_s([sys.executable, "-m", "bray_core.cli", "--help"])
    print(
        f"python -c pass {empty * 1e3:.0f} ms, bray --help {ours * 1e3:.0f} ms: {ours / empty:.1f}×"
    )


if __name__ == "__main__":
    main()
