"""Trials as tables: a line for each, the content of one, the differences of several."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bray.best import BestVersion
from bray_core.errors import CodecError
from bray_core.files.escaping import escape_unprintable
from bray_core.files.json_file import finite
from bray_core.files.trial_folders import launches as launch_folders
from bray_core.files.trial_folders import newest_launch
from bray_core.metrics.recent_return import EPISODES, recent_return
from bray_core.trials.launch_record import CHANGES, LaunchRecord
from bray_core.trials.seed_group import groups, spread
from bray_core.trials.trial import Trial, flatten

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

_FIGURES = ("loss", "version")
"""Last words of the metrics that are shown where a run has no result yet."""
_RETURNS = (f"return (mean of {EPISODES} episodes)", "evaluation")
_UNREADABLE = "unreadable"
_LAUNCH_FIELDS = ("commit", "is_changed", "host", "seed", "python", "platform")
_SHOWN_LAUNCHES = 10
_MISSING = "–"
_MAX_CHARS = 1000
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that would move a terminal's cursor, colour it or reverse its text."""


def figures(trial: Trial) -> dict[str, float]:
    """Return the numbers of a trial's result, or its newest metrics where it has none yet.

    `return` is the mean of the last 100 training episodes.

    Raises:
        CodecError: the result cannot be read.
        OSError: the metrics cannot be read.
    """
    shown: dict[str, float] = {n: v for n, v in trial.result().items() if _is_number(v)}
    if not shown:
        metrics = trial.metrics()
        shown = {"frames": metrics["frames"]} if metrics else {}
        for name, value in metrics.items():
            end = name.rpartition("/")[2].rpartition("_")[2]
            if end in _FIGURES:
                shown[end] = value
    recent = recent_return(trial.path)
    return shown if recent is None else {**shown, "return": recent}


def _is_number(value: object) -> bool:
    return isinstance(value, bool) or finite(value) is not None


def listed(trials: Sequence[Trial]) -> Table:
    """Return a row for each trial; the row of an unreadable trial says why."""
    table = _table("trial", "state", "launched", "ran", "frames", *_RETURNS, "version", "goal")
    for trial in trials:
        try:
            row = _row(trial)
        except (CodecError, OSError) as error:
            row = [_UNREADABLE, str(error)]
        _add(table, escape_unprintable(trial.name), *row)
    return table


def _row(trial: Trial) -> list[str]:
    newest, known = trial.newest(), figures(trial)
    reached = known.get("reached")
    return [
        trial.state,
        _date(newest.began_s) if newest else _MISSING,
        _duration(newest) if newest else _MISSING,
        _number(known.get("frames")),
        _number(known.get("return")),
        _number(known.get("evaluation_return")),
        _number(known.get("version")),
        _MISSING if reached is None else "reached" if reached else "not reached",
    ]


def state_of(trial: Trial) -> str:
    """Return the state of a trial, `unreadable` where it cannot be told."""
    try:
        return trial.state
    except (CodecError, OSError):
        return _UNREADABLE


def launches(trial: Trial) -> Table:
    """Return a row for each of a trial's newest launches; the row of a broken record says why."""
    table = _table("launch", "ended", "ran", "host", "commit", "command")
    newest = launch_folders(trial.path)[-_SHOWN_LAUNCHES:]
    for folder in newest:
        try:
            record = LaunchRecord.read(folder)
        except CodecError as error:
            _add(table, folder.name, f"{_UNREADABLE}: {error}")
            continue
        if record is None:
            _add(table, folder.name, _MISSING, _MISSING, _MISSING, _MISSING, _MISSING)
            continue
        is_newest = folder == newest[-1]
        ended = record.ending or (state_of(trial) if is_newest else "crashed")
        commit = (record.commit or _MISSING)[:10] + (f" + {CHANGES}" if record.is_changed else "")
        _add(
            table,
            folder.name,
            f"{ended}: {record.error}" if record.error else ended,
            _duration(record),
            f"{record.host} ({record.pid})",
            commit,
            " ".join([Path(record.command[0]).name, *record.command[1:]]) if record.command else "",
        )
    return table


def contents(trial: Trial) -> Table:
    """Return a trial's content: figures, the best version, the size of each folder."""
    table = _table("", "")
    try:
        for name, value in figures(trial).items():
            _add(table, name, _value(value))
        best = BestVersion.read(trial.path)
        if best is not None:
            mean = f"{best.evaluation_return:.6g}"
            _add(table, "best", f"version {best.version}: mean return {mean}")
    except (CodecError, OSError) as error:
        _add(table, _UNREADABLE, str(error))
    for folder in sorted(path for path in trial.path.iterdir() if path.is_dir()):
        count, size = size_of([folder])
        if count:
            _add(table, f"{folder.name}/", f"{count:,} files, {in_bytes(size)}")
    for manifest in sorted(trial.path.glob("models/*/onnx/*/manifest.json")):
        _add(table, "export", str(manifest.parent))
    return table


