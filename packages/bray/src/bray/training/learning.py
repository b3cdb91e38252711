"""The loop that most recipes share: play, train, look at the returns, evaluate, until the goal."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray.goal import Goal, Outcome, conclude
from bray.retention import offer_best
from bray.run import Run
from bray.training.progress import display
from bray_actor import Played
from bray_core.cli import check_interrupted

logger = logging.getLogger(__name__)

_WINDOW = 100
"""Episodes over which the training return is averaged."""
_LEAST = 20
"""Episodes before the average says anything."""
_EVALUATIONS = 50
"""At most, in all the frames of the goal."""
_POLL_S = 0.25
_WRITE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How playing and training take turns in one process; on Ray the buffer holds both back."""

    steps: int
    """Of all environments, after which all that was recorded is pushed."""
    collects: int = 1
    """Times that so many steps are played before each training."""
    replays: int = 1
    """Trained on after these."""
    warmup_frames: int = 0
    """Played before the first training."""


class Learning:
    """One launch of a recipe.

    Args:
        run: of the components.
        title: shown above the figures.
        trainer: from `run.trainer`.
        rollouts: from `run.rollouts`.
        model: what the trainer publishes to.
        pace: of a local run.
        goal: when to evaluate and when to end.
        evaluate: returns the returns of episodes played by the model's current version.
    """

    def __init__(
        self,
        run: Run,
        title: str,
        *,
        trainer: Any,
        rollouts: Any,
        model: Any,
        pace: Pace,
        goal: Goal,
        evaluate: Callable[[], Sequence[float]],
    ) -> None:
        self._run = run
        self._trainer = trainer
        self._rollouts = rollouts
        self._model = model
        self._pace = pace
        self._goal = goal
        self._evaluate = evaluate
        self._frames = 0
        self._evaluated_at = 0
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        self._view = display(title)
        self._written = self._started = time.monotonic()

    def until_goal(self) -> Outcome:
        """Play and train until an evaluation reaches the goal or its frames are used up.

        The outcome is also written to the trial's `result.json`.

        Raises:
            Exception: what a component failed with.
        """
        advance = self._advance_here if self._run.is_local else self._wait
        if not self._run.is_local:
            self._trainer.start()
        with self._view:
            while True:
                advance()
                self._look(self._rollouts.poll())
                is_last = self._frames >= self._goal.budget
                if not is_last and not self._is_promising():
                    continue
                outcome = self._outcome()
                if outcome.reached or is_last:
                    break
        self._save()
        return conclude(self._run.experiment.path, outcome)

    def _advance_here(self) -> None:
        for _ in range(self._pace.collects):
            self._rollouts.collect(self._pace.steps)
        if self._frames >= self._pace.warmup_frames:
            self._trainer.run(self._pace.replays, checkpoint=False)  # they wait for the disk

    def _save(self) -> None:
        if self._run.is_local:
            self._trainer.run(0)

    def _wait(self) -> None:
        self._trainer.wait(_POLL_S)

    def _look(self, played: Played) -> None:
        check_interrupted()
        self._frames += played.frames
        self._returns.extend(played.returns)
        self._run.report(self._figures(), self._save)
        now = time.monotonic()
        if now - self._written < _WRITE_S:
            return
        self._written = now
        self._view.update({**self._trainer.progress(), **self._figures()})

    def _figures(self) -> dict[str, float]:
        elapsed_s = time.monotonic() - self._started
        figures = {"frames": self._frames, "elapsed_s": elapsed_s}
        figures["frames_per_s"] = self._frames / elapsed_s
        if self._returns:
            figures["return"] = float(np.mean(self._returns))
        return figures

    def _is_promising(self) -> bool:
        """Return whether the training returns are good enough, and the last evaluation is past."""
        since = self._frames - self._evaluated_at
        return (
            since >= self._goal.budget / _EVALUATIONS
            and len(self._returns) >= _LEAST
            and self._goal.is_promising(float(np.mean(self._returns)))
        )

    def _outcome(self) -> Outcome:
        self._evaluated_at = self._frames
        version = int(self._model.checkpoint().stem)
        mean = float(np.mean(self._evaluate()))
        offer_best(self._run, self._model, version, mean, self._frames)
        self._view.say(f"evaluation at {self._frames:,} frames: mean return {mean:.2f}")
        self._run.report({**self._figures(), "evaluation_return": mean}, self._save)
        return Outcome(
            reached=self._goal.is_reached(mean),
            evaluation_return=mean,
            frames=self._frames,
            seconds=time.monotonic() - self._started,
            version=version,
        )
