"""All that is measured of bray-model, part by part; each part is a script with options of its own.

uv run python benchmarks/model.py                   # all, about 20 minutes
uv run python benchmarks/model.py --only batching   # or: benchmarks/model_batching.py --rounds 3
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("batching", "http", "publish", "load", "remote", "clones", "start")


def main() -> None:
    """Run the parts one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    for part in PARTS if only is None else (only,):
        print(f"\n== {part}", flush=True)
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name(f"model_{part}.py"))], check=True
        )


if __name__ == "__main__":
    main()
