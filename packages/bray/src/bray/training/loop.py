"""The loop that drives every algorithm: play, train, look at the returns, evaluate, until the goal.

    source ──segments──► buffer ──► trainer ──version n + 1──► model ──► source
       └───────frames and returns───────► Loop ◄─────figures─────┘

There are two ways to advance. In a local run this thread does everything, in a fixed order
(`Turns`): so the same seed is the same run. On Ray source and trainer go by themselves (`Watch`),
held back by the buffer between them or by the policy's version.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from bray.best import kept_version, offer_best
from bray.callbacks import EvaluationResult, SavedCheckpoint
from bray.goal import Goal, Outcome, conclude
from bray.run import Run
from bray.sources.source import ExperienceSource, Played
from bray.training.loop_state import LoopState, checkpoints_in
from bray.training.progress import display
from bray_actor.episodes import PlayedEpisode
from bray_core.cli import check_interrupted
from bray_core.errors import WorkerLostError
from bray_core.process.held_interrupts import Held, deliver_interrupt, held_interrupts
from bray_core.trials import trial_requests
from bray_core.trials.trial_requests import TrialRequest

logger = logging.getLogger(__name__)

POLL_S = 0.25
_SHOW_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """How playing and training take turns in a local run; on Ray the buffer holds both back."""

    steps: int
    """Steps of each environment, after which all that was recorded is pushed; 0: nothing is played,
    and the source counts what is trained."""
    collects: int = 1
    """Times that so many steps are played before each training."""
    replays: int = 1
    """Replays trained on after these."""
    replays_per_frame: float | None = None
    """Replays for each frame played in this launch, where turns bring more frames or fewer; None:
    `replays` after each turn."""
    warmup_frames: int = 0
    """Frames played before the first training."""

    def after(self, frames: int) -> Turn:
        """Return the turns after so many frames, which a replay has from an earlier launch."""
        return replace(self, warmup_frames=max(0, self.warmup_frames - frames))


class Loop:
    """One launch of an algorithm.

    Args:
        run: what the components were made by.
        title: text shown above the figures.
        trainer: from `run.trainer`.
        source: what plays, such as from `run.rollouts`.
        model: what the trainer publishes to.
        turn: order of playing and training in a local run.
        goal: when to evaluate and when to end.
        evaluate: plays episodes with the model's current version and returns their returns; None
            where nothing can: then those of training decide.
        evaluate_every: frames between two evaluations, whatever the training returns are. None:
            the training returns call for them, and without a return to reach there is one in the
            end.
        unit: what `Played.frames` counts, in words.
        advance: lets the run go on for a moment; None: by `turn` in a local run, on Ray by
            looking after trainer and source.

    Raises:
        CodecError: the trial's `progress.json` cannot be read.
    """

    def __init__(
        self,
        run: Run,
        title: str,
        *,
        trainer: Any,
        source: ExperienceSource,
        model: Any,
        turn: Turn,
        goal: Goal,
        evaluate: Callable[[], Sequence[float] | None],
        evaluate_every: int | None = None,
        unit: str = "frames",
        advance: Advance | None = None,
    ) -> None:
        self._run = run
        self._trainer = trainer
        self._source = source
        self._model = model
        self._goal = goal
        self._budget = goal.budget
        self._evaluate = evaluate
        self._evaluate_every = evaluate_every
        self._unit = unit
        self._advance = advance or _advance(run, trainer, source, turn)
        self._view = display(title, goal, unit)
        checkpoints = run.experiment.checkpoints
        self._checkpoints = checkpoints_in(checkpoints)
        self._state = LoopState.restore(run.experiment.path, checkpoints)
        self._frames_before = self._state.frames
        self._seconds_before = self._state.seconds
        self._shown = self._started = time.monotonic()

    def until_goal(self) -> Outcome:
        """Play and train until an evaluation reaches the goal, or the budget is used up.

        The budget is that of the whole trial, the hours are those of this launch. The outcome is
        also written to the trial's `result.json`.

        Raises:
            Exception: what a component failed with.
        """
        with self._view:
            self._say_how_it_begins()
            try:
                outcome = self._until_goal()
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) or self._run.callbacks.has_failed:
                    self._save(is_ending=True)
                elif not self._run.is_local:
                    self._keep_what_ray_saves()
                raise
            self._advance.end()
            self._keep_state()
            outcome = conclude(self._run.experiment.path, outcome)
            self._run.callbacks.end(outcome)
        return outcome

    def _until_goal(self) -> Outcome:
        self._started = time.monotonic()
        trial_requests.forget(self._run.experiment.path)
        self._advance.begin(is_resumed=bool(self._checkpoints))
        self._run.callbacks.start(self._figures(), self._save)
        self._source.poll()  # on Ray it begins to play
        while True:
            if not self._is_spent:
                self._take(self._advance())
            if self._is_spent or self._wants_evaluation() or self._is_asked("evaluate"):
                if self._is_spent and (played := self._advance.finish()) is not None:
                    self._take(played)
                outcome = self._evaluated()
                if outcome.reached or self._is_spent:
                    return outcome

    def _say_how_it_begins(self) -> None:
        if version := self._model.version:
            path = self._run.experiment.path
            self._view.say(
                f"resuming {path} from policy version {version}, {self._state.frames:,} "
                f"{self._unit}; choose another --trial to start afresh"
            )
        self._view.say(_said(self._goal, self._unit))

    def _take(self, played: Played) -> None:
        """Add what was played, and tell of it."""
        self._state.frames += played.frames
        self._state.returns.extend(played.returns)
        deliver_interrupt()
        check_interrupted()
        self._run.callbacks.episodes(episodes_of(played))
        self._run.report(self._figures(), self._save)
        if self._is_asked("checkpoint"):
            self._save()
        if checkpoints_in(self._run.experiment.checkpoints) != self._checkpoints:
            self._keep_state()
        if time.monotonic() - self._shown >= _SHOW_S:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._view.update({**self._trainer.progress(), **self._figures()}, now=True)

    def _save(self, *, is_ending: bool = False) -> None:
        """Write a checkpoint; on Ray the trainer does so by itself, and where the run is closed."""
        if self._advance.save():
            self._keep_state(is_ending=is_ending)

    def _keep_state(self, *, is_ending: bool = False) -> None:
        """Write how far the trial has come, if there is or will be a checkpoint from there."""
        folder = self._run.experiment.checkpoints
        before, self._checkpoints = self._checkpoints, checkpoints_in(folder)
        if self._checkpoints or is_ending:
            self._state.seconds = self._seconds_before + self._elapsed_s
            self._state.write(folder)
        for name, _ in sorted(self._checkpoints - before):
            written = SavedCheckpoint(path=folder / name, frames=self._state.frames)
            self._run.callbacks.checkpoint(written)

    def _keep_what_ray_saves(self) -> None:
        """Write how far a run on Ray that fails has come, if its trainer still saves a checkpoint.

        The trainer goes by itself: it knows nothing of an error of the source or an evaluation.
        """
        with suppress(Exception):  # the launch ends with an error already
            self._advance.end()
        if checkpoints_in(self._run.experiment.checkpoints) != self._checkpoints:
            self._keep_state()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _figures(self) -> dict[str, float]:
        elapsed_s = self._elapsed_s
        rate = (self._state.frames - self._frames_before) / max(elapsed_s, 1e-9)
        figures = {
            "frames": self._state.frames,
            "elapsed_s": elapsed_s,
            "frames_per_s": rate,
        }
        if rate > 0:
            figures["left_s"] = max(0, self._budget - self._state.frames) / rate
        if self._goal.max_hours is not None:
            left_s = max(0.0, 3600 * self._goal.max_hours - elapsed_s)
            figures["left_s"] = min(figures.get("left_s", left_s), left_s)
        if self._state.returns:
            figures["return"] = float(np.mean(self._state.returns))
        return figures

    @property
    def _is_spent(self) -> bool:
        """Whether the budget or this launch's hours are used up, or a callback has said stop."""
        hours = self._goal.max_hours
        if self._run.callbacks.stopped:
            return True
        return self._is_budget_spent or (hours is not None and self._elapsed_s >= 3600 * hours)

    @property
    def _is_budget_spent(self) -> bool:
        return self._state.frames >= self._budget

    def _wants_evaluation(self) -> bool:
        """Return whether it is time to evaluate, before the budget is used up."""
        frames, evaluated_at = self._state.frames, self._state.evaluated_at
        if self._evaluate_every is not None:
            return frames - evaluated_at >= self._evaluate_every
        return self._goal.calls_for_evaluation(self._state.returns, frames, evaluated_at)

    def _is_asked(self, what: TrialRequest) -> bool:
        """Return whether somebody asks for it now, as `bray top` does, and take the request."""
        return trial_requests.take(self._run.experiment.path, what)

    def _evaluation_returns(self) -> tuple[list[float], str]:
        """Return the returns that decide, and whose they are in words, if not an evaluation's."""
        if (returns := self._evaluate()) is not None:
            return [float(value) for value in returns], ""
        newest = list(self._state.returns)[-self._goal.evaluation_episodes :]
        return newest, f" over the last {len(newest)} episodes of training"

    def _evaluated(self) -> Outcome:
        self._state.evaluated_at = frames = self._state.frames
        self._show()
        with kept_version(self._run.experiment.path, self._model) as version:
            self._view.say(f"evaluating version {version} after {frames:,} {self._unit}")
            returns, whose = self._evaluation_returns()
            mean = float(np.mean(returns)) if returns else -math.inf
            if returns:
                offer_best(self._run, self._model, version, mean, frames)
        self._view.say(
            f"evaluation at {frames:,} {self._unit}: {self._goal.measure} {mean:.2f}{whose}"
        )
        self._run.callbacks.evaluation(
            EvaluationResult(returns=returns, mean_return=mean, version=version, frames=frames)
        )
        self._run.report({**self._figures(), "evaluation_return": mean}, self._save)
        if stopped := self._run.callbacks.stopped:
            self._view.say(f"stopped by a callback: {stopped}")
        is_planned = self._goal.wanted is not None or self._is_budget_spent
        return Outcome(
            reached=self._goal.is_reached(mean) and is_planned,
            evaluation_return=mean,
            episode_returns=returns,
            frames=frames,
            seconds=self._elapsed_s,
            frames_per_s=self._figures()["frames_per_s"],
            version=version,
            stopped=stopped,
        )


