"""Gamecores of several policies as a source: who answers which agent, and when a turn is over.

The sessions of one simulator play different policies, each with a model, a buffer and a trainer of
its own. In a local run all of them share a turn (`bray_actor.policy.shared_turn`): it ends when one
policy has the steps that it is trained on. On Ray each follows the versions of its own model
(`bray_actor.policy.shared_versions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bray.run import Run
from bray.sources.simulator_evaluation import evaluate_by_tagged
from bray.sources.source import Played
from bray.sources.wire.counting_buffer import CountingBuffer
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.policy_answers import PUSH_TIMEOUT_S, first_options
from bray.sources.wire.recorded_episodes import episodes_of, most_episodes_of, some_recorded
from bray.sources.wire.seat_answers import SeatAnswers
from bray.sources.wire.seat_plan import AnySeat, check_shares, plans_by_name
from bray.sources.wire.seat_players import CastMaker, SeatPlayers
from bray.sources.wire.wire_source import RemoteWireSource, TurnWireSource
from bray_actor.policy.shared_turn import SharedTurn, TurnSeat
from bray_actor.policy.shared_versions import SharedVersions, VersionSeat
from bray_core.protocols import ActorProtocol, ModelProtocol


def several_gamecores(
    run: Run,
    play: GamecorePlay,
    seats: Mapping[str, AnySeat],
    make_cast: CastMaker | None = None,
) -> TurnSeatGamecores | RemoteSeatGamecores:
    """Return the source of gamecores whose agents are answered by several policies.

    Args:
        run: what makes actors and gamecores, and closes them.
        play: what is played, and by how many.
        seats: policies by pattern of the agents that they answer, such as `hunter_*`; the first
            that fits counts. Those without a buffer, scripts and frozen policies, record nothing.
        make_cast: makes what says who plays the matches; None: whoever answers an agent else.

    Raises:
        ConfigError: there is no seat, two different ones have a name, or the steps of a version
            cannot be shared out to the workers.
    """
    plans_by_name(seats)
    kind = TurnSeatGamecores if run.is_local else RemoteSeatGamecores
    return kind(run, play, seats, make_cast)


class TurnSeatGamecores(TurnWireSource):
    """Gamecores of a local run with several policies: they play a turn, then stand still."""

    def __init__(
        self,
        run: Run,
        play: GamecorePlay,
        seats: Mapping[str, AnySeat],
        make_cast: CastMaker | None = None,
    ) -> None:
        plans = plans_by_name(seats)
        self._buffers = {name: CountingBuffer(plan.buffer) for name, plan in plans.items()}
        self._turn = SharedTurn(
            {name: TurnSeat(plan.buffer.layout, plan.quota) for name, plan in plans.items()}
        )
        options = first_options(play)
        answers = {
            name: SeatAnswers(plan, self._turn[name], self._turn[name], 0.0, options)
            for name, plan in plans.items()
        }
        self._players = SeatPlayers(play, seats, answers, make_cast, options)
        super().__init__(run, play, self._players.router)

    def collect(self, steps: int) -> None:
        """Play until the first policy with a quota has its steps, or all together have played so
        many steps of each lane; return when they are pushed.

        Raises:
            BrayError: a gamecore ends again and again, or a buffer has no room for the turn.
        """
        self._play_turn(self._turn, steps)
        for name, segments in self._turn.segments().items():
            if segments:
                self._buffers[name].push_turn(segments, f"buffer of {name}")

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores."""
        self._start_once()
        return self._players.poll(self._buffers)

    def tell(self, news: Any) -> None:
        """Take what the driver says: new opponents, or `NewResetOptions` for later episodes."""
        self._players.tell(news)

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


class RemoteSeatGamecores(RemoteWireSource):
    """Gamecores that call actors of several policies in workers on Ray, and play by themselves."""

    def __init__(
        self,
        run: Run,
        play: GamecorePlay,
        seats: Mapping[str, AnySeat],
        make_cast: CastMaker | None = None,
    ) -> None:
        check_shares(seats, play.actor.num_workers)
        make = partial(
            WorkerSeats, play, dict(seats), make_cast, episodes_of(run), most_episodes_of(run)
        )
        super().__init__(run, play, make)


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
        seats: Mapping[str, AnySeat],
        make_cast: CastMaker | None,
        episodes: Path,
        most_episodes: int,
    ) -> None:
        plans = plans_by_name(seats)
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
        options = first_options(play)
        answers = {
            name: SeatAnswers(plan, buffers[name], None, PUSH_TIMEOUT_S, options)
            if plan.quota is None
            else SeatAnswers(plan, paced[name], paced[name], PUSH_TIMEOUT_S, options)
            for name, plan in plans.items()
        }
        self._players = SeatPlayers(play, seats, answers, make_cast, options)
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
