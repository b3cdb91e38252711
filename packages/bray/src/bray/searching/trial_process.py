"""The process of one trial of a search: trains, and asks at each evaluation whether to go on.

Started by `bray.searching.trial_runner` with the number of a socket; lines of JSON go both ways:

    runner → process  {"template": …, "overrides": […], "folder": …, "evaluations": 10, …}
    process → runner  {"evaluation": 3, "value": 21.5}, answered by {"prune": false}
    process → runner  {"value": 475.0, "frames": 50000, "pruned": false} or {"error": …}

The process ends when the socket closes, as it does where the search is killed: with a checkpoint,
from which the trial goes on.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from bray.callbacks import Callback, EvaluationResult, Progress
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Outcome
from bray.retention import RetentionPolicy
from bray.run import Run, init
from bray.templates.loading import load
from bray.trained.evaluation_videos import with_videos
from bray_core.errors import BrayError
from bray_core.trials import trial_requests

PRUNED = "pruned: other trials of the search did better"
"""Why the run of a pruned trial ended, for its `result.json`."""
_END_S = 60.0


class Wire:
    """Lines of JSON to and from the search; its end interrupts this process."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._is_done = False

    def first(self) -> dict[str, Any]:
        """Return what is to be done, and listen for answers from then on."""
        line: dict[str, Any] = json.loads(self._file.readline())
        threading.Thread(target=self._listen, name="bray-search", daemon=True).start()
        return line

    def send(self, **content: Any) -> None:
        """Send one line."""
        self._file.write(json.dumps(content) + "\n")
        self._file.flush()

    def ask(self, **content: Any) -> dict[str, Any]:
        """Send one line and return the answer."""
        self.send(**content)
        return self._answers.get()

    def end(self, **content: Any) -> None:
        """Send the last line."""
        self._is_done = True
        self.send(**content)

    def _listen(self) -> None:
        for line in self._file:
            self._answers.put(json.loads(line))
        if self._is_done:
            return
        self._answers.put({"prune": False})
        os.kill(os.getpid(), signal.SIGINT)  # the search is gone
        threading.Event().wait(_END_S)
        os._exit(1)


class Evaluations(Callback):
    """Lets a run evaluate at equal distances over its budget, and ends it if the search says so.

    Args:
        trial: folder of the trial.
        budget: environment steps of the trial.
        count: number of evaluations.
        wire: where results are told.
    """

    def __init__(self, trial: Path, budget: int, count: int, wire: Wire) -> None:
        self._trial = trial
        self._budget = budget
        self._count = count
        self._wire = wire
        self._asked = 0
        self._told = 0
        self.is_pruned = False

    def on_start(self, progress: Progress) -> None:
        """Go on after the evaluations of earlier launches."""
        self._asked = self._told = self._due(progress.frames)

    def on_update(self, progress: Progress) -> None:
        """Ask for an evaluation when it is due; end the run once it is pruned."""
        if self.is_pruned:
            progress.stop(PRUNED)
        elif (due := self._due(progress.frames)) > self._asked and due < self._count:
            self._asked = due
            trial_requests.ask(self._trial, "evaluate")

    def on_evaluation(self, evaluation: EvaluationResult) -> None:
        """Tell the result of an evaluation that was asked for."""
        if self._told < self._asked and math.isfinite(evaluation.mean_return):
            self._told = self._asked
            value = evaluation.mean_return
            self.is_pruned = bool(self._wire.ask(evaluation=self._told, value=value)["prune"])

    def _due(self, frames: int) -> int:
        """Return how many evaluations have been due until now."""
        return frames * self._count // self._budget


def train(task: Mapping[str, Any], wire: Wire) -> None:
    """Train one trial and tell how it ended."""
    template = load(task["template"], task["overrides"])
    goal = completed_goal(template)
    folder = Path(task["folder"])
    evaluations = Evaluations(folder, goal.budget, task["evaluations"], wire)

    def open_run(config: Mapping[str, Any], keep: RetentionPolicy) -> Run:
        run = init(
            folder.parent,
            folder.name,
            task["runtime"],
            task["address"],
            config,
            keep,
            sinks=config.get("sinks", ()),
        )
        run.listen(evaluations)
        return run

    def is_worth_an_export(outcome: Outcome) -> bool:
        return outcome.reached or not evaluations.is_pruned

    outcome, _ = run_template(
        template, with_videos(open_run, template), goal, exports=is_worth_an_export
    )
    value = outcome.evaluation_return
    if not math.isfinite(value):
        wire.end(error=f"expected a finite mean return, got {value}")
        return
    is_pruned = evaluations.is_pruned and not outcome.reached
    wire.end(value=value, frames=outcome.frames, pruned=is_pruned)


def main(descriptor: int) -> int:
    """Train the trial that comes over a socket; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    with socket.socket(fileno=descriptor) as connection:
        wire = Wire(connection.makefile("rw"))
        task = wire.first()
        try:
            train(task, wire)
        except KeyboardInterrupt:
            return 130
        except Exception as error:  # noqa: BLE001  the boundary of the process
            traceback.print_exc()
            words = (
                str(error) if isinstance(error, BrayError) else f"{type(error).__name__}: {error}"
            )
            wire.end(error=words)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
