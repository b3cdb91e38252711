"""Gamecores of several policies as a source: who answers which agent, and when a turn is over.

The sessions of one simulator play different policies, each with a model, a buffer and a trainer of
its own. In a local run all of them share a turn (`bray_actor.policy.shared_turn`): it ends when one
policy has the steps that it is trained on. On Ray each follows the versions of its own model
(`bray_actor.policy.shared_versions`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bray.run import Run
from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.gamecores import (
    LOOK_S,
    PUSH_TIMEOUT_S,
    CountingBuffer,
    GamecorePlay,
    episodes_of,
    fleet_of,
    in_order_of,
    lines_of,
    most_episodes_of,
    ports_of,
    some_recorded,
    start_once,
)
from bray.sources.simulator_evaluation import evaluate_by_tagged
from bray.sources.source import Played
from bray_actor import PolicyActor, PolicyConfig
from bray_actor.multi_agent.match_table import MatchTable
from bray_actor.multi_agent.seat import Cast, FixedCast, GameResult, Seat
from bray_actor.policy.session_router import RoutedSeat, SessionRouter
from bray_actor.policy.shared_turn import SharedTurn, TurnSeat
from bray_actor.policy.shared_versions import SharedVersions, VersionSeat
from bray_core.cli import check_interrupted
from bray_core.errors import BrayError, ConfigError
from bray_core.layout import Packed
from bray_core.protocols import ActorProtocol, BufferProtocol, ModelProtocol
from bray_core.spaces import Spaces


class SeatPlan(NamedTuple):
    """A policy that learns from a source of several: what answers its agents, and what for."""

    name: str
    """Name of the policy."""
    model: ModelProtocol
    """Answers observations."""
    config: PolicyConfig
    """How the policy acts."""
    buffer: BufferProtocol
    """Where its segments go."""
    quota: int | None = None
    """Steps that it is trained on at a time; on Ray those of each version. None sets no bound."""


CastMaker = Callable[[Mapping[str, Seat]], Cast]
"""Makes what says who plays each match, from the policies that learn, by name; picklable."""


def several_gamecores(
    run: Run,
    play: GamecorePlay,
    seats: Mapping[str, SeatPlan],
    make_cast: CastMaker | None = None,
) -> TurnSeatGamecores | RemoteSeatGamecores:
    """Return the source of gamecores whose agents are answered by several policies.

    Args:
        run: what makes actors and gamecores, and closes them.
        play: what is played, and by how many.
        seats: policies by pattern of the agents that they answer, such as `hunter_*`; the first
            that fits counts.
        make_cast: makes what says who plays the matches; None: whoever answers an agent else.

    Raises:
        ConfigError: there is no seat, two different ones have a name, or the steps of a version
            cannot be shared out to the workers.
    """
    _plans_by_name(seats)
    kind = TurnSeatGamecores if run.is_local else RemoteSeatGamecores
    return kind(run, play, seats, make_cast)


def _plans_by_name(seats: Mapping[str, SeatPlan]) -> dict[str, SeatPlan]:
    if not seats:
        raise ConfigError("seats: expected one or more patterns of agents, got none")
    plans: dict[str, SeatPlan] = {}
    for pattern, plan in seats.items():
        if plans.setdefault(plan.name, plan) is not plan:
            raise ConfigError(f"seats: {pattern}: another seat is named {plan.name!r}, too")
    return plans


def _check_shares(seats: Mapping[str, SeatPlan], num_workers: int) -> None:
    for plan in seats.values():
        if plan.quota is not None and plan.quota % num_workers:
            raise ConfigError(
                f"seats: {plan.name}: expected a multiple of the {num_workers} workers "
                f"(actor.num_workers) as the steps of a version, got {plan.quota}"
            )


class TurnSeatGamecores:
    """Gamecores of a local run with several policies: they play a turn, then stand still."""

    def __init__(
        self,
        run: Run,
        play: GamecorePlay,
        seats: Mapping[str, SeatPlan],
        make_cast: CastMaker | None = None,
    ) -> None:
        plans = _plans_by_name(seats)
        self._play = play
        self._buffers = {name: CountingBuffer(plan.buffer) for name, plan in plans.items()}
        self._turn = SharedTurn(
            {name: TurnSeat(plan.buffer.layout, plan.quota) for name, plan in plans.items()}
        )
        answers = {
            name: SeatAnswers(plan, self._turn[name], self._turn[name], 0.0)
            for name, plan in plans.items()
        }
        self._players = SeatPlayers(play, seats, answers, make_cast)
        make = some_recorded(self._players.router, play, episodes_of(run), most_episodes_of(run))
        self._actors = run.actor("actor", lambda: make, **ports_of(play))
        self._fleet = fleet_of(run, play, self._actors)

    def collect(self, steps: int) -> None:
        """Play until the first policy with a quota has its steps, or all together have played so
        many steps of each lane; return when they are pushed.

        Raises:
            BrayError: a gamecore ends again and again, or a buffer has no room for the turn.
        """
        self._turn.grant(steps * self._play.num_lanes)
        while not self._turn.wait_played(LOOK_S):
            check_interrupted()
            self._fleet.check()
        for name, segments in self._turn.segments().items():
            if segments:
                self._push(name, segments)

    def _push(self, name: str, segments: Sequence[Packed]) -> None:
        buffer = self._buffers[name]
        rows = in_order_of(Packed(buffer.layout, np.stack([s.block for s in segments])))
        if (taken := buffer.push(rows)) < len(segments):
            raise BrayError(
                f"buffer of {name}: has room for {taken} of the {len(segments)} segments of a "
                "turn, and nothing is popped while one is played: raise its capacity"
            )

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores."""
        start_once(self._fleet)
        return self._players.poll(self._buffers)

    def tell(self, news: Any) -> None:
        """Tell the cast what the driver says, such as new opponents."""
        self._players.tell(news)

    def lines(self) -> list[str]:
        """Return how the simulators find this run, and how it is evaluated, in words."""
        return lines_of(self._play, self._actors, takes_tagged=True)

    def evaluate(self, name: str, policy: ModelProtocol, episodes: int) -> Sequence[float] | None:
        """Let sessions that are tagged as evaluation play with a policy; return their returns.

        None: there have been no such sessions of this seat.

        Args:
            name: name of the seat.
            policy: its weights do not change meanwhile.
            episodes: number of episodes.
        """
        desk = self._players.desks[name]
        return evaluate_by_tagged(desk, policy, episodes) if desk.was_called else None

    def close(self) -> None:
        """End gamecores and actors."""
        self._fleet.stop()
        self._actors.close()


