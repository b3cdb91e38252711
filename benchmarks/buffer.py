"""All that is measured of bray-buffer, part by part; each part is a script with options of its own.

uv run python benchmarks/buffer.py                   # all
uv run python benchmarks/buffer.py --only carriers   # or: benchmarks/buffer_carriers.py --rounds 3
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PARTS = ("carriers", "replay", "remote")


def main() -> None:
    """Run the parts one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    for part in PARTS if only is None else (only,):
        print(f"\n== {part}", flush=True)
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name(f"buffer_{part}.py"))], check=True
        )


if __name__ == "__main__":
    main()
