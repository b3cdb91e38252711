"""Write docs/benchmarks.md and its curves from benchmarks/results/*.json.

    uv run python -m benchmarks.page

A benchmark puts its result there by `--keep NAME`; nothing on the page is typed by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import RESULTS, ROOT

from bray.viewer.seed_curves import over_seeds

PAGE = ROOT / "docs" / "benchmarks.md"
CURVES = ROOT / "docs" / "curves"
_INTRODUCTION = """\
# Benchmarks

Written by `uv run python -m benchmarks.page` from the files in `benchmarks/results/`; each section
says which command made it. The machines are shared and differ in speed, so contenders take turns
within a run: **read the ratios**, which are medians of the ratios within each round. Curves show
the median over seeds, and the band from the lowest to the highest seed. A section whose figures are
of a GPU names it. What was tried for them is in `benchmarks/`.

## At a glance

Of each section the first table, of curves all.
"""


def results(folder: Path = RESULTS) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the content of each result, by name."""
    return [(file.stem, json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]


def page(found: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the page as Markdown: a list of all, what was learnt, and then the speeds."""
    shown = sorted(found, key=lambda result: not result[1].get("curves"))
    glances = [_glance(content) for _, content in shown]
    return "\n".join([_INTRODUCTION, *glances, "", *(section(*result) for result in shown)])


def _heading(content: Mapping[str, Any]) -> str:
    if content.get("curves"):
        return "Learning: " + "; ".join(table["title"] for table in content["tables"])
    return str(content["question"]).rstrip(".")


def _glance(content: Mapping[str, Any]) -> str:
    heading = _heading(content)
    anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    is_learning = bool(content.get("curves"))
    said = []
    for table in content["tables"] if is_learning else content["tables"][:1]:
        figures = ", ".join(f"{row['name']} **{_figure(row['median'])}**" for row in table["rows"])
        said.append(figures if is_learning else f"{table['title']} ({table['unit']}): {figures}")
    return f"- [{heading}](#{anchor}): {'; '.join(said)}"


def section(name: str, content: Mapping[str, Any]) -> str:
    """Return what the page says of one result."""
    machine = content["machine"]
    lines = [
        f"## {_heading(content)}",
        "",
        "<!-- no-test: a benchmark takes minutes -->",
    ]
    lines += ["```bash", content["command"], "```", ""]
    device = f"{machine['gpu']}, " if "gpu" in machine else ""
    lines += [
        f"{device}{machine['cpu']}, {machine['cores']} cores, load {machine['load']} at the start; "
        f"{content['date']}, commit {machine['commit'].removesuffix('-dirty')}.",
        "",
    ]
    for table in content["tables"]:
        lines += [*_table(table), ""]
    for number, curve in enumerate(content.get("curves", ())):
        lines += [f"![{curve['title']}](curves/{name}-{number}.svg)", ""]
    return "\n".join(lines)


def _table(table: Mapping[str, Any]) -> list[str]:
    has_notes = any(row.get("note") for row in table["rows"])
    heads = [table["title"], table["unit"], "rounds"]
    heads += [f"of {table['base']}"] if table["base"] else []
    heads += [""] if has_notes else []
    lines = [_row(heads), _row(["---", *["---:"] * (len(heads) - 1)])]
    for row in table["rows"]:
        low, high = min(row["rounds"]), max(row["rounds"])
        cells = [row["name"], _figure(row["median"]), f"{_figure(low)} to {_figure(high)}"]
        cells += [f"{row['ratio']:.2f}"] if table["base"] else []
        cells += [row.get("note", "")] if has_notes else []
        lines.append(_row(cells))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _figure(value: float) -> str:
    """Return a number in three digits, or in whole ones with commas."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def draw(name: str, content: Mapping[str, Any], folder: Path = CURVES) -> list[Path]:
    """Draw the curves of one result; return the files."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bray"  # the same curves make the same file
    from matplotlib import pyplot

    folder.mkdir(exist_ok=True)
    files = []
    for number, curve in enumerate(content.get("curves", ())):
        figure, axes = pyplot.subplots(figsize=(7, 3.2))
        for label, runs in curve["runs"].items():
            seeds = [(np.array(run)[:, 0], np.array(run)[:, 1]) for run in runs if run]
            if not seeds:
                continue
            x, middle, low, high = over_seeds(seeds, "median", 200)
            (line,) = axes.plot(x, middle, label=f"{label}, {len(seeds)} seeds")
            axes.fill_between(x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        axes.set(title=curve["title"], xlabel=curve["x"], ylabel=curve["y"])
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        files.append(folder / f"{name}-{number}.svg")
        figure.savefig(files[-1], bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
    return files


def main() -> None:
    """Write the page and draw the curves."""
    found = results()
    drawn = {file for name, content in found for file in draw(name, content)}
    for file in set(CURVES.glob("*.svg")) - drawn:
        file.unlink()
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
