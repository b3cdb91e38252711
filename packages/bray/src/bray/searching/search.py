"""The search: asks Optuna for settings, trains a trial with them, tells how good they were."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import yaml

from bray.searching.config import SearchOptions
from bray.searching.ranges import NumberRange, Range, num_values
from bray.searching.results import BEST, TEMPLATE, SearchedTrial, SearchResult, trial_folder
from bray.searching.study import Study, check_installed
from bray.searching.trial_runner import TrialRunner
from bray.templates.loading import load
from bray_core.cli import check_interrupted
from bray_core.errors import AlreadyExistsError, BrayError, ConfigError
from bray_core.files.output_file import check_output_folder
from bray_core.files.saved_file import write_atomic
from bray_core.trials.trial_lock import lock_trial

SEARCHES = Path("searches")
"""Default folder of searches."""
_MOST_FAILURES = 3
"""Trials that fail one after the other before the search gives up."""
_MOST_REFUSED = 100
"""Combinations that are refused one after the other before the search gives up."""
_SAMPLER_DRAWS = 5
"""Combinations of the sampler that are refused one after the other before the next ones are drawn
evenly: what has learnt may draw nearly the same again."""
_END_S = 15.0
"""Seconds that trials have to save a checkpoint when the search ends before them."""
_POLL_S = 0.1

Tell = Callable[[SearchedTrial, bool], None]
"""Called with each trial that has ended, or was refused, and whether it is the best so far, by the
thread that ran it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """What is searched, checked."""

    folder: Path
    """Folder of the search; made if it is absent."""
    text: str
    """The template, as YAML."""
    fixed: Sequence[str]
    """Overrides that every trial has."""
    ranges: Sequence[Range]
    """Settings that vary."""
    config: SearchOptions
    """How it is searched."""

    @property
    def most(self) -> int:
        """Trials of the whole search; a grid has no more than its cells."""
        if self.config.sampler != "grid":
            return self.config.trials
        return min(self.config.trials, prod(num_values(one) for one in self.ranges))

    def began_with(self) -> dict[str, Any]:
        """Return what a search that goes on has in common with the launch before."""
        ranges = {one.key: [*one.ends(), *_kind(one)] for one in self.ranges}
        return {"template": self.text, "settings": list(self.fixed), "ranges": ranges}


def run_search(plan: SearchPlan, tell: Tell = lambda trial, is_best: None) -> SearchResult:
    """Search until there are enough trials; one that was killed goes on.

    The best settings are written as a template beside the trials.

    Raises:
        ConfigError: the folder holds another search.
        AlreadyExistsError: another process searches in the folder.
        BrayError: three trials failed, one after the other.
        MissingExtraError: Optuna is not installed.
    """
    check_installed()
    check_output_folder("folder", plan.folder)
    with _locked(plan.folder):
        name = plan.folder.name
        study = Study(plan.folder, name, plan.ranges, plan.config, plan.began_with())
        write_atomic(plan.folder / TEMPLATE, plan.text.encode())
        try:
            _Launch(plan, study, tell).run()
        finally:
            result = SearchResult(
                folder=plan.folder, trials=study.trials(), importances=study.importances()
            )
            _write_best(plan, study, result)
        return result


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        handle = lock_trial(folder)
    except AlreadyExistsError as error:
        raise AlreadyExistsError(f"search {folder}: another process searches here") from error
    try:
        yield
    finally:
        os.close(handle)


def _kind(one: Range) -> list[str]:
    if not isinstance(one, NumberRange):
        return []
    return ["log"] * one.is_log + ["int"] * one.is_whole


def _write_best(plan: SearchPlan, study: Study, result: SearchResult) -> None:
    best = result.best
    if best is None:
        return
    template = load(str(plan.folder / TEMPLATE), [*plan.fixed, *study.overrides(best.number)])
    text = yaml.safe_dump(template.to_mapping(), sort_keys=False)
    head = f"# The settings of {best.trial}, of {len(result.trials)} trials: {best.value:.6g}.\n"
    write_atomic(plan.folder / BEST, (head + text).encode())


