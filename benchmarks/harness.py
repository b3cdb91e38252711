"""What every benchmark shares: its command line, rounds in turns, medians, the machine, JSON.

A benchmark is a function of its options and of a `Report`:

    def benchmark(options: Namespace, report: Report) -> None:
        found = in_turns({"bray": ours, "plain loop": theirs}, options.rounds)
        report.table("a batch of 64", found, unit="ms", base="bray")

    if __name__ == "__main__":
        main(__doc__, benchmark, rounds=5)

This machine's speed changes from minute to minute, so what is compared is measured in turns, and
the figure to read is the ratio: the median of the ratios within each round.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO, TypeVar

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "benchmarks" / "peers"
RESULTS = ROOT / "benchmarks" / "results"
T = TypeVar("T")
Argument = tuple[tuple[str, ...], dict[str, Any]]
_VERSIONS = ("bray-core", "torch", "numpy", "ray", "gymnasium")


class Report:
    """Prints what was found, and keeps it for the JSON; so is whatever else a benchmark prints."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []
        self.curves: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}

    def figure(self, name: str, value: Any) -> None:
        """Keep one figure for the JSON; what people read of it a benchmark prints itself."""
        self.figures[name] = value

    def table(
        self,
        title: str,
        samples: Mapping[str, Sequence[float]],
        *,
        unit: str,
        base: str | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Print a row for each contender: median, range, and ratio to one of them.

        Args:
            title: What was measured.
            samples: Contender → its figure in each round.
            unit: Unit of the figures.
            base: Contender by whose figure of the same round the others are divided.
            notes: Contender → what else its row says.
        """
        rows = []
        width = max(map(len, samples), default=0)
        text = [f"{title}, {unit}"]
        for name, values in samples.items():
            row: dict[str, Any] = {"name": name, "median": median(values), "rounds": list(values)}
            line = f"  {name:{width}} {row['median']:14,.3f}"
            line += f"  ({min(values):,.3f} to {max(values):,.3f})"
            if base is not None:
                row["ratio"] = ratio(values, samples[base])
                line += f"  {row['ratio']:8.3f}×" if name != base else f"  {'':8} "
            if notes and name in notes:
                row["note"] = notes[name]
                line += f"  {notes[name]}"
            rows.append(row)
            text.append(line.rstrip())
        self.tables.append({"title": title, "unit": unit, "base": base, "rows": rows})
        print("\n".join(text), flush=True)

    def curve(
        self,
        title: str,
        runs: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
        *,
        x: str,
        y: str,
    ) -> None:
        """Keep learning curves for the page of results.

        Args:
            title: What was trained.
            runs: Contender → of each seed the points of its curve, x ascending.
            x: What stands on the axis, with its unit.
            y: What was measured.
        """
        kept = {name: [[list(point) for point in run] for run in of] for name, of in runs.items()}
        self.curves.append({"title": title, "x": x, "y": y, "runs": kept})

    def ratio(self, name: str, of: str, table: int = -1) -> float:
        """Return by how much one contender's figure exceeds another's, in a table printed."""
        rows = {row["name"]: row["rounds"] for row in self.tables[table]["rows"]}
        return ratio(rows[name], rows[of])


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return float(statistics.median(values))


def ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios within each round."""
    return median(one / other for one, other in zip(values, base, strict=True))


def in_turns(
    ways: Mapping[str, Callable[[], T]], rounds: int, *, warm_up: int = 0
) -> dict[str, list[T]]:
    """Measure each once a round, every second round in the opposite order.

    Args:
        ways: Contender → what returns its figure.
        rounds: Number of figures of each.
        warm_up: Number of rounds before these, whose figures are dropped.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(rounds + warm_up):
        for name in list(ways) if number % 2 == 0 else list(reversed(ways)):
            figure = ways[name]()
            if number >= warm_up:
                found[name].append(figure)
    return found


def timed_s(work: Callable[[], Any], times: int = 1) -> float:
    """Return the wall seconds of one call, as the mean of some."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def itself(module_file: str, *arguments: object) -> list[str]:
    """Return the command that runs a benchmark as another process."""
    name = ".".join(Path(module_file).resolve().relative_to(ROOT).with_suffix("").parts)
    return [sys.executable, "-m", name, *map(str, arguments)]


def compiled_load(folder: Path) -> Path:
    """Compile the load generator of TCP and HTTP, `micro/load.cpp`."""
    program = folder / "load"
    source = ROOT / "benchmarks" / "micro" / "load.cpp"
    subprocess.run(["g++", "-O2", "-o", str(program), str(source)], check=True)
    return program


def argument(*names: str, **settings: Any) -> Argument:
    """Return an option or argument of a benchmark, in argparse's words."""
    return names, settings


def machine() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": found,
        "commit": _commit(),
        **_gpu(),
    }


