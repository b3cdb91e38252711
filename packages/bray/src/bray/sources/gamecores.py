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

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bray.run import Run
from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray.sources.evaluation_desk import EvaluationDesk
from bray.sources.simulator_evaluation import (
    LOGS,
    evaluate_by_command,
    evaluate_by_tagged,
    evaluates_by_command,
    evaluation_in_words,
)
from bray.sources.simulator_ports import SimulatorPorts, how_to_connect, http_port_of
from bray.sources.source import Played
from bray_actor import PolicyActor, PolicyConfig, Recorder
from bray_actor.episodes import EpisodeLog
from bray_actor.gamecores.fleet import lanes_at
from bray_actor.policy.lane_barrier import LaneBarrier
from bray_actor.policy.session_router import MakeActor, RoutedSeat, SessionRouter
from bray_actor.policy.step_budget import Budget, StepBudget
from bray_actor.policy.turn_budget import TurnBudget
from bray_actor.reset_options import NewResetOptions, ResetOptions
from bray_core.cli import check_interrupted
from bray_core.errors import BrayError, ConfigError
from bray_core.layout import Layout, Packed
from bray_core.protocols import ActorProtocol, BufferProtocol, ModelProtocol
from bray_core.spaces import Spaces

LOOK_S = 0.25
"""How often gamecores are looked after while a turn is played."""
PUSH_TIMEOUT_S = 900.0
"""How long a full buffer may hold a session back: as long as a trainer may evaluate."""
_KEPT_EPISODES = 1000
"""Newest recorded episodes that stay where the run does not say how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GamecorePlay:
    """What gamecores play and how: all that a worker has to know, picklable."""

    source: GamecoreSourceConfig
    """Environments of the gamecore processes."""
    actor: ServingActorConfig
    """Workers that answer; a local run has one."""
    policy: PolicyConfig
    """How the policy acts."""
    steps_per_version: int | None = None
    """On Ray, steps of all environments that each policy version answers; None sets no bound."""
    seed: int = 0
    """Seed of the environments."""
    spaces: Spaces | None = None
    """What simulators of one's own show and take; None: gamecores of a Gymnasium id play."""
    reset_options: Mapping[str, Any] | None = None
    """Options that the first episodes begin with; None: there is no curriculum."""
    games: str | None = None
    """How a game of several agents is made, as `MultiAgentSpec.to_json` writes; then the lanes of
    bray's own gamecores are games of it."""

    @property
    def num_lanes(self) -> int:
        """Number of environments of all processes together."""
        return self.source.num_processes * self.source.num_envs

    def lanes(self, worker: int = 0) -> list[str]:
        """Return the lanes that a worker answers, in the order of their rows."""
        if self.source.external:  # of which nobody knows who calls which worker
            return [str(lane) for lane in range(self.num_lanes)]
        return lanes_at(
            worker, self.actor.num_workers, self.source.num_processes, self.source.num_envs
        )


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


class TurnGamecores:
    """Gamecores of a local run: they play the steps of a turn, then stand still."""

    def __init__(self, run: Run, play: GamecorePlay, model: Any, buffer: Any) -> None:
        self._run = run
        self._play = play
        self._episodes = EpisodeLog()
        self._options = _reset_options(play)
        self._played = CountingBuffer(buffer, self._episodes)
        self._turn = TurnBudget(buffer.layout)
        lanes = _barrier(model, play, 0, self._turn)
        recorder: Any = self._turn
        make: MakeActor = PolicyActor.factory(
            model,
            play.policy,
            buffer=recorder,
            lanes=lanes,
            episodes=self._episodes,
            options=self._options,
        )
        self._desk = EvaluationDesk(model, play.policy)
        if play.spaces is not None:
            seat = RoutedSeat(spaces=play.spaces, make=make, lanes=lanes, evaluate=self._desk)
            make = SessionRouter({"*": seat})
        recorded = some_recorded(make, play, episodes_of(run), most_episodes_of(run))
        self._actors = run.actor("actor", lambda: recorded, **ports_of(play))
        self._fleet = fleet_of(run, play, self._actors)

    def collect(self, steps: int) -> None:
        """Play so many steps of each environment in the mean; return when they are pushed.

        Raises:
            BrayError: a gamecore ends again and again, or the buffer has no room for the turn.
        """
        self._turn.grant(steps * self._play.num_lanes)
        while not self._turn.wait_played(LOOK_S):
            check_interrupted()
            self._fleet.check()
        segments = self._turn.segments()
        if not segments:  # all of the turn was lent before
            return
        rows = in_order_of(Packed(self._turn.layout, np.stack([s.block for s in segments])))
        if (taken := self._played.push(rows)) < len(segments):
            raise BrayError(
                f"buffer: has room for {taken} of the {len(segments)} segments of a turn, and "
                "nothing is popped while one is played: raise its capacity"
            )

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores."""
        start_once(self._fleet)
        return self._played.poll()

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions` for later episodes: they are told in the reply to a `start`."""
        _propose(self._options, news)

    def lines(self) -> list[str]:
        """Return how the simulators find this run, and how it is evaluated, in words."""
        return lines_of(self._play, self._actors, takes_tagged=True)

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
        return evaluate_by_tagged(self._desk, policy, episodes) if self._desk.was_called else None

    def close(self) -> None:
        """End gamecores and actors."""
        self._fleet.stop()
        self._actors.close()