@dataclass(eq=False, slots=True)
class _Launch:
    """One launch of a search: threads that each run a trial after the other."""

    plan: SearchPlan
    study: Study
    tell: Tell
    _errors: queue.SimpleQueue[BaseException] = field(default_factory=queue.SimpleQueue)
    _resumed: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    _running: set[TrialRunner] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: bool = False
    _failures: int = 0

    def run(self) -> None:
        """Run trials until there are enough, or until Ctrl-C."""
        for number in self.study.unfinished():
            self._resumed.put(number)
        threads = [
            threading.Thread(target=self._work, name=f"bray-search-{index}", daemon=True)
            for index in range(self.plan.config.jobs)
        ]
        for thread in threads:
            thread.start()
        try:
            while self._errors.empty() and any(thread.is_alive() for thread in threads):
                check_interrupted()
                time.sleep(_POLL_S)
            if not self._errors.empty():
                raise self._errors.get()
        except BaseException:
            self._end(threads)
            raise

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        with self._lock:
            self._is_over = True
            running = list(self._running)
        for runner in running:
            runner.end()
        due = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, due - time.monotonic()))
        for runner in running:
            runner.kill()

    def _work(self) -> None:
        try:
            while (runner := self._next()) is not None:
                try:
                    runner.run()
                finally:
                    with self._lock:
                        self._running.discard(runner)
                self._tell(runner.number)
        except Exception as error:  # noqa: BLE001  `run` raises it in its own thread
            with self._lock:
                self._is_over = True
            self._errors.put(error)

    def _next(self) -> TrialRunner | None:
        """Return the next trial's runner; None where there is nothing more to do."""
        with self._lock:
            if self._is_over:
                return None
            number = None
            with contextlib.suppress(queue.Empty):
                number = self._resumed.get_nowait()
            if number is None:
                number = self._drawn()
            if number is None:
                return None
            runner = TrialRunner(
                self.study, number, self.plan.folder / trial_folder(number), self._task(number)
            )
            self._running.add(runner)
            return runner

    def _drawn(self) -> int | None:
        """Begin another trial, of settings that go together; None where there are enough.

        Raises:
            BrayError: no combination is taken.
        """
        for count in itertools.count():
            number = self.study.ask(self.plan.most, at_random=count >= _SAMPLER_DRAWS)
            if number is None:
                self._check_any()
                return None
            try:
                load(str(self.plan.folder / TEMPLATE), self._overrides(number))
            except ConfigError as error:
                self.study.refuse(number, str(error))
                self.tell(self.study.trials()[number], False)
                if count + 1 == _MOST_REFUSED and self.plan.config.sampler != "grid":
                    raise BrayError(
                        f"{_MOST_REFUSED} combinations of settings were refused, one after the "
                        f"other; the last: {error}: choose other ranges"
                    ) from error
            else:
                return number
        return None

    def _check_any(self) -> None:
        """Raise BrayError where all combinations of a grid were refused."""
        trials = self.study.trials()
        if trials and all(one.state == "refused" for one in trials):
            raise BrayError(
                f"all {len(trials)} combinations of settings were refused; the last: "
                f"{trials[-1].error}: choose other ranges"
            )

    def _overrides(self, number: int) -> list[str]:
        return [*self.plan.fixed, *self.study.overrides(number)]

    def _task(self, number: int) -> Mapping[str, Any]:
        config = self.plan.config
        return {
            "template": str(self.plan.folder / TEMPLATE),
            "overrides": self._overrides(number),
            "folder": str(self.plan.folder / trial_folder(number)),
            "evaluations": config.evaluations,
            "runtime": config.runtime,
            "address": config.address,
        }

    def _tell(self, number: int) -> None:
        trials = self.study.trials()
        trial = trials[number]
        if trial.state == "running":  # interrupted
            return
        earlier = SearchResult(folder=self.plan.folder, trials=trials, importances={})
        self.tell(trial, earlier.best is trial)
        with self._lock:
            self._failures = self._failures + 1 if trial.state == "failed" else 0
            if self._failures >= _MOST_FAILURES:
                raise BrayError(
                    f"{_MOST_FAILURES} trials failed, one after the other; the last, "
                    f"{self.plan.folder / trial.trial}: {trial.error}"
                )
