"""How long `bray --help` takes, beside an empty Python process. Medians.

uv run python -m benchmarks.micro.cli
"""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace

from benchmarks.harness import Report, in_turns, main, timed_s


def benchmark(options: Namespace, report: Report) -> None:
    """Print both and their ratio."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "bray --help": [sys.executable, "-m", "bray_core.cli", "--help"],
    }
    ways = {
        name: lambda command=command: (
            1e3 * timed_s(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        )
        for name, command in commands.items()
    }
    found = in_turns(ways, options.rounds)
    report.table("a command", found, unit="ms", base="python -c pass")


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=10)
