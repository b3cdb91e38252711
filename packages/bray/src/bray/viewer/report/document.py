"""The report's HTML: the trials, their curves, the settings that differ, and what ran each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from bray.viewer import project as trials_on_disk
from bray.viewer.comparison import compared
from bray.viewer.project import Project
from bray.viewer.report.svg_chart import ChartCurve, chart, short_number
from bray.viewer.seed_curves import SUMMARIES
from bray.viewer.trial_curves import read_curves
from bray_core.errors import ConfigError
from bray_core.settings.choice import check_choice
from bray_core.trials.launch_record import CHANGES

METRICS = (
    "actor/episode_return",
    "actor/episode_return{phase=evaluation}",
    "trainer/loss",
    "actor/episode_length",
    "trainer/entropy",
    "machine/cpu_share",
)
"""Metrics that are drawn where none are named, as far as a trial has recorded them."""
MAX_TRIALS = 200
_POINTS = 300
_EVERYWHERE = float("-inf"), float("inf")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LAUNCH = ("began_s", "ended_s", "ending", "error", "command", "commit", "host", "python")


def report(
    project: Project,
    names: Sequence[str],
    *,
    metrics: Sequence[str] = (),
    seeds: str = "iqm",
    axis: str = "frames",
) -> str:
    """Return a report on trials as one HTML page that needs no other file and no network.

    Args:
        project: the project of the trials.
        names: names of the trials.
        metrics: names of the metrics that are drawn; none: `METRICS`.
        seeds: one of `seed_curves.SUMMARIES`.
        axis: one of `metric_log.AXES`.

    Raises:
        ConfigError: no trial, too many, or an unknown summary.
        NotFoundError: there is no trial of that name.
    """
    if not 1 <= len(names) <= MAX_TRIALS:
        raise ConfigError(f"trial: expected 1 to {MAX_TRIALS}, got {len(names)}")
    check_choice("seeds", seeds, SUMMARIES)
    found = {name: trials_on_disk.describe(project.trial(name)) for name in names}
    title = f"{project.path.name}: {names[0] if len(names) == 1 else f'{len(names)} trials'}"
    made = f"{time.strftime('%Y-%m-%d %H:%M:%S %z')} by bray"
    body = [
        f'<h1>{escape(title)}</h1><p class="faint">Made {made}</p>',
        _trials(list(found.values())),
        _curves(project, names, metrics or METRICS, seeds, axis),
        _settings(project, names),
        _code(list(found.values())),
        *(_trial(one) for one in found.values()),
    ]
    css = resources.files(__package__ or "").joinpath("report.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{''.join(body)}\n</main>\n</body>\n</html>\n"
    )


def _trials(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            one["name"],
            one["environment"] or "–",
            one["state"],
            _number(one["evaluation_return"]),
            _number(one["return"]),
            _number(one["frames"]),
            _number(one["seconds"]),
            "".join(f'<span class="tag">{escape(tag)}</span>' for tag in one["tags"]),
        ]
        for one in found
    ]
    heads = ["Trial", "Environment", "State", "Evaluation", "Return", "Frames", "Seconds", "Tags"]
    return "<h2>Trials</h2>" + _table(heads, rows, numbers=range(3, 7), markup=(7,))


def _curves(
    project: Project, names: Sequence[str], metrics: Sequence[str], seeds: str, axis: str
) -> str:
    known = set().union(*(project.metrics(name).names() for name in names))
    slots: dict[str, int] = {}
    figures = []
    for metric in [one for wish in metrics for one in _matching(wish, known)]:
        found = read_curves(project, names, metric, axis, seeds, 0.0, _POINTS, _EVERYWHERE)
        drawn = [_chart_curve(one, slots) for one in found if one["count"]]
        if drawn:
            picture = chart(metric, axis, drawn)
            caption = f"<figcaption>{escape(metric)}</figcaption>"
            figures.append(f"<figure>{caption}{picture}</figure>")
    words = {
        "each": "",
        "median": "Of seeds: the median, and the band of their quartiles.",
        "mean": "Of seeds: the mean, and the band of their quartiles.",
        "iqm": "Of seeds: the interquartile mean, and the band of their quartiles.",
    }[seeds]
    legend = "".join(
        f'<li><i class="f{slot % 10}"></i>{escape(name)}</li>' for name, slot in slots.items()
    )
    head = f'<h2>Curves</h2><p class="faint">{words}</p><ul class="legend">{legend}</ul>'
    nothing = "<p>Nothing was recorded.</p>"
    return head + (f'<div class="charts">{"".join(figures)}</div>' if figures else nothing)


def _matching(wish: str, known: Iterable[str]) -> list[str]:
    """Return the metrics of a name: itself, or those that differ from it by their labels."""
    if wish in known:
        return [wish]
    return sorted(name for name in known if name.partition("{")[0] == wish)[:8]


def _chart_curve(found: Mapping[str, Any], slots: dict[str, int]) -> ChartCurve:
    slot = slots.setdefault(str(found.get("name", found["trial"])), len(slots))
    columns = {name: found.get(name, ()) for name in ("x", "y", "low", "high", "starts")}
    return ChartCurve(slot=slot, **columns)


def _settings(project: Project, names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    found: dict[str, Any] = compared([project.trial(name) for name in names])
    keys = [key for key in ("evaluation_return", "return") if key in found["figures"]][:1]
    trials = sorted(found["trials"], key=lambda one: _result(one["figures"], keys), reverse=True)
    differing = found["differing"]
    rows = [
        [
            one["name"],
            *(_number(one["figures"].get(key)) for key in keys),
            *(_word(one["settings"], name) for name in differing),
        ]
        for one in trials
    ]
    head = "<h2>Settings that differ</h2>"
    if not differing:
        return f"{head}<p>None: all trials have the same settings.</p>"
    return head + _table(["Trial", *keys, *differing], rows, numbers=range(1, 1 + len(keys)))


def _code(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the commits of the newest launches, and whether these had uncommitted changes."""
    newest = [(one["name"], one["launches"][0]) for one in found if one["launches"]]
    told = [(name, one["record"].get("commit"), one["changes"]) for name, one in newest]
    if len(told) < 2 or not any(commit for _, commit, _ in told):
        return ""
    if len({one[1:] for one in told}) == 1:
        return "<h2>Code that differs</h2><p>None: all trials ran the same commit and changes.</p>"
    rows = [
        [name, str(commit or "–")[:10], f"{changes.count(chr(10)):,} lines" if changes else "none"]
        for name, commit, changes in told
    ]
    return "<h2>Code that differs</h2>" + _table(["Trial", "Commit", "Uncommitted changes"], rows)