def compared(trials: Sequence[Trial]) -> Table:
    """Return the differences between trials, settings first, and their figures side by side."""
    table = _table("", *(escape_unprintable(trial.name) for trial in trials))
    found = [_ReadableParts(trial) for trial in trials]
    _rows(table, "setting", [one.settings for one in found], differing=True)
    heads = [_fields(one.newest) for one in found]
    for head, one in zip(heads, found, strict=True):
        if one.changes:
            head[CHANGES] = one.changes
    _rows(table, "launch", heads, differing=True)
    versions = [one.newest.packages if one.newest else {} for one in found]
    _rows(table, "package", versions, differing=True)
    _rows(table, "figure", [one.figures for one in found], differing=False)
    if any(one.problems for one in found):
        _add(table, _UNREADABLE, *("\n".join(one.problems) or _MISSING for one in found))
    return table


def seed_groups(trials: Sequence[Trial]) -> Table | None:
    """Return what the trials of each group of seeds say together; None where there is no group."""
    by_name = {trial.name: trial for trial in trials}
    found = groups(list(by_name))
    if not found:
        return None
    table = _table("seeds", "figure", "of", "median", "interquartile mean", "least", "greatest")
    for group, names in found.items():
        known = [_ReadableParts(by_name[name]).figures for name in names]
        for figure in ("evaluation_return", "return", "frames"):
            values = [value for one in known if (value := finite(one.get(figure))) is not None]
            if (together := spread(values)) is not None:
                numbers = map(_number, list(asdict(together).values())[1:])
                _add(table, group, figure, str(together.num_seeds), *numbers)
    return table


class _ReadableParts:
    """The parts of a trial that can be read, and the reasons why others cannot."""

    def __init__(self, trial: Trial) -> None:
        self.problems: list[str] = []
        self.settings = flatten(self._of(trial.config, {}))
        self.newest = self._of(trial.newest, None)
        self.changes = self._of(lambda: _changes(trial), "")
        nothing: dict[str, float] = {}
        self.figures = {"state": state_of(trial)} | self._of(lambda: figures(trial), nothing)

    def _of(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except (CodecError, OSError) as error:
            self.problems.append(str(error))
            return otherwise


def _changes(trial: Trial) -> str:
    """Return in words what the newest launch's commit lacked; two that differ read differently."""
    folder = newest_launch(trial.path)
    path = None if folder is None else folder / CHANGES
    if path is None or not path.is_file():
        return ""
    content = path.read_bytes()
    return f"{len(content.splitlines()):,} lines, sha256 {hashlib.sha256(content).hexdigest()[:10]}"


def _fields(record: LaunchRecord | None) -> dict[str, object]:
    return {name: getattr(record, name) for name in _LAUNCH_FIELDS} if record else {}


def _rows(
    table: Table, kind: str, columns: Sequence[Mapping[str, object]], *, differing: bool
) -> None:
    names = dict.fromkeys(name for column in columns for name in column)
    for name in names:
        values = [column.get(name, _MISSING) for column in columns]
        known = [value for value, column in zip(values, columns, strict=True) if column]
        if not differing or any(value != known[0] for value in known):
            _add(table, f"{kind} {name}", *map(_value, values))


def size_of(paths: Iterable[Path]) -> tuple[int, int]:
    """Return the number of files at or below paths, and their bytes."""
    count = size = 0
    for path in paths:
        files = [path] if not path.is_dir() else _files(path)
        for file in files:
            with suppress(FileNotFoundError):  # deleted meanwhile
                size += file.lstat().st_size
                count += 1
    return count, size


def _files(folder: Path) -> Iterable[Path]:
    for directory, _, names in os.walk(folder):
        yield from (Path(directory, name) for name in names)


def in_bytes(size: float) -> str:
    """Return a size with its unit."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*(Text(printable(cell)) for cell in cells))  # as Text, brackets are no markup


def printable(text: str) -> str:
    """Return a text that is safe to print: control and broken characters are spelled out."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), shown)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _number(value) if isinstance(value, int | float) else str(value)[:_MAX_CHARS]


def _number(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _duration(record: LaunchRecord) -> str:
    if record.ended_s is None:
        return _MISSING
    seconds = max(0, round(record.ended_s - record.began_s))
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
