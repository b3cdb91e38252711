"""Training from a program: what `bray train` does, in a line of Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bray.callbacks import Callback, Callbacks
from bray.composition.refused_trial import removed_if_refused
from bray.composition.resumed_algorithms import check_algorithms
from bray.composition.whole_run import already_reached, completed_goal, run_template
from bray.retention import RetentionPolicy
from bray.run import Run, init
from bray.templates.loading import compose
from bray.templates.loading import load as load_template
from bray.templates.template import Template
from bray.trained.agent import TrainedAgent
from bray.trained.environment_names import environment_name
from bray.trained.evaluation_videos import with_videos
from bray.trained.first_episodes import record_first_episodes
from bray.training.algorithm import load_algorithm
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import as_name, trial_name, trial_path
from bray_core.process.user_modules import code_name

_OPTIONS = {
    "goal": "goal.episode_return",
    "frames": "goal.max_frames",
    "episodes": "goal.evaluation_episodes",
    "seed": "seed",
}

_SCHEDULE = (
    "; a number that changes in training is a schedule: "
    '{"start": 1e-3, "end": 1e-4, "frames": 100_000, "shape": "linear"}'
)


def train(
    environment: str | Callable[..., Any],
    algorithm: str | type[Any] | None = None,
    *,
    goal: float | None = None,
    frames: float | None = None,
    episodes: int | None = None,
    seed: int | None = None,
    trial: str | Path | None = None,
    runtime: Literal["local", "ray"] = "local",
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> TrainedAgent:
    """Train a policy and return it: the version with the best evaluation.

    It does what `bray train` does, into the same folder: a trial that is there goes on, and one
    that has reached its goal is loaded as it is.

    Args:
        environment: a Gymnasium id, `module:Class`, `file.py:Class`, or a class or function that
            returns an environment; without `algorithm` the name of a template that ships with
            bray, such as `cartpole`, or the path of one. Ray's processes, and those of
            `stepping="processes"`, take what lies at the top of a module or of the program's file.
        algorithm: name of the algorithm, such as `ppo`, or a class of yours; None: a template says
            it.
        goal: mean return that an evaluation must reach; None: the template's, or the one that the
            environment is registered with.
        frames: environment steps after which training gives up, such as 1e6; None: the algorithm's
            budget.
        episodes: episodes of an evaluation; None: 100.
        seed: seed of everything random; None: the template's, or 1.
        trial: name of the trial below `trials`, or, with a slash or as a `Path`, a folder, as
            `--trial` takes them; None: the one that the command would make.
        runtime: `local` for this process, `ray` for a cluster.
        callbacks: what is told how training goes, see `bray.Callback`.
        settings: settings of the algorithm and its parts, such as `learning_rate=3e-4`; what names
            code takes the class or function itself, too, such as `network=HeroNet`.

    Returns:
        The trained policy; it need not have reached the goal: `evaluate` says how good it is.

    Raises:
        ConfigError: an algorithm, an environment or a setting is unknown or out of range, or the
            run trains something that `TrainedAgent` cannot play.
    """
    written = overrides_of(settings, goal=goal, frames=frames, episodes=episodes, seed=seed)
    told = _listeners(callbacks)
    algorithm = algorithm_name(algorithm)
    if algorithm is None:
        if not isinstance(environment, str):
            raise ConfigError(
                f"algorithm: expected one for {environment!r}, such as 'ppo', got None: only a "
                "template says its own"
            )
        template = load_template(environment, written)
        name = as_name(Path(environment).stem)
    else:
        stepping = settings.get("stepping", settings.get("source.stepping"))
        in_processes = runtime == "ray" or stepping == "processes"
        task = environment_name(environment, needs_processes=in_processes)
        template = compose(algorithm, task, written)
        name = trial_name(algorithm, task, template.seed)
    _check_answers(template)
    folder = trial_path(name if trial is None else trial)
    wanted = completed_goal(template)
    check_algorithms(folder, template.to_mapping())
    if already_reached(folder, wanted) is None:
        open_run = with_videos(partial(_open, folder, runtime, told), template)
        with removed_if_refused(folder):
            run_template(template, open_run, wanted)
        record_first_episodes(template, folder)
    return TrainedAgent(folder)


def _listeners(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return callbacks that can be told, before a run is opened for them.

    Raises:
        ConfigError: there are no callbacks in order, or one is none.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks: expected a list of bray.Callback, got {callbacks!r}")
    found = tuple(callbacks)
    for callback in found:
        Callbacks().add(callback)
    return found


def algorithm_name(algorithm: object) -> str | None:
    """Return the name of an algorithm, which may be given as its class.

    Raises:
        ConfigError: it is neither.
    """
    if algorithm is None or isinstance(algorithm, str):
        return algorithm
    name = code_name(algorithm) if isinstance(algorithm, type) else None
    if name is None:
        raise ConfigError(
            "algorithm: expected a name, such as 'ppo', or a class that lies at the top of a "
            f"module or of the program's file, got {algorithm!r}"
        )
    return name


def _check_answers(template: Template) -> None:
    """Refuse what `TrainedAgent` cannot play before it is trained.

    Raises:
        ConfigError: the algorithm's policy answers no environment.
    """
    if load_algorithm(template.algorithm).serves == "function":
        raise ConfigError(
            f"algorithm: {template.algorithm} trains a policy for rows alone, which plays no "
            "environment: train it with the command `bray train`, and open it with bray.Model "
            "(`bray watch` shows a trial of AlphaZero)"
        )


def overrides_of(settings: Mapping[str, Any], **options: float | None) -> list[str]:
    """Return settings and the options `goal`, `frames`, `episodes`, `seed` as the command's.

    Raises:
        ConfigError: a setting cannot be written.
    """
    given = {_OPTIONS[name]: _plain(value) for name, value in options.items() if value is not None}
    return [_override(name, value) for name, value in {**settings, **given}.items()]


def _override(name: str, value: object) -> str:
    """Return a setting as the command line writes it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        return f"{name}={json.dumps(value, default=_plain_or_named)}"
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}: expected a number, a word, a list or a mapping, got {error}; where code is "
            "meant, it lies at the top of a module or of the program's file, or is named as "
            "module:Class or file.py:Class" + (_SCHEDULE if inspect.isfunction(value) else "")
        ) from error


