"""`bray train … --seeds 5`: one trial of each seed, one after the other, and one report."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bray_core.errors import BrayError, ConfigError
from bray_core.files.json_file import finite
from bray_core.trials.seed_group import SeedSpread, spread
from bray_core.trials.trial import RESULT, Trial

if TYPE_CHECKING:
    from bray.cli.launch import Launch
    from bray.goal import Goal, Outcome
    from bray.templates.template import Template

TrainOne: TypeAlias = "Callable[[Template, Launch, Goal], Outcome]"
"""Trains a template in a trial."""

logger = logging.getLogger(__name__)

_NOT_LEARNT_WITH = ("goal", "keep", "sinks", "callbacks", "render", "enable")
"""Settings that leave what is learnt as it is."""
MAX_SEEDS = 1000
"""Seeds of one command."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedResult:
    """How one seed's trial ended."""

    seed: int
    """The seed."""
    trial: str
    """Name of the trial."""
    evaluation_return: float | None = None
    """Mean return of its last evaluation; None where it has none."""
    frames: int = 0
    """Environment steps of the trial."""
    reached: bool = False
    """Whether it reached its goal."""
    error: str = ""
    """What it failed with; empty where it did not fail."""


def train_seeds(
    template: Template,
    launch: Launch,
    count: int,
    goal: Goal,
    train: TrainOne,
    *,
    is_json: bool,
    goes_on: bool,
) -> int:
    """Train a template with so many seeds; return the exit code.

    The trials are named `name-1` to `name-N`; their seeds begin with the template's. A trial that
    has ended is not trained again, but reported, unless its settings were others; one that was
    interrupted goes on. A seed that fails is reported, and the others go on.

    Args:
        template: what to run.
        launch: where to run it; its trial names the group.
        count: number of seeds.
        goal: the template's, completed.
        train: trains one seed in a trial of its own.
        is_json: whether the report is printed as one line of JSON instead of words.
        goes_on: whether trials that have ended train on.

    Returns:
        0: all reached their goal; 1: some did not; 2: some failed.

    Raises:
        ConfigError: the number of seeds is out of range.
    """
    if not 1 <= count <= MAX_SEEDS:
        raise ConfigError(f"--seeds: expected 1 to {MAX_SEEDS}, got {count}")
    results = [
        _train_one(
            template.with_seed(template.seed + index),
            replace(launch, trial=f"{launch.trial}-{index + 1}"),
            goal,
            train,
            goes_on=goes_on,
        )
        for index in range(count)
    ]
    together = spread(_returns(results))
    report = _document(results, together) if is_json else _report(launch.trial, results, together)
    sys.stdout.write(report + "\n")
    if any(result.error for result in results):
        return 2
    return 0 if all(result.reached for result in results) else 1


def _train_one(
    template: Template, launch: Launch, goal: Goal, train: TrainOne, *, goes_on: bool
) -> SeedResult:
    """Train one seed, unless its trial has ended."""
    seed = template.seed
    try:
        known = None if goes_on else _ended(launch.project / launch.trial, goal)
        if known is not None:
            _check_same(launch.project / launch.trial, template)
            return SeedResult(seed=seed, trial=launch.trial, **known)
        outcome = train(template, launch, goal)
    except Exception as error:  # the others go on; the report tells
        logger.exception("seed %d failed", seed)
        words = str(error) if isinstance(error, BrayError) else f"{type(error).__name__}: {error}"
        sys.stderr.write(f"error: {launch.trial}: {words}\n")
        return SeedResult(seed=seed, trial=launch.trial, error=words)
    return SeedResult(
        seed=seed,
        trial=launch.trial,
        evaluation_return=finite(outcome.evaluation_return),
        frames=outcome.frames,
        reached=outcome.reached,
    )


def _ended(trial: Path, goal: Goal) -> dict[str, Any] | None:
    """Return the result of a trial that has nothing left to do; None of any other."""
    from bray.composition.whole_run import already_reached

    if not (trial / RESULT).is_file():
        return None
    result = Trial(trial).result()
    frames = finite(result.get("frames")) or 0
    has_ended = result.get("stopped") or frames >= goal.budget or already_reached(trial, goal)
    if not has_ended:
        return None
    return {
        "evaluation_return": finite(result.get("evaluation_return")),
        "frames": int(frames),
        "reached": result.get("reached") is True,
    }


def _check_same(trial: Path, template: Template) -> None:
    """Refuse to report the result of a trial as that of other settings.

    Raises:
        ConfigError: the trial was trained with others; names the first that differs.
    """
    known, now = Trial(trial).config(), template.to_mapping()
    for name in _NOT_LEARNT_WITH:
        now.pop(name, None)
    if (found := _first_difference(known, now, "")) is not None:
        name, before, after = found
        raise ConfigError(
            f"{trial} has ended with {name}={before!r:.60}, here it is {after!r:.60}: name another "
            "with --trial, or train it on with --go-on"
        )


def _first_difference(known: Any, now: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the dotted name of a setting that both have, with its two values; None: all alike."""
    if isinstance(known, dict) and isinstance(now, dict):
        inner = (
            _first_difference(known[name], now[name], f"{path}.{name}" if path else name)
            for name in now
            if name in known  # an earlier version of bray had fewer settings
        )
        return next((one for one in inner if one is not None), None)
    return None if known == now else (path, known, now)


def _returns(results: Sequence[SeedResult]) -> list[float]:
    found = (result.evaluation_return for result in results)
    return [value for value in found if value is not None]


def _document(results: Sequence[SeedResult], together: SeedSpread | None) -> str:
    document = {
        "seeds": [asdict(result) for result in results],
        "evaluation_return": None if together is None else asdict(together),
    }
    return json.dumps(document)


def _report(group: str, results: Sequence[SeedResult], together: SeedSpread | None) -> str:
    rows = [("trial", "seed", "return", "frames", "")]
    rows += [
        (
            result.trial,
            str(result.seed),
            "–" if result.evaluation_return is None else f"{result.evaluation_return:,.6g}",
            f"{result.frames:,}",
            f"failed: {result.error}"
            if result.error
            else "reached"
            if result.reached
            else "not reached",
        )
        for result in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(["", *lines, "", f"{group}: {in_words(together)}"])


def in_words(together: SeedSpread | None) -> str:
    """Return a figure over seeds in words."""
    if together is None:
        return "no seed has a return"
    return (
        f"median {together.median:,.6g}, interquartile mean {together.interquartile_mean:,.6g}, "
        f"{together.least:,.6g} to {together.greatest:,.6g}, over {together.num_seeds} seeds"
    )