class RemoteGamecores:
    """Gamecores that call actors in workers on Ray, and play by themselves."""

    def __init__(self, run: Run, play: GamecorePlay, model: Any, buffer: Any) -> None:
        from bray_core.remote.workers import with_worker_index

        make = partial(WorkerActors, play, model, buffer, episodes_of(run), most_episodes_of(run))
        self._run = run
        self._play = play
        self._actors: Any = run.actor(
            "actor", with_worker_index(make), num_workers=play.actor.num_workers, **ports_of(play)
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
        """Take `NewResetOptions` for later episodes; as in `TurnGamecores.tell`."""
        self._actors.tell(news)

    def lines(self) -> list[str]:
        """Return how the simulators find this run, and how it is evaluated, in words."""
        return lines_of(self._play, self._actors, takes_tagged=False)

    def evaluate(self, policy: ModelProtocol, episodes: int, seed: int) -> Sequence[float] | None:
        """Let simulators play episodes with a policy; as in `TurnGamecores.evaluate`."""
        if evaluates_by_command(self._play.source):
            return evaluate_by_command(self._run, self._play, policy, episodes, seed)
        return None  # tagged sessions come to workers, where this policy is not

    def close(self) -> None:
        """End gamecores and actors."""
        self._fleet.stop()
        self._actors.close()


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
        self._episodes = EpisodeLog()
        self._options = _reset_options(play)
        self._played = CountingBuffer(buffer, self._episodes)
        recorder: Any = self._played
        lanes = None
        if play.steps_per_version is not None:
            budget = StepBudget(play.steps_per_version // play.actor.num_workers, model)
            lanes = _barrier(model, play, worker, budget)
        make: MakeActor = PolicyActor.factory(
            model,
            play.policy,
            buffer=recorder,
            lanes=lanes,
            push_timeout_s=PUSH_TIMEOUT_S,
            episodes=self._episodes,
            options=self._options,
        )
        if play.spaces is not None:
            desk = EvaluationDesk(model, play.policy)
            seat = RoutedSeat(spaces=play.spaces, make=make, lanes=lanes, evaluate=desk)
            make = SessionRouter({"*": seat})
        self._make = some_recorded(make, play, episodes, most_episodes)

    def __call__(self, session: str) -> ActorProtocol:
        """Return the actor of a session."""
        return self._make(session)

    def poll(self) -> Played:
        """Return what was played since the last call."""
        return self._played.poll()

    def tell(self, news: Any) -> None:
        """Take `NewResetOptions` for later episodes."""
        _propose(self._options, news)


class CountingBuffer:
    """A buffer as sessions push to it, which counts what they played.

    Args:
        buffer: where the segments go.
        episodes: log of the sessions' episodes, told with what was played; None: there is none.
    """

    def __init__(self, buffer: Any, episodes: EpisodeLog | None = None) -> None:
        self._buffer = buffer
        self._episodes = episodes
        self._lock = threading.Lock()
        self._frames = 0
        self._returns: list[float] = []

    @property
    def layout(self) -> Layout:
        """Layout of a segment."""
        layout: Layout = self._buffer.layout
        return layout

    def push(self, segment: Packed, **options: Any) -> int:
        """Push one segment, or rows of them; return how many were taken."""
        taken: int = self._buffer.push(segment, **options)
        self._count(segment, taken)
        return taken

    async def push_async(self, segment: Packed, **options: Any) -> int:
        """`push` that lets the event loop go on while it waits."""
        taken: int = await self._buffer.push_async(segment, **options)
        self._count(segment, taken)
        return taken

    def _count(self, segment: Packed, taken: int) -> None:
        rows: Any = self.layout.views(np.atleast_2d(segment.block)[:taken])
        returns = rows["episode_return"]
        with self._lock:
            self._frames += int(rows["length"].sum())
            self._returns += returns[~np.isnan(returns)].tolist()

    def poll(self) -> Played:
        """Return what was pushed since the last call."""
        episodes = () if self._episodes is None else tuple(self._episodes.take())
        with self._lock:
            played = Played(self._frames, self._returns, episodes=episodes)
            self._frames, self._returns = 0, []
        return played


def _reset_options(play: GamecorePlay) -> ResetOptions | None:
    if play.reset_options is None:
        return None
    options = ResetOptions()
    options.propose(play.reset_options)
    return options


def _propose(options: ResetOptions | None, news: Any) -> None:
    """Take new options, where there is a curriculum."""
    if options is not None and isinstance(news, NewResetOptions):
        options.propose(news.options)


def in_order_of(rows: Packed) -> Packed:
    """Return the segments of a turn in an order that does not depend on when each one came."""
    from bray_trainer.sequences import in_order  # torch: templates know this module without it

    return in_order(rows)


def some_recorded(
    make: Callable[[str], ActorProtocol], play: GamecorePlay, episodes: Path, most: int
) -> Callable[[str], ActorProtocol]:
    """Return a maker of the same actors, of which some are recorded if that is wanted."""
    every = play.actor.record_every
    return Recorder(episodes, every=every, max_files=most).record(make) if every else make


def episodes_of(run: Run) -> Path:
    """Return the folder of recorded episodes."""
    return run.experiment.path / "episodes"


def most_episodes_of(run: Run) -> int:
    """Return how many of the newest recorded episodes stay."""
    return _KEPT_EPISODES if run.retention is None else run.retention.episodes


def _barrier(model: ModelProtocol, play: GamecorePlay, worker: int, budget: Budget) -> LaneBarrier:
    """Return what answers the lanes of a worker together; of simulators of one's own only those
    that bray starts are waited for, and only while none is late."""
    return LaneBarrier(
        model,
        play.lanes(worker),
        budget=budget,
        waits=not play.source.external,
        gives_up=play.source.is_simulator,
    )


def ports_of(play: GamecorePlay) -> dict[str, Any]:
    """Return the ports at which actors listen."""
    if not play.source.is_simulator:
        return {"port": play.actor.port}
    ports = SimulatorPorts.of(play.source, play.actor)
    return {"port": ports.tcp, "http_port": ports.http}


def lines_of(play: GamecorePlay, actors: Any, *, takes_tagged: bool) -> list[str]:
    """Return how simulators find a run, and how it is evaluated, in words."""
    if not play.source.is_simulator:
        return []
    source = play.source
    lines = [] if source.command is not None else [how_to_connect(actors.addresses)]
    return [*lines, f"evaluation: {evaluation_in_words(source, takes_tagged=takes_tagged)}"]


def fleet_of(run: Run, play: GamecorePlay, actors: Any) -> Any:
    """Return the processes that play, which start later."""

    def addresses() -> list[str]:
        found: list[str] = actors.worker_addresses
        return found

    if play.source.external:
        return ExternalSimulators()
    if play.source.command is not None:
        return run.simulators(
            play.source.command,
            addresses,
            num_processes=play.source.num_processes,
            lanes=play.source.num_envs,
            seed=play.seed,
            http_port=http_port_of(actors.addresses),
            logs=run.experiment.path / LOGS,
        )
    if play.games is not None:
        return run.game_processes(
            play.games,
            addresses,
            num_processes=play.source.num_processes,
            lanes=play.source.num_envs,
            seed=play.seed,
        )
    return run.gamecores(
        play.source,
        addresses,
        num_processes=play.source.num_processes,
        envs_per_process=play.source.num_envs,
        seed=play.seed,
    )


class ExternalSimulators:
    """The fleet of a run whose simulators somebody else starts: there is nothing to do."""

    pids: Sequence[int] = ()

    def start(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


def start_once(fleet: Any) -> None:
    """Start a fleet, unless it plays already."""
    if not fleet.pids:
        fleet.start()


def steps_per_turn(batch_steps: int, num_lanes: int) -> int:
    """Return the steps that each environment of all gamecores takes for a replay.

    Raises:
        ConfigError: the replay cannot be shared out evenly.
    """
    if batch_steps % num_lanes:
        raise ConfigError(
            f"batch: expected a multiple of the {num_lanes} environments (num_processes × "
            f"num_envs), got {batch_steps} steps"
        )
    return batch_steps // num_lanes