def _result(figures: Mapping[str, float], keys: Sequence[str]) -> float:
    return figures.get(keys[0], float("-inf")) if keys else 0.0


def _word(settings: Mapping[str, object], name: str) -> str:
    if name not in settings:
        return "–"
    value = settings[name]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _trial(found: Mapping[str, Any]) -> str:
    note = found["notes"]["text"]
    launches = [(one["name"], one["record"], one["changes"]) for one in found["launches"]]
    parts = [f"<h2>{escape(found['name'])}</h2>"]
    if note:
        parts.append(f"<pre>{escape(note)}</pre>")
    numbers = [
        (n, v) for n, v in found["result"].items() if isinstance(v, int | float | str) and v != ""
    ]
    if numbers:
        rows = [[name, _number(v) if not isinstance(v, str) else v] for name, v in numbers]
        parts.append("<h3>Result</h3>" + _table(["Figure", "Value"], rows, numbers=(1,)))
    for name, record, changes in launches[:5]:
        rows = [[key, _said(key, record[key])] for key in _LAUNCH if record.get(key)]
        parts.append(f"<h3>Launch {escape(name)}</h3>" + _table(["", ""], rows, text=(1,)))
        if changes:
            diff = f"<pre>{escape(changes)}</pre>"
            parts.append(f"<details><summary>{escape(CHANGES)}</summary>{diff}</details>")
    if found["config"]:
        text = f"<pre>{escape(found['config'])}</pre>"
        parts.append(f"<details><summary>All settings</summary>{text}</details>")
    return "".join(parts)


def _said(name: str, value: Any) -> str:
    if name.endswith("_s") and isinstance(value, int | float) and 0 <= value < 2.5e11:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return short_number(value) if isinstance(value, int | float) else "–"


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    text: Iterable[int] = (),
    markup: Iterable[int] = (),
) -> str:
    """Return a table; cells are escaped, but for columns that are markup already."""
    kinds = dict.fromkeys(numbers, ' class="number"') | dict.fromkeys(text, ' class="text"')
    plain = set(markup)

    def cells(row: Sequence[str], tag: str) -> str:
        shown = (c if i in plain else escape(c) for i, c in enumerate(row))
        return "".join(f"<{tag}{kinds.get(i, '')}>{c}</{tag}>" for i, c in enumerate(shown))

    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>" if any(heads) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    scrolling = '<div class="wide" tabindex="0" role="region" aria-label="Table">'
    return f"{scrolling}<table>{head}<tbody>{body}</tbody></table></div>"
