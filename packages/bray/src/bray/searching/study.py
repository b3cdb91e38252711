"""Optuna's study of a search: the only file that imports Optuna."""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from bray.searching.config import SearchOptions
from bray.searching.ranges import NumberRange, Range, num_values, written
from bray.searching.results import DATABASE, SearchedTrial, trial_folder
from bray_core.errors import ConfigError, MissingExtraError

try:
    import optuna
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError
except ImportError:  # whoever never searches does without
    optuna = None

_BEGAN_WITH = "bray"
_FRAMES = "frames"
_ERROR = "error"
_REFUSED = "refused"
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
_OTHER_DRAWS = 1_000_000
_LEAST_TRIALS = 4
"""Ended trials from which importances say anything."""

logger = logging.getLogger(__name__)


def check_installed() -> None:
    """Raise MissingExtraError where Optuna is not installed."""
    if optuna is None:
        raise MissingExtraError("bray search", "bray", "search")


class Study:
    """A study in a SQLite file of the search's folder. Its methods may be called by any thread.

    Args:
        folder: folder of the search.
        name: name of the study.
        ranges: settings that vary.
        config: settings of the search.
        began_with: what the search is about: another one in the same folder is refused.

    Raises:
        ConfigError: the folder holds another search or no study, or the sampler does not suit the
            ranges.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        ranges: Sequence[Range],
        config: SearchOptions,
        began_with: Mapping[str, Any],
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._lock = threading.Lock()
        self._is_grid = config.sampler == "grid"
        self._ranges = {one.key: one for one in ranges}
        self._distributions = {one.key: _distribution(one) for one in ranges}
        try:
            self._study = optuna.create_study(
                storage=_address(folder.absolute() / DATABASE),
                study_name=name,
                direction="maximize",
                pruner=_pruner(config),
                load_if_exists=True,
            )
        except (SQLAlchemyError, RuntimeError) as error:
            raise ConfigError(
                f"{folder / DATABASE}: expected a study of this Optuna: "
                f"{getattr(error, 'orig', error)}: choose another --folder"
            ) from error
        known = self._study.user_attrs.get(_BEGAN_WITH)
        if known is None:
            self._study.set_user_attr(_BEGAN_WITH, dict(began_with))
        elif known != json.loads(json.dumps(began_with)):
            _refuse_other(folder, known, began_with)
        # With its first seed it would repeat the draws of the launch before.
        seed = config.seed + len(self._study.trials)
        self._study.sampler = _sampler(config, ranges, seed)
        # With the same seed it would repeat the first draws of the sampler.
        self._evenly = optuna.samplers.RandomSampler(seed=seed + _OTHER_DRAWS)

    def unfinished(self) -> list[int]:
        """Return the numbers of trials that ran when the search ended; they go on."""
        running = optuna.trial.TrialState.RUNNING
        return [
            one.number for one in self._study.get_trials(deepcopy=False) if one.state == running
        ]

    def ask(self, most: int, *, at_random: bool = False) -> int | None:
        """Begin another trial; return its number, or None where there are enough.

        Args:
            most: number of trials of the whole search, those that were refused left out.
            at_random: whether settings are drawn evenly, whatever the sampler has learnt.
        """
        with self._lock:
            known = self._study.get_trials(deepcopy=False)
            if sum(not _is_refused(one) for one in known) >= most:
                return None
            if self._is_grid:
                if len(known) >= prod(num_values(one) for one in self._ranges.values()):
                    return None
                self._study.enqueue_trial(_cell(list(self._ranges.values()), len(known)))
            sampler = self._study.sampler
            if at_random:
                self._study.sampler = self._evenly
            try:
                number: int = self._study.ask(self._distributions).number
            finally:
                self._study.sampler = sampler
            return number

    def overrides(self, number: int) -> list[str]:
        """Return the settings of a trial as a template's overrides."""
        return [f"{key}={_text(value)}" for key, value in self._settings(number).items()]

    def report(self, number: int, evaluation: int, value: float) -> bool:
        """Tell the value of an evaluation; return whether the trial is to end now.

        Args:
            number: number of the trial.
            evaluation: number of the evaluation, from 1.
            value: its mean return.
        """
        with self._lock:
            trial = self._trial(number)
            known = self._frozen(number).intermediate_values
            if evaluation not in known:  # a trial that goes on may evaluate again
                trial.report(value, evaluation)
            return bool(trial.should_prune())

    def tell(self, number: int, value: float, frames: int, *, is_pruned: bool) -> None:
        """Tell how a trial ended."""
        with self._lock:
            self._trial(number).set_user_attr(_FRAMES, frames)
            if is_pruned:
                self._study.tell(number, state=optuna.trial.TrialState.PRUNED)
            else:
                self._study.tell(number, value)

    def fail(self, number: int, error: str) -> None:
        """Tell that a trial failed."""
        with self._lock:
            self._trial(number).set_user_attr(_ERROR, error)
            self._study.tell(number, state=optuna.trial.TrialState.FAIL)

    def refuse(self, number: int, error: str) -> None:
        """Tell that the settings of a trial do not go together; it counts as none.

        To the samplers that learn it is worse than every trial that has played.
        """
        with self._lock:
            trial = self._trial(number)
            trial.set_user_attr(_REFUSED, True)
            trial.set_user_attr(_ERROR, error)
            self._study.tell(number, state=optuna.trial.TrialState.PRUNED)

    def trials(self) -> list[SearchedTrial]:
        """Return all trials by number."""
        with self._lock:
            return [self._searched(one) for one in self._study.get_trials(deepcopy=False)]

    def importances(self) -> dict[str, float]:
        """Return the share of each setting in how the value varies, greatest first.

        It is empty where fewer than four trials have ended, or all ended alike.
        """
        ended = [one for one in self.trials() if one.state == "complete"]
        if len(ended) < _LEAST_TRIALS or len({one.value for one in ended}) < 2:
            return {}
        kinds = (
            optuna.importance.FanovaImportanceEvaluator,
            optuna.importance.PedAnovaImportanceEvaluator,
        )
        for kind in kinds:
            try:
                with warnings.catch_warnings(action="ignore"):
                    found = optuna.importance.get_param_importances(self._study, evaluator=kind())
            except ImportError:  # the first one needs scikit-learn
                continue
            except (ValueError, RuntimeError) as error:
                logger.info("importances: %s", error)
                continue
            return {name: round(float(share), 4) for name, share in found.items()}
        return {}

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> Any:
        """Return the trial of a number, also one that an earlier launch began."""
        frozen = self._frozen(number)
        return optuna.trial.Trial(self._study, frozen._trial_id)

    def _settings(self, number: int) -> dict[str, Any]:
        with self._lock:
            drawn = self._frozen(number).params
        return {key: self._cast(key, value) for key, value in drawn.items()}

    def _cast(self, key: str, value: Any) -> Any:
        one = self._ranges.get(key)
        return one.cast(value) if isinstance(one, NumberRange) else value

    def _searched(self, one: Any) -> SearchedTrial:
        state: Any = _STATES.get(one.state.name, "running")
        state = "refused" if _is_refused(one) else state
        value = one.value if state == "complete" else None
        if value is None and one.intermediate_values:
            value = one.intermediate_values[max(one.intermediate_values)]
        return SearchedTrial(
            number=one.number,
            trial=trial_folder(one.number),
            state=state,
            value=value,
            settings={key: self._cast(key, drawn) for key, drawn in one.params.items()},
            frames=int(one.user_attrs.get(_FRAMES, 0)),
            error=str(one.user_attrs.get(_ERROR, "")),
        )


