"""Reading templates: by name, path or trial, or from an algorithm and a task alone."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from bray import registry
from bray.games.board_game import PREFIX
from bray.sources.curriculum import Curriculum
from bray.templates.callbacks import check_callbacks
from bray.templates.full_form import read_composition, source_names
from bray.templates.schema import RENAMED, chosen_schema, template_of
from bray.templates.template import Template, names
from bray.templates.written_parts import is_full_form
from bray.training.algorithm import PARTS, Algorithm, load_algorithm
from bray_actor.multi_agent.making import OPEN_SPIEL
from bray_actor.multi_agent.pettingzoo_modules import import_known, known_modules
from bray_actor.spaces import resolve
from bray_core.config import load_text
from bray_core.errors import ConfigError
from bray_core.files.trial_folders import CONFIG
from bray_core.metrics.named_sinks import find_sinks
from bray_core.process.user_modules import NOT_FOUND, find_user_code, import_user_code
from bray_core.settings.choice import closest
from bray_core.settings.settings_load import load_tree
from bray_core.settings.settings_tree import Value, read, unwrap
from bray_core.settings.settings_tree import parse as parse_tree

_WHOLE = ("algorithm", "enable", "seed", "render", "goal", "keep", "callbacks", "sinks")
"""Keys of a template that are no settings of an algorithm."""
TASK = re.compile(r"[-_]v\d+$")
"""How the names of tasks end, of Gymnasium and PettingZoo."""
_KIND = "source.kind"
_PETTINGZOO = {"ParallelEnv": "agents", "AECEnv": "matches"}
_MAKERS = {"parallel_env": "agents", "env": "matches"}
"""What modules of PettingZoo's kind call their functions, with the kind of source for each."""
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_OWN = partial(chosen_schema, runs_own_code=True)


def path_of(name: str) -> Path:
    """Return the file of a template: shipped, of its own, or that of a trial.

    Raises:
        ConfigError: there is none; names the closest that ships.
    """
    if name in names():
        return Path(str(resources.files("bray") / "templates" / f"{name}.yaml"))
    if Path(name, CONFIG).is_file():
        return Path(name, CONFIG)
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"template: no file {name!r}")
    if name in registry.names():
        raise ConfigError(
            f"template: {name!r} is an algorithm: name a task, too, such as {name} "
            f"{load_algorithm(name).example}"
        )
    if TASK.search(name):
        raise ConfigError(
            f"template: {name!r} is a task: name an algorithm, too, such as ppo, which plays it"
        )
    raise ConfigError(
        f"template: unknown {name!r}{closest(name, names())}; "
        f"known: {', '.join(names())}, or the path of a YAML file or a trial"
    )


def load(name: str, overrides: Sequence[str] = (), environment: str | None = None) -> Template:
    """Read a template by name or path.

    Variables of the environment such as `BRAY_TRAINER__LEARNING_RATE` win over the file, and
    overrides over both.

    Args:
        name: name of a shipped template, path of a YAML file, or path of a trial.
        overrides: settings such as `trainer.learning_rate=3e-4`, or `learning_rate=3e-4` where
            only one part has such a setting.
        environment: what is played instead: a Gymnasium id, the short name of an Atari game, or a
            task of the algorithm's own. The file's goal then is not that of another environment.

    Raises:
        ConfigError: naming file, line, column, key, what came and what is allowed.
    """
    tree = read(path_of(name))
    if is_full_form(tree):
        overrides = [*_instead(source_names(tree), environment), *overrides]
        composition = read_composition(tree, overrides, os.environ, runs_own_code=True)
        return _own_code_checked(Template.of(composition))
    algorithm = _algorithm_of(tree, overrides)
    overrides = _dotted(algorithm, overrides)
    if environment is not None:
        is_id = algorithm is not None and algorithm.serves == "actor"
        played = resolve(environment) if is_id and ":" not in environment else environment
        was = load_tree(tree, _OWN, overrides, os.environ, renamed=RENAMED).source.environment
        forgotten = ["goal.episode_return=null", "goal.evaluate_at=null"] if played != was else []
        overrides = [*forgotten, *overrides, f"source.environment={played}"]
    loaded = load_tree(tree, _OWN, overrides, os.environ, renamed=RENAMED)
    return _own_code_checked(template_of(loaded))


def compose(name: str, task: str, overrides: Sequence[str] = ()) -> Template:
    """Return the template of an algorithm and a task, with what suits these.

    A game of PettingZoo or OpenSpiel is played by one policy for all agents: in matches where they
    take turns, else together; `source.kind=` says otherwise.

    Args:
        name: name of the algorithm.
        task: what is played, such as a Gymnasium id.
        overrides: settings, see `load`.

    Raises:
        ConfigError: the algorithm or a setting is unknown, or out of range; or the name is that of
            a template, which has a task already.
    """
    is_template = name in names() and name not in registry.REMOVED
    if is_template or name.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"command line: the template {name} has its task already: expected key=value after it, "
            f"or --env {task}, got {task!r}"
        )
    algorithm = load_algorithm(name)
    told = [one.partition("=")[2].strip() for one in overrides if _key(one) == _KIND]
    kind = told[-1] if told else _kind_of_source(algorithm, task)
    if kind is not None:
        source = f"{{kind: {_quoted(kind)}, environment: {_quoted(task)}}}"
        tree = parse_tree(f"algorithm: {_quoted(name)}\nsource: {source}", "command line")
        others = [one for one in overrides if _key(one) != _KIND]
        composition = read_composition(tree, others, os.environ, runs_own_code=True)
        return _own_code_checked(Template.of(composition))
    written = [f"source.environment={_quoted(task)}", *_dotted(algorithm, overrides)]
    text = f"algorithm: {_quoted(name)}"
    loaded = load_text(text, "command line", _OWN, overrides=written, environment=os.environ)
    return _own_code_checked(template_of(loaded))