class Advance(Protocol):
    """Lets a run go on for a moment."""

    def begin(self, *, is_resumed: bool) -> None:
        """Begin before anything is played."""
        ...

    def __call__(self) -> Played:
        """Go on, and return what was played."""
        ...

    def save(self) -> bool:
        """Write a checkpoint now, if that is possible from here; return whether all is whole."""
        ...

    def finish(self) -> Played | None:
        """Let what is being trained on be done; return what was played meanwhile, if it was."""
        ...

    def end(self) -> None:
        """Stop training, with a checkpoint."""
        ...


def _advance(run: Run, trainer: Any, source: ExperienceSource, turn: Turn) -> Advance:
    return Turns(trainer, source, turn) if run.is_local else Watch(trainer, source)


class Turns:
    """A local run: this thread plays, then trains, in a fixed order."""

    def __init__(self, trainer: Any, source: ExperienceSource, turn: Turn) -> None:
        self._trainer = trainer
        self._source = source
        self._turn = turn
        self._frames = 0
        """Frames of this launch."""
        self._replays = 0
        """Replays of this launch."""
        self._held = Held()

    def begin(self, *, is_resumed: bool) -> None:
        """Let the trainer go on from its checkpoint before the first step is played."""
        if is_resumed:
            self._trainer.run(0, checkpoint=False)

    def __call__(self) -> Played:
        """Play a turn, then train on it; where nothing is played, what is counted is training."""
        if not self._turn.steps:
            self._train(self._turn.replays)
            return self._source.poll()
        for _ in range(self._turn.collects):
            self._source.collect(self._turn.steps)
        played = self._source.poll()
        self._train(self._due(played.frames))
        return played

    def _train(self, replays: int) -> None:
        if replays:
            with held_interrupts() as self._held:  # a step that is torn has no checkpoint
                # The next turn does not wait for the disk.
                self._trainer.run(replays, checkpoint=False)
                self._replays += replays

    def _due(self, new_frames: int) -> int:
        """Return how many replays the turn is trained on."""
        before, self._frames = self._frames, self._frames + new_frames
        turn = self._turn
        if turn.replays_per_frame is None:
            return turn.replays if before >= turn.warmup_frames else 0
        if self._frames < turn.warmup_frames:
            return 0
        return max(0, int(self._frames * turn.replays_per_frame) - self._replays)

    def save(self) -> bool:
        """Write a checkpoint, unless a second interrupt tore a step."""
        if not self._held.is_torn:
            self._trainer.run(0)
        return not self._held.is_torn

    def finish(self) -> None:
        """Do nothing: all that was played is trained on."""

    def end(self) -> None:
        """Write a checkpoint."""
        self._trainer.run(0)


