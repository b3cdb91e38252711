"""Callbacks: code of yours that is told how training goes, and that may end it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bray.goal import Outcome
from bray_actor.episodes import PlayedEpisode
from bray_core.errors import BrayError, ConfigError
from bray_core.process.signal_errors import raise_if_of_signal
from bray_core.settings.choice import closest

logger = logging.getLogger(__name__)

Listener = Callable[[Mapping[str, float], Callable[[], None]], None]
"""Called with the figures of a run and a function that writes a checkpoint."""

_RAISED = (Exception, SystemExit)
"""What a callback may raise: some end the program once they have seen enough."""
MAX_STOP_CHARS = 500
"""Characters of the reason for which a callback may end a run."""


def _save_nothing() -> None:
    """Write no checkpoint: the trainer writes them by itself."""


def _cannot_stop(why: str) -> None:
    raise ConfigError("stop: expected within a run, got a Progress that belongs to none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far training has come."""

    frames: int
    """Environment steps of the trial, earlier launches included."""
    seconds: float
    """Seconds of this launch."""
    figures: Mapping[str, float]
    """Newest figures by name: `return`, `frames_per_s` and others; after an evaluation
    `evaluation_return`."""
    save: Callable[[], None] = field(default=_save_nothing, repr=False)
    """Writes a checkpoint; does nothing on Ray, where the trainer does so by itself, nor within
    `on_checkpoint`."""
    end_run: Callable[[str], None] = field(default=_cannot_stop, repr=False)
    """What `stop` calls."""

    def stop(self, why: str) -> None:
        """Ask the run to end: it evaluates once more, writes its checkpoint and concludes.

        Args:
            why: the reason, for `result.json` and the closing message.

        Raises:
            ConfigError: the reason is empty or longer than 500 characters.
        """
        if not isinstance(why, str) or not why.strip() or len(why) > MAX_STOP_CHARS:
            raise ConfigError(
                f"stop: expected a reason of 1 to {MAX_STOP_CHARS} characters, got {why!r:.100}"
            )
        self.end_run(why)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationResult:
    """The result of one evaluation."""

    returns: Sequence[float]
    """Returns of its episodes; empty where the algorithm tells their mean alone."""
    mean_return: float
    """Mean of the returns."""
    version: int
    """Version of the policy that was evaluated."""
    frames: int
    """Environment steps of the trial until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint of the trainer that was written."""

    path: Path
    """Its file in the trial's folder."""
    frames: int
    """Environment steps of the trial until then."""


class Callback:
    """What is called while a run trains; override what you need.

    All of it is called in the thread that drives the run, which waits meanwhile: in a local run
    training stands still. A callback that raises ends the run, with a checkpoint; the error names
    the callback. What `on_end` raises is logged: the run is over.
    """

    def on_start(self, progress: Progress) -> None:
        """Be called once, before the launch plays its first step."""

    def on_update(self, progress: Progress) -> None:
        """Be called after each turn of playing and training, and after each evaluation."""

    def on_episode(self, episode: PlayedEpisode) -> None:
        """Be called with each episode of training that has ended."""

    def on_evaluation(self, evaluation: EvaluationResult) -> None:
        """Be called with the result of each evaluation."""

    def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """Be called after the trainer has written a checkpoint."""

    def on_end(self, outcome: Outcome | None) -> None:
        """Be called once, at the end of the launch; None: an error or Ctrl-C ended it."""


