"""A search from a program: what `bray search` does, in a line of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from bray.searching.config import SearchOptions
from bray.searching.ranges import of_mapping, read_ranges, split_settings
from bray.searching.results import SearchResult
from bray.searching.search import SEARCHES, SearchPlan, run_search
from bray.templates.loading import compose, load, path_of
from bray.trained.environment_names import environment_name
from bray.trained.programs import algorithm_name, overrides_of
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG, as_name
from bray_core.trials.experiment import check_name


def search(
    environment: str | Callable[..., Any],
    ranges: Mapping[str, str | Sequence[Any]],
    algorithm: str | type[Any] | None = None,
    *,
    config: SearchOptions | None = None,
    goal: float | None = None,
    frames: int | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    folder: str | Path | None = None,
    **settings: Any,
) -> SearchResult:
    """Search for settings with which an algorithm does well, and return what was found.

    It does what `bray search` does: each trial is a run in a process of its own, and a search
    that was killed goes on where it was. Needs the extra `search`.

    Args:
        environment: a Gymnasium id, `module:Class`, `file.py:Class`, or a class or function at the
            top of a module or of the program's file, which the trials' processes import; without
            `algorithm` the name of a template that ships with bray, such as `cartpole`, or the path
            of one.
        ranges: range of each setting that varies: a text such as `1e-4..1e-2:log` or `32..512:int`,
            or a list of values to choose from.
        algorithm: name of the algorithm, such as `ppo`, or a class of yours; None: a template says
            it.
        config: how many trials there are, and how they are chosen; None: `SearchOptions()`.
        goal: mean return that ends a trial; None: the template's.
        frames: environment steps of a trial; None: the template's, or the algorithm's budget.
        episodes: episodes of an evaluation; None: 100.
        seed: seed of every trial; None: the template's, or 1.
        folder: folder of the search; None: `searches/NAME`.
        settings: settings that every trial has, such as `num_envs=8`.

    Raises:
        ConfigError: a setting or a range does not fit; all that is wrong is named at once.
        MissingExtraError: Optuna is not installed.
        BrayError: three trials failed, one after the other.
    """
    fixed = overrides_of(settings, goal=goal, frames=frames, episodes=episodes, seed=seed)
    task = environment_name(environment, needs_processes=True)
    named = algorithm_name(algorithm)
    what, played = (task, None) if named is None else (named, task)
    written = [*fixed, *of_mapping(ranges)]
    return run_search(search_plan(what, played, written, config or SearchOptions(), folder))


def search_plan(
    what: str,
    task: str | None,
    overrides: Sequence[str],
    config: SearchOptions,
    folder: str | Path | None = None,
) -> SearchPlan:
    """Return what is searched, after all of it was checked.

    Args:
        what: a template, or an algorithm if there is a task.
        task: what is played; None where `what` is a template.
        overrides: settings and ranges, as the command line writes them.
        config: how it is searched.
        folder: folder of the search; None: `searches/NAME`.

    Raises:
        ConfigError: naming all that is wrong.
    """
    fixed, written = split_settings(overrides)
    if task is None:
        file = path_of(what)
        text = _text_of(file)
        ranges = read_ranges(written, fixed, partial(load, what))
        name = as_name(file.parent.name if file.name == CONFIG else file.stem)
    else:
        text = yaml.safe_dump({"algorithm": what, "source": {"environment": task}})
        ranges = read_ranges(written, fixed, partial(compose, what, task))
        name = as_name(f"{what}-{task.rpartition(':')[2]}")
    path = SEARCHES / name if folder is None else Path(folder)
    check_name(path.name, "folder")
    if (path / "launches").is_dir():
        raise ConfigError(f"folder: {path} is a trial: choose another folder for the search")
    return SearchPlan(folder=path, text=text, fixed=fixed, ranges=ranges, config=config)


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"template: {file}: cannot be read: {error}") from error