class Watch:
    """A run on Ray: source and trainer go by themselves, and are looked after."""

    def __init__(self, trainer: Any, source: ExperienceSource) -> None:
        self._trainer = trainer
        self._source = source
        self._is_paused = False

    def begin(self, *, is_resumed: bool) -> None:
        """Start the trainer, which goes on from its checkpoint."""
        self._trainer.start()

    def __call__(self) -> Played:
        """Wait a moment, and return what was played meanwhile."""
        if self._is_paused:  # for an evaluation, which is over
            self._trainer.start()
        self._is_paused = self._trainer.wait(POLL_S)
        return self._source.poll()

    def save(self) -> bool:
        """Write nothing: a trainer of another process writes checkpoints by itself."""
        return True

    def finish(self) -> Played:
        """Stop the trainer after the replay at hand, which it publishes."""
        self.end()
        return self._source.poll()

    def end(self) -> None:
        """Stop the trainer, which writes a checkpoint."""
        stop_on_ray(self._trainer)


def stop_on_ray(trainer: Any) -> None:
    """Stop a trainer on Ray; one whose worker was just lost leaves the run what it published."""
    try:
        trainer.stop()
    except WorkerLostError as error:
        logger.warning("%s; the run ends with the newest version that was published", error)


def episodes_of(played: Played) -> Sequence[PlayedEpisode]:
    """Return the episodes that were played; of a source that tells their returns alone, these."""
    return played.episodes or [PlayedEpisode(episode_return) for episode_return in played.returns]


def _said(goal: Goal, unit: str) -> str:
    """Return in words what ends the run."""
    limits = [f"{goal.budget:,} {unit} of the trial"]
    if goal.max_hours is not None:
        limits.append(f"{goal.max_hours:g} hours of this launch")
    limit = " or ".join(limits)
    if goal.win_rate is not None:
        return (
            f"goal: {goal.win_rate:.0%} of {goal.evaluation_episodes} games won against "
            f"{goal.against or 'the newest opponents'}; gives up after {limit}"
        )
    if goal.episode_return is None:
        return f"budget: ends after {limit}; no return decides"
    return (
        f"goal: a mean return of {goal.episode_return:g} over {goal.evaluation_episodes} "
        f"evaluation episodes; gives up after {limit}"
    )