class RemoteSeatGamecores:
    """Gamecores that call actors of several policies in workers on Ray, and play by themselves."""

    def __init__(
        self,
        run: Run,
        play: GamecorePlay,
        seats: Mapping[str, SeatPlan],
        make_cast: CastMaker | None = None,
    ) -> None:
        _check_shares(seats, play.actor.num_workers)
        make = partial(
            WorkerSeats, play, dict(seats), make_cast, episodes_of(run), most_episodes_of(run)
        )
        self._play = play
        self._actors: Any = run.actor(
            "actor", make, num_workers=play.actor.num_workers, **ports_of(play)
        )
        self._fleet = fleet_of(run, play, self._actors)

    def collect(self, steps: int) -> None:
        """Do nothing: they play by themselves."""

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores.

        Those that ended are replaced.

        Raises:
            BrayError: a gamecore ends again and again.
            WorkerLostError: a worker died too often; quotes its last words.
        """
        start_once(self._fleet)
        self._fleet.check()
        played: Played = self._actors.poll()
        return played

    def tell(self, news: Any) -> None:
        """Tell the casts of all workers what the driver says, such as new opponents."""
        self._actors.tell(news)

    def lines(self) -> list[str]:
        """Return how the simulators find this run, and how it is evaluated, in words."""
        return lines_of(self._play, self._actors, takes_tagged=False)

    def close(self) -> None:
        """End gamecores and actors."""
        self._fleet.stop()
        self._actors.close()


class WorkerSeats:
    """What a worker on Ray answers several policies' agents with, and counts what it plays.

    Args:
        play: what is played, and how.
        seats: policies by pattern of the agents that they answer.
        make_cast: makes what says who plays the matches.
        episodes: folder of recorded episodes.
        most_episodes: number of the newest that stay there.
    """

    def __init__(
        self,
        play: GamecorePlay,
        seats: Mapping[str, SeatPlan],
        make_cast: CastMaker | None,
        episodes: Path,
        most_episodes: int,
    ) -> None:
        plans = _plans_by_name(seats)
        workers = play.actor.num_workers
        self._buffers = {name: CountingBuffer(plan.buffer) for name, plan in plans.items()}
        buffers: Any = self._buffers
        paced = SharedVersions(
            {
                name: VersionSeat(plan.model, buffers[name], plan.quota // workers)
                for name, plan in plans.items()
                if plan.quota is not None
            }
        )
        answers = {
            name: SeatAnswers(plan, buffers[name], None, PUSH_TIMEOUT_S)
            if plan.quota is None
            else SeatAnswers(plan, paced[name], paced[name], PUSH_TIMEOUT_S)
            for name, plan in plans.items()
        }
        self._players = SeatPlayers(play, seats, answers, make_cast)
        self._make = some_recorded(self._players.router, play, episodes, most_episodes)

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session."""
        return self._make(session)

    def poll(self) -> Played:
        """Return what was played since the last call."""
        return self._players.poll(self._buffers)

    def tell(self, news: Any) -> None:
        """Tell the cast what the driver says."""
        self._players.tell(news)


