"""Gamecores as a source: simulators in processes of their own, which call actors over the wire.

    gamecore ──observation, reward──► actor ──infer──► model
             ◄────────action─────────   │
                                        └──segments──► buffer

In a local run the loop grants a turn's steps (`bray_actor.policy.turn_budget`): ticks beyond them
wait while the trainer trains. All environments are asked for together, each in a row of its own,
and the segments of a turn are put into an order that does not depend on when each one came. So the
same seed is the same run on one kind of CPU, although the gamecores are processes of their own.

On Ray a new policy version is the sign to go on for what is trained in lockstep; others are held
back by the buffer alone.

Simulators of one's own play likewise: processes of a command (`bray_actor.gamecores.simulators`),
or external ones, whose sessions say in `start` what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bray.run import Run
from bray.sources.simulator_evaluation import (
    evaluate_by_command,
    evaluate_by_tagged,
    evaluates_by_command,
)
from bray.sources.source import Played
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.policy_answers import PUSH_TIMEOUT_S, PolicyAnswers
from bray.sources.wire.recorded_episodes import episodes_of, most_episodes_of, some_recorded
from bray.sources.wire.wire_source import RemoteWireSource, TurnWireSource
from bray_actor.policy.step_budget import StepBudget
from bray_actor.policy.turn_budget import TurnBudget
from bray_core.protocols import ActorProtocol, BufferProtocol, ModelProtocol


def gamecores(
    run: Run, play: GamecorePlay, model: Any, buffer: Any
) -> TurnGamecores | RemoteGamecores:
    """Return the source of a run's gamecores; they start with its first `poll`.

    Args:
        run: what makes actors and gamecores, and closes them.
        play: what is played, and how.
        model: the policy that answers.
        buffer: where the segments go.
    """
    return (TurnGamecores if run.is_local else RemoteGamecores)(run, play, model, buffer)


class TurnGamecores(TurnWireSource):
    """Gamecores of a local run: they play the steps of a turn, then stand still."""

    def __init__(self, run: Run, play: GamecorePlay, model: Any, buffer: Any) -> None:
        self._turn = TurnBudget(buffer.layout)
        self._answers = PolicyAnswers(play, model, buffer)
        lanes = self._answers.barrier(0, self._turn)
        super().__init__(run, play, self._answers.maker(self._turn, lanes))

    def collect(self, steps: int) -> None:
        """Play so many steps of each environment in the mean; return when they are pushed.

        Raises:
            BrayError: a gamecore ends again and again, or the buffer has no room for the turn.
        """
        self._play_turn(self._turn, steps)
        if segments := self._turn.segments():  # else all of the turn was lent before
            self._answers.played.push_turn(segments, "buffer")

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores."""
        self._start_once()
        return self._answers.played.poll()

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions` for later episodes: they are told in the reply to a `start`."""
        self._answers.tell(news)

    def evaluate(self, policy: ModelProtocol, episodes: int, seed: int) -> Sequence[float] | None:
        """Let simulators play episodes with a policy; return the episodes' returns.

        None: these simulators have no way of their own to be evaluated.

        Args:
            policy: its weights do not change meanwhile.
            episodes: number of episodes.
            seed: seed of the evaluation.
        """
        if evaluates_by_command(self._play.source):
            return evaluate_by_command(self._run, self._play, policy, episodes, seed)
        desk = self._answers.desk
        return evaluate_by_tagged(desk, policy, episodes) if desk.was_called else None


class RemoteGamecores(RemoteWireSource):
    """Gamecores that call actors in workers on Ray, and play by themselves."""

    def __init__(self, run: Run, play: GamecorePlay, model: Any, buffer: Any) -> None:
        from bray_core.remote.workers import with_worker_index

        make = partial(WorkerActors, play, model, buffer, episodes_of(run), most_episodes_of(run))
        super().__init__(run, play, with_worker_index(make))

    def evaluate(self, policy: ModelProtocol, episodes: int, seed: int) -> Sequence[float] | None:
        """Let simulators play episodes with a policy; as in `TurnGamecores.evaluate`."""
        if evaluates_by_command(self._play.source):
            return evaluate_by_command(self._run, self._play, policy, episodes, seed)
        return None  # tagged sessions come to workers, where this policy is not


class WorkerActors:
    """What a worker on Ray answers with: makes the actor of each session, and counts what it plays.

    Args:
        play: what is played, and how.
        model: the policy.
        buffer: where the segments go.
        episodes: folder of recorded episodes.
        most_episodes: number of the newest that stay there.
        worker: number of the worker, from 0: it answers its share of the gamecores.
    """

    def __init__(
        self,
        play: GamecorePlay,
        model: ModelProtocol,
        buffer: BufferProtocol,
        episodes: Path,
        most_episodes: int,
        worker: int = 0,
    ) -> None:
        self._answers = PolicyAnswers(play, model, buffer)
        lanes = None
        if play.steps_per_version is not None:
            budget = StepBudget(play.steps_of_worker(worker), model)
            self._answers.played.tell_pushed(budget.note_pushed)
            lanes = self._answers.barrier(worker, budget)
        make = self._answers.maker(self._answers.played, lanes, PUSH_TIMEOUT_S)
        self._make = some_recorded(make, play, episodes, most_episodes)

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session."""
        return self._make(session)

    def poll(self) -> Played:
        """Return what was played since the last call."""
        return self._answers.played.poll()

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions` for later episodes."""
        self._answers.tell(news)