def _gpu() -> dict[str, str]:
    """Return the name of the GPU, if this benchmark could use one."""
    torch = sys.modules.get("torch")
    has_gpu = torch is not None and torch.cuda.is_available()
    return {"gpu": torch.cuda.get_device_name()} if has_gpu else {}


class _Tee(io.TextIOBase):
    """Standard output that is also kept."""

    def __init__(self, shown: TextIO | None) -> None:
        self.kept = io.StringIO()
        self._shown = shown

    def write(self, text: str) -> int:
        if self._shown is not None:
            self._shown.write(text)
        return self.kept.write(text)

    def flush(self) -> None:
        if self._shown is not None:
            self._shown.flush()


def main(
    doc: str | None,
    benchmark: Callable[[Namespace, Report], Any],
    *arguments: Argument,
    rounds: int | None = None,
    seconds: float | None = None,
    inner: Mapping[str, Callable[..., Any]] | None = None,
) -> None:
    """Run one benchmark from the command line.

    Args:
        doc: Description; its first line is that of `--help`.
        benchmark: What measures; its result is the exit code, and None is 0.
        arguments: Options beyond those that all have.
        rounds: Default of `--rounds`; without, there is no such option.
        seconds: Default of `--seconds`; without, there is no such option.
        inner: First word of a command line → what processes that the benchmark starts do instead,
            with the rest of the words (see `itself`).
    """
    if inner and len(sys.argv) > 1 and sys.argv[1] in inner:
        inner[sys.argv[1]](*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="figures of each contender")
    if seconds is not None:
        parser.add_argument(
            "--seconds", type=float, default=seconds, help="duration of each measurement, about"
        )
    parser.add_argument("--json", metavar="FILE", help="also written there; - is standard output")
    parser.add_argument(
        "--keep", metavar="NAME", help="also written to benchmarks/results/NAME.json, for the docs"
    )
    for names, settings in arguments:
        parser.add_argument(*names, **settings)
    has_rest = "--" in sys.argv
    options = parser.parse_args() if has_rest else parser.parse_intermixed_args()
    report, here, began = Report(), machine(), time.monotonic()
    output = _Tee(None if options.json == "-" else sys.stdout)
    with contextlib.redirect_stdout(output):
        versions = ", ".join(f"{name} {number}" for name, number in here["versions"].items())
        print(f"# {here['cpu']}, {here['cores']} cores, load {here['load']}, {here['commit']}")
        print(f"# python {here['python']}, {versions}", flush=True)
        code = int(benchmark(options, report) or 0)
    if options.json or options.keep:
        content = {
            "script": Path(sys.argv[0]).stem,
            "question": (doc or "").partition("\n")[0],
            "command": _command(),
            "date": datetime.now(UTC).date().isoformat(),
            "options": {name: str(value) for name, value in vars(options).items()},
            "machine": here,
            "seconds": round(time.monotonic() - began, 1),
            "tables": report.tables,
            "curves": report.curves,
            "figures": report.figures,
            "printed": output.kept.getvalue().splitlines(),
        }
        text = json.dumps(content, default=str) + "\n"
        if options.json:
            sys.stdout.write(text) if options.json == "-" else Path(options.json).write_text(text)
        if options.keep:
            (RESULTS / f"{options.keep}.json").write_text(text)
    sys.exit(code)


def _command() -> str:
    """Return the command line that repeats this, as it is written in the docs."""
    file = Path(sys.argv[0]).resolve()
    is_ours = file.is_relative_to(ROOT)
    module = ".".join(file.relative_to(ROOT).with_suffix("").parts) if is_ours else file.stem
    return shlex.join(["uv", "run", "python", "-m", module, *sys.argv[1:]])


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"