class SeatAnswers:
    """Makes the actors of one policy that learns, and gathers the returns of their episodes.

    Args:
        plan: model of the policy, and how it acts.
        buffer: where they push.
        pace: what holds them back; None: nothing but a full buffer.
        push_timeout_s: seconds that a full buffer may do so.
    """

    def __init__(self, plan: SeatPlan, buffer: Any, pace: Any, push_timeout_s: float) -> None:
        self.plan = plan
        self._buffer = buffer
        self._pace = pace
        self._push_timeout_s = push_timeout_s
        self._actions = plan.config.action_vector()
        self._lock = threading.Lock()
        self._returns: list[float] = []
        self._alone: list[GameResult] = []

    def __call__(self, session: str) -> LearnerActor:
        """Return the actor of a session by itself, whose episode is a game."""
        return self.actor(session, self._note_alone)

    def of_match(self, session: str) -> LearnerActor:
        """Return the actor of a session that is a side of a match, which tells how that ended."""
        return self.actor(session, self._note)

    def actor(self, session: str, note: Callable[[float, int], None]) -> LearnerActor:
        """Return the actor of a session.

        Args:
            session: id of the session.
            note: function that takes the return and the length of its episode.
        """
        return LearnerActor(
            note,
            session,
            self.plan.model,
            self.plan.config,
            self._buffer,
            self._pace,
            push_timeout_s=self._push_timeout_s,
            actions=self._actions,
        )

    def _note(self, episode_return: float, length: int) -> None:
        with self._lock:
            self._returns.append(episode_return)

    def _note_alone(self, episode_return: float, length: int) -> None:
        name = self.plan.name
        self._note(episode_return, length)
        with self._lock:
            self._alone.append(GameResult({name: name}, {name: episode_return}, {name: length}))

    def take_returns(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        with self._lock:
            found, self._returns = self._returns, []
        return found

    def take_alone(self) -> list[GameResult]:
        """Return the episodes of sessions by themselves that ended since the last call, a game
        each, with the policy's name for its only agent."""
        with self._lock:
            found, self._alone = self._alone, []
        return found


class LearnerActor(PolicyActor):
    """The actor of a policy that learns, whose episodes' returns are noted.

    An episode may end with steps that are in no segment: so these cannot tell.

    Args:
        note: function that takes the return and the length.
        arguments: those of a `PolicyActor`.
        options: those of a `PolicyActor`.
    """

    def __init__(self, note: Callable[[float, int], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._note = note

    async def end(self, body: bytes) -> bytes:
        """Take the last outcome, and note the episode's return."""
        reply = await super().end(body)
        self._note(self.episode_return, self.episode_length)
        return reply


class SeatPlayers:
    """Finds who answers a session: a policy that learns, an opponent, or an evaluation.

    Args:
        play: what is played, and how.
        seats: policies by pattern of the agents that they answer.
        answers: what makes their actors, by name.
        make_cast: makes what says who plays the matches.
    """

    def __init__(
        self,
        play: GamecorePlay,
        seats: Mapping[str, SeatPlan],
        answers: Mapping[str, SeatAnswers],
        make_cast: CastMaker | None,
    ) -> None:
        self._answers = answers
        self.desks = {
            name: EvaluationDesk(answer.plan.model, answer.plan.config)
            for name, answer in answers.items()
        }
        """Who answers the evaluation sessions of each policy."""
        learners = {name: _seat(answer.plan) for name, answer in answers.items()}
        cast: Cast = FixedCast({pattern: learners[plan.name] for pattern, plan in seats.items()})
        if make_cast is not None:
            cast = make_cast(learners)
        self._matches = MatchTable(cast, self._play_seat, seed=play.seed)
        routed = {pattern: self._routed(play, plan) for pattern, plan in seats.items()}
        self.router = SessionRouter(routed, self._matches)
        """Makes the actor of a session."""

    def _routed(self, play: GamecorePlay, plan: SeatPlan) -> RoutedSeat:
        described = plan.config.spaces
        spaces = play.spaces if described is None else Spaces.parse(plan.name, described)
        return RoutedSeat(
            name=plan.name,
            make=self._answers[plan.name],
            spaces=spaces,
            evaluate=self.desks[plan.name],
        )

    def _play_seat(self, session: str, seat: Seat) -> PolicyActor:
        """Return the actor of one side of a match."""
        if seat.buffer is not None:
            return self._answers[seat.name].of_match(session)
        return PolicyActor(session, seat.model, replace(seat.config, role="opponent"))

    def poll(self, buffers: Mapping[str, CountingBuffer]) -> Played:
        """Return what was played since the last call.

        Args:
            buffers: what counted the segments of each policy.
        """
        frames = {name: buffer.poll().frames for name, buffer in buffers.items()}
        returns = [one for answer in self._answers.values() for one in answer.take_returns()]
        alone = [one for answer in self._answers.values() for one in answer.take_alone()]
        results: tuple[GameResult, ...] = (*self._matches.poll(), *alone)
        return Played(sum(frames.values()), returns, results, frames)

    def tell(self, news: Any) -> None:
        """Tell the cast what the driver says."""
        self._matches.tell(news)


def _seat(plan: SeatPlan) -> Seat:
    return Seat(name=plan.name, model=plan.model, config=plan.config, buffer=plan.buffer)