def _address(database: Path) -> str:
    """Return the URL of a SQLite file: a path may have `?`, `%`, and the braces Optuna fills."""
    address: str = URL.create("sqlite", database=str(database)).render_as_string()
    return address.replace("{", "{{").replace("}", "}}")


def _is_refused(one: Any) -> bool:
    return bool(one.user_attrs.get(_REFUSED, False))


def _text(value: Any) -> str:
    """Return a drawn value as an override: a choice is text already."""
    return value if isinstance(value, str) else written(value)


def _refuse_other(folder: Path, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Say what another search in the same folder is about.

    Raises:
        ConfigError: always.
    """
    for key, value in wanted.items():
        if known.get(key) != json.loads(json.dumps(value)):
            raise ConfigError(
                f"{folder}: holds a search that began with another {key}: expected "
                f"{known.get(key)!r:.300}, got {value!r:.300}: choose another --folder"
            )
    raise ConfigError(f"{folder}: holds another search: choose another --folder")


def _distribution(one: Range) -> Any:
    if not isinstance(one, NumberRange):
        return optuna.distributions.CategoricalDistribution(one.values)
    if one.is_whole:
        low, high = int(one.low), int(one.high)
        high -= (high - low) % one.step
        return optuna.distributions.IntDistribution(low, high, log=one.is_log, step=one.step)
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.is_log)


def _sampler(config: SearchOptions, ranges: Sequence[Range], seed: int) -> Any:
    with warnings.catch_warnings(action="ignore"):  # some say that they are experimental
        return _made_sampler(config, ranges, seed)


def _made_sampler(config: SearchOptions, ranges: Sequence[Range], seed: int) -> Any:
    samplers = optuna.samplers
    if config.sampler == "grid":  # each trial is told its settings
        for one in ranges:
            num_values(one)
    if config.sampler in ("random", "grid"):
        return samplers.RandomSampler(seed=seed)
    if config.sampler == "gp":
        if find_spec("scipy") is None:
            raise ConfigError("sampler: gp needs scipy: install it, or choose tpe")
        return samplers.GPSampler(seed=seed)
    # Trials that run at the same time are not to try the same: `constant_liar`.
    return samplers.TPESampler(seed=seed, constant_liar=config.jobs > 1)


def _cell(ranges: Sequence[Range], number: int) -> dict[str, Any]:
    """Return the settings of a cell of the grid; the last range varies fastest."""
    found: dict[str, Any] = {}
    for one in reversed(ranges):
        number, place = divmod(number, num_values(one))
        if isinstance(one, NumberRange):
            found[one.key] = int(one.low) + place * one.step
        else:
            found[one.key] = one.values[place]
    return found


def _pruner(config: SearchOptions) -> Any:
    pruners = optuna.pruners
    if config.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
    if config.pruner == "halving":
        return pruners.SuccessiveHalvingPruner()
    if config.pruner == "hyperband":
        return pruners.HyperbandPruner(min_resource=1, max_resource=config.evaluations)
    return pruners.NopPruner()
