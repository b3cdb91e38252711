"""A benchmark of several parts: each is a script of its own, run in a process of its own."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main(name: str, parts: tuple[str, ...], description: str) -> None:
    """Run `<name>_<part>.py` for each part, or for the one that `--only` names."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--only", choices=parts)
    only = parser.parse_args().only
    for part in parts if only is None else (only,):
        print(f"\n== {part}", flush=True)
        script = Path(__file__).with_name(f"{name}_{part}.py")
        subprocess.run([sys.executable, str(script)], check=True)
