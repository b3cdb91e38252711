"""`bray zoo list|show`: tuned settings by task."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from bray_core.command import Command

if TYPE_CHECKING:
    from bray.zoo.entries import ZooEntry


def _add_zoo(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="verb", required=True, title="verbs")
    words = "list the tasks that there are settings for, and what was reached"
    listing = verbs.add_parser("list", help=words, description=words, allow_abbrev=False)
    listing.set_defaults(verb=_list, parser=listing)
    words = "show the settings for a task, and how they were measured"
    show = verbs.add_parser("show", help=words, description=words, allow_abbrev=False)
    show.add_argument("name", help="a task such as HalfCheetah-v5, or one of its names in the list")
    show.set_defaults(verb=_show, parser=show)
    for verb in (listing, show):
        verb.add_argument("--json", action="store_true", help="print one JSON document")


def _list(options: argparse.Namespace) -> int:
    from bray.zoo.entries import entries

    found = list(entries().values())
    if options.json:
        return _say(json.dumps([entry.to_json() for entry in found], indent=1))
    rows = [("name", "algorithm", "return, median", "frames"), *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        _say("  ".join(cells).rstrip())
    return 0


def _row(entry: ZooEntry) -> tuple[str, str, str, str]:
    frames = entry.figures.frames if entry.figures else None
    return entry.name, entry.algorithm, entry.reached(), f"{frames:,}" if frames else "–"


def _show(options: argparse.Namespace) -> int:
    from bray.zoo.entries import find, of_task

    entry = find(options.name)
    if options.json:
        return _say(json.dumps(entry.to_json(), indent=1))
    _say(f"{entry.task} by {entry.algorithm}")
    for key, value in (entry.settings or {"settings": "the algorithm's defaults"}).items():
        _say(f"  {key}: {value if isinstance(value, str) else json.dumps(value)}")
    _say(f"  goal: {json.dumps(entry.goal)}")
    _say(f"reached: {_measured(entry)}")
    if entry.packages:
        _say(f"needs: {', '.join(entry.packages)}")
    others = [other.name for other in of_task(entry) if other.name != entry.name]
    if others:
        _say(f"also: {', '.join(others)}")
    return _say(f"try: {entry.command()}")


def _measured(entry: ZooEntry) -> str:
    figures = entry.figures
    if figures is None:
        return "not measured: these settings promise nothing"
    reached = figures.note or f"mean return {' / '.join(f'{r:g}' for r in figures.returns)}"
    seeds = f"seed{'s' * (len(figures.seeds) > 1)} {' / '.join(map(str, figures.seeds))}"
    frames = f", after {figures.frames:,} frames (median)" if figures.frames else ""
    return f"{reached}, {seeds}{frames}; {figures.measured}, {figures.page}"


def _say(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return 0


def _zoo(options: argparse.Namespace) -> int:
    code: int = options.verb(options)
    return code


zoo = Command("zoo", "list and show tuned settings by task", _add_zoo, _zoo)