def _plain(value: Any) -> Any:
    """Return an option as Python's own number: numpy's, and whole ones such as 1e6."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain_or_named(value: Any) -> Any:
    """Return arrays and numbers of numpy and torch as Python's own, and the name of code.

    Raises:
        TypeError: it is neither.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    name = code_name(value)
    if name is None:
        raise TypeError(type(value).__name__)
    return name


def _open(
    folder: Path,
    runtime: Literal["local", "ray"],
    callbacks: Sequence[Callback],
    config: Mapping[str, Any],
    keep: RetentionPolicy,
) -> Run:
    sinks = config.get("sinks", ())
    run = init(folder.parent, folder.name, runtime, config=config, keep=keep, sinks=sinks)
    for callback in callbacks:
        run.listen(callback)
    return run


def load(
    path: str | Path, *, policy: str | None = None, deterministic: bool | None = None
) -> TrainedAgent:
    """Return the trained policy of a trial, an export or a packed agent.

    Args:
        path: folder of a trial, or of an export, or a file that `bray pack` wrote; the name of a
            trial below `trials`, too.
        policy: name of the policy's model, where a trial has several.
        deterministic: whether it takes the most likely actions; None: as the export says, which is
            that it does.

    Raises:
        NotFoundError, ConfigError, ExportError: see `TrainedAgent`.
    """
    found = trial_path(path)
    named = found if found.exists() and not Path(path).exists() else path
    return TrainedAgent(named, policy=policy, deterministic=deterministic)