def _kind_of_source(algorithm: type[Algorithm[Any]], task: str) -> str | None:
    """Return what kind of source plays a game of several agents; None: the algorithm's own."""
    if algorithm.takes.plays != "environments":
        return None
    if task.startswith((OPEN_SPIEL, PREFIX)):
        return "matches"
    if task.rpartition(":")[2].isidentifier() and ":" in task:
        return _kind_of_class(task)
    return _kind_of_module(task)


def _kind_of_module(task: str) -> str | None:
    """Return what kind of source plays a module of PettingZoo's, or one made like these."""
    is_known = task in known_modules()
    if not is_known and not task.endswith(".py") and not _MODULE.fullmatch(task):
        return None
    try:
        found = import_known(task) if is_known else import_user_code(task)
    except NOT_FOUND as error:  # which is told where the environment is made
        is_absent = isinstance(error, ModuleNotFoundError) and task.startswith(f"{error.name}")
        return None if is_absent else "agents"
    made = (kind for name, kind in _MAKERS.items() if callable(getattr(found, name, None)))
    return next(made, None)


def _kind_of_class(task: str) -> str | None:
    """Return what kind of source plays a class of PettingZoo's, named as `module:Class`."""
    found = None
    with contextlib.suppress(Exception):  # which is told where the environment is made
        found = find_user_code(task)
    bases = getattr(found, "__mro__", ())
    names = {base.__name__ for base in bases if base.__module__.startswith("pettingzoo.")}
    return next((kind for name, kind in _PETTINGZOO.items() if name in names), None)


def parse(text: str, source: str) -> Template:
    """Read a template's YAML text as it stands, without running code that it names.

    Args:
        text: the YAML.
        source: what a problem's place begins with.

    Raises:
        ConfigError: the text is no valid template; see `load`.
    """
    tree = parse_tree(text, source)
    if is_full_form(tree):
        return Template.of(read_composition(tree, runs_own_code=False))
    return template_of(load_tree(tree, chosen_schema, renamed=RENAMED))


def _instead(sources: Sequence[str], environment: str | None) -> list[str]:
    """Return the overrides that put another environment into a template of the full form.

    Raises:
        ConfigError: there are several sources.
    """
    if environment is None:
        return []
    if len(sources) != 1:
        names = ", ".join(f"sources.{name}.environment=" for name in sources)
        raise ConfigError(f"--env: expected a template with one source, got several: write {names}")
    cleared = [f"goal.{key}=null" for key in ("episode_return", "evaluate_at")]
    return [*cleared, f"sources.{sources[0]}.environment={environment}"]


def _own_code_checked(template: Template) -> Template:
    """Return a template of its owner, whose callbacks, sinks and curricula are checked."""
    check_callbacks(template.callbacks)
    find_sinks(template.sinks)
    sources = [template.parts.source]
    if template.composition is not None:
        sources = [one.config for one in template.composition.sources.values()]
    for source in sources:
        curriculum = getattr(source, "curriculum", None)
        if curriculum is not None:
            Curriculum(curriculum)
    return template


def _quoted(text: str) -> str:
    """Return a word as YAML reads it as text."""
    return "'" + text.replace("'", "''") + "'"


def _algorithm_of(tree: Value, overrides: Sequence[str]) -> type[Algorithm[Any]] | None:
    """Return the algorithm of a template; None where it names none, which is told when it loads."""
    content = unwrap(tree)
    written = content if isinstance(content, Mapping) else {}
    name = written.get("algorithm", written.get("recipe"))
    for text in overrides:
        if RENAMED.get(_key(text), _key(text)) == "algorithm":
            name = text.partition("=")[2].strip()
    try:
        return load_algorithm(name) if isinstance(name, str) else None
    except ConfigError:
        return None


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _dotted(algorithm: type[Algorithm[Any]] | None, overrides: Sequence[str]) -> list[str]:
    """Return overrides with today's names, and the part before each setting that has none."""
    found = []
    for text in overrides:
        key, equals, value = text.partition("=")
        key = RENAMED.get(key, key)
        if algorithm is not None and equals:
            key = _in_its_part(algorithm, key)
        found.append(f"{key}{equals}{value}")
    return found


def _in_its_part(algorithm: type[Algorithm[Any]], key: str) -> str:
    """Return a key with its part: `source.kwargs.length` for `kwargs.length`."""
    setting, dot, rest = key.partition(".")
    if setting in (*_WHOLE, *PARTS):
        return key
    try:
        return f"{algorithm.part_of(setting)}{dot}{rest}"
    except ConfigError:
        if dot:  # an unknown part, which is told with its place when all is loaded
            return key
        raise
