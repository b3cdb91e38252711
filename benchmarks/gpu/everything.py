"""All that one machine with a GPU can tell in nine minutes: `make gpu`.

    uv run python -m benchmarks.gpu.everything [--device cpu] [--minutes 9] [--out FOLDER]

Each part is a process of its own with a time limit; one that fails or hangs is noted, and the next
one begins. `FOLDER/<part>.json` and `.log` hold what each found, `FOLDER/all.json` all of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.device import DEVICE, describe
from benchmarks.harness import ROOT, Report, argument, main

TAIL = 12


class Part(NamedTuple):
    """A script of this folder, its share of the time, and whether it takes `--seconds`."""

    name: str
    share: float
    command: tuple[str, ...]
    is_timed: bool = True
    dry: tuple[str, ...] = ()
    """What a dry run's command says besides."""


def _script(name: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"benchmarks.gpu.{name}", *more)


def _tests() -> tuple[str, ...]:
    """Return what runs the tests of a GPU; other files may want packages that are not here."""
    found = [*ROOT.glob("packages/*/tests/**/test_*.py"), *ROOT.glob("tests/test_*.py")]
    files = [str(file.relative_to(ROOT)) for file in found if "mark.gpu" in file.read_text()]
    beside = ("-n", "8", "--dist", "worksteal")  # none of them fills a GPU
    without = ("-p", "no:cacheprovider", "-p", "no:benchmark")
    return (sys.executable, "-m", "pytest", "-m", "gpu", "-q", *beside, *without, *sorted(files))


PARTS = [
    Part("tests", 0.11, _tests(), is_timed=False, dry=("--collect-only",)),
    Part("roofline", 0.09, _script("roofline")),
    Part("inference", 0.06, _script("inference")),
    Part("atari", 0.24, _script("atari")),
    Part("mujoco", 0.07, _script("mujoco"), dry=("--task", "Pendulum-v1")),
    Part("ranks", 0.02, _script("ranks"), is_timed=False),
    Part("llm", 0.09, _script("llm")),
    Part("pong", 0.32, _script("atari", "--pong")),
]
_START_S = 12.0
"""Imports, the first use of a GPU, and an end: what a part takes besides its `--seconds`."""


def run(part: Part, limit_s: float, options: Namespace, folder: Path) -> dict[str, object]:
    """Run one part for at most so long; return how it ended and what it found."""
    device, seconds = options.device, options.seconds or max(1.0, limit_s - _START_S)
    command, found = list(part.command), folder / f"{part.name}.json"
    if part.is_timed:
        command += ["--device", device, "--seconds", str(seconds)]
    if part.name != "tests":
        command += ["--json", str(found)]
    command += part.dry if device == "cpu" else ()
    began = time.monotonic()
    with (folder / f"{part.name}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
            ended = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = f"did not end within {limit_s:.0f} s"
    content = json.loads(found.read_text()) if found.exists() else None
    return {"ended": ended, "seconds": time.monotonic() - began, "found": content}


def benchmark(options: Namespace, report: Report) -> int:
    """Run the parts one after the other; the exit code is the number of those not done."""
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    print(f"# {describe()}", flush=True)
    wanted = [part for part in PARTS if not options.only or part.name in options.only]
    ends = time.monotonic() + 60 * options.minutes
    results = {}
    for number, part in enumerate(wanted):
        rest = sum(each.share for each in wanted[number:])
        limit_s = max(2.0, (ends - time.monotonic()) * part.share / rest)
        results[part.name] = run(part, limit_s, options, folder)
        _show(part.name, results[part.name], folder)
    report.figures |= results
    (folder / "all.json").write_text(json.dumps({"gpu": describe(), "parts": results}))
    return sum(result["ended"] != "done" for result in results.values())


def _show(name: str, result: dict[str, object], folder: Path) -> None:
    print(f"== {name}: {result['ended']}, {result['seconds']:.0f} s")
    lines = (folder / f"{name}.log").read_text().splitlines()
    shown = [line for line in lines if line and not line.startswith(("#", "WARNING:"))]
    print("\n".join(shown if result["ended"] == "done" else shown[-TAIL:]), flush=True)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--device", **DEVICE),
        argument("--minutes", type=float, default=8.8, help="after which all has ended"),
        argument("--seconds", type=float, help="of each part; default: by its share of the time"),
        argument("--only", nargs="+", choices=[part.name for part in PARTS]),
        argument("--out", default=".artifacts/gpu", help="folder for what was found"),
    )