class FunctionCallback(Callback):
    """A function that is called with each update's figures; its errors pass as they are.

    Args:
        listener: the function.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_update(self, progress: Progress) -> None:
        """Call the function."""
        self._listener(progress.figures, progress.save)


class Callbacks:
    """All callbacks of a run, called one after the other in the order in which they were added."""

    def __init__(self) -> None:
        self.stopped = ""
        """Why a callback has asked the run to end; empty where none has."""
        self.has_failed = False
        """Whether a callback has raised."""
        self._all: list[Callback] = []
        self._has_started = False
        self._has_ended = False
        self._tells_of_checkpoint = False

    def add(self, callback: Callback | Listener) -> None:
        """Add a callback, or a function that is called with each update's figures.

        Raises:
            ConfigError: it is neither, or it has a method that could not be called.
        """
        if isinstance(callback, Callback):
            _check_methods(callback)
            self._all.append(callback)
        elif callable(callback) and not isinstance(callback, type):
            self._all.append(FunctionCallback(callback))
        else:
            raise ConfigError(f"callback: expected a bray.Callback or a function, got {callback!r}")

    def start(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Tell that the launch begins; only the first call counts."""
        if not self._has_started:
            self._has_started = True
            self._call("on_start", self._progress(figures, save))

    def update(self, figures: Mapping[str, float], save: Callable[[], None]) -> None:
        """Tell the newest figures, with a function that writes a checkpoint."""
        self.start(figures, save)
        self._call("on_update", self._progress(figures, save))

    def episodes(self, episodes: Sequence[PlayedEpisode]) -> None:
        """Tell of episodes that ended."""
        for episode in episodes if self._all else ():
            self._call("on_episode", episode)

    def evaluation(self, evaluation: EvaluationResult) -> None:
        """Tell an evaluation's result."""
        self._call("on_evaluation", evaluation)

    def checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """Tell of a checkpoint that was written."""
        self._tells_of_checkpoint = True
        try:
            self._call("on_checkpoint", checkpoint)
        finally:
            self._tells_of_checkpoint = False

    def end(self, outcome: Outcome) -> None:
        """Tell how the launch ended; only the first call counts."""
        if not self._has_ended:
            self._end(outcome)

    def abandon(self) -> None:
        """Tell that the launch ends without an outcome, unless its end was told."""
        if not self._has_ended and self._has_started:
            self._end(None)

    def _end(self, outcome: Outcome | None) -> None:
        self._has_ended = True
        for callback in self._all:
            try:
                callback.on_end(outcome)
            except _RAISED as error:  # the outcome, or what ended the run, is kept
                raise_if_of_signal(error)
                logger.exception("callback %s: on_end", _name(callback))

    def _progress(self, figures: Mapping[str, float], save: Callable[[], None]) -> Progress:
        def save_unless_telling() -> None:
            if not self._tells_of_checkpoint:  # the newest state is in the one that is told of
                save()

        return Progress(
            frames=int(figures.get("frames", 0)),
            seconds=float(figures.get("elapsed_s", 0.0)),
            figures=figures,
            save=save_unless_telling,
            end_run=self._stop,
        )

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    def _call(self, method: str, argument: object) -> None:
        for callback in self._all:
            try:
                getattr(callback, method)(argument)
            except _RAISED as error:
                raise_if_of_signal(error)
                is_ours = type(callback).__module__.startswith("bray.")
                self.has_failed |= not (is_ours and isinstance(error, SystemExit))
                if is_ours:  # nobody wrote that one
                    raise
                words = f"{type(error).__name__}: {error}"
                if isinstance(error, SystemExit):
                    words += ": to end the run, call `stop` of a Progress"
                raise BrayError(f"callback {_name(callback)}: {method}: {words}") from error


def _check_methods(callback: Callback) -> None:
    """Refuse methods that would never be called, or not as they are written.

    Raises:
        ConfigError: there is one.
    """
    known = [name for name in vars(Callback) if name.startswith("on_")]
    own = [kind for kind in type(callback).__mro__ if issubclass(kind, Callback)]
    for name in sorted({name for kind in own for name in vars(kind) if name.startswith("on_")}):
        where, method = f"callback {_name(callback)}: {name}", getattr(callback, name)
        if name not in known:
            allowed = ", ".join(known)
            raise ConfigError(
                f"{where}: nothing calls it{closest(name, known)}; what is called: {allowed}; "
                "let the names of other methods begin otherwise"
            )
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise ConfigError(
                f"{where}: expected a method that is no `async def`: nobody awaits it"
            )
        try:
            inspect.signature(method).bind(None)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{where}: expected a method that is called with one argument: {error}"
            ) from error


def _name(callback: Callback) -> str:
    return f"{type(callback).__module__}:{type(callback).__qualname__}"
