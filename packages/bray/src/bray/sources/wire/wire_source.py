"""What all sources over the wire have in common, whoever answers and whatever calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from bray.run import Run
from bray.sources.simulator_evaluation import evaluation_in_words
from bray.sources.simulator_ports import SimulatorPorts, how_to_connect
from bray.sources.source import Played
from bray.sources.wire.gamecore_play import GamecorePlay
from bray.sources.wire.gamecore_processes import fleet_of
from bray.sources.wire.recorded_episodes import episodes_of, most_episodes_of, some_recorded
from bray_actor.policy.session_router import MakeActor
from bray_actor.policy.shared_turn import SharedTurn
from bray_actor.policy.turn_budget import TurnBudget
from bray_core.cli import check_interrupted
from bray_core.process.imports_ahead import import_ahead

_LOOK_S = 0.25
"""How often gamecores are looked after while a turn is played."""
_LATER = (
    "tensorboard.summary.writer.event_file_writer",
    "torch.onnx",
    "bray_model.export.exporter",
)
"""What metrics and the export import: half a second, about as long as a gamecore takes to start."""


class WireSource:
    """Actors that answer, and the processes that call them.

    Args:
        run: makes both, and closes them.
        play: what is played, and by how many.
        maker: makes what makes a session's actor, in each worker.
    """

    _takes_tagged: ClassVar[bool]
    """Whether sessions that are tagged as evaluation count."""

    def __init__(self, run: Run, play: GamecorePlay, maker: Callable[[], MakeActor]) -> None:
        self._run = run
        self._play = play
        self._actors: Any = run.actor(
            "actor", maker, num_workers=play.actor.num_workers, **_ports_of(play)
        )
        self._fleet = fleet_of(run, play, self._actors)

    def _start_once(self) -> None:
        """Start the processes, unless they play already."""
        if not self._fleet.pids:
            self._fleet.start()

    def lines(self) -> list[str]:
        """Return how the simulators find this run, and how it is evaluated, in words."""
        source = self._play.source
        if not source.is_simulator:
            return []
        lines = [] if source.command is not None else [how_to_connect(self._actors.addresses)]
        how = evaluation_in_words(source, takes_tagged=self._takes_tagged)
        return [*lines, f"evaluation: {how}"]

    def close(self) -> None:
        """End gamecores and actors."""
        self._fleet.stop()
        self._actors.close()


class TurnWireSource(WireSource):
    """A source of a local run: it plays the steps of a turn, then stands still.

    Args:
        run: makes actors and processes, and closes them.
        play: what is played, and by how many.
        make: makes a session's actor.
    """

    _takes_tagged = True

    def __init__(self, run: Run, play: GamecorePlay, make: MakeActor) -> None:
        recorded = some_recorded(make, play, episodes_of(run), most_episodes_of(run))
        super().__init__(run, play, lambda: recorded)
        self._has_played = False

    def _play_turn(self, turn: TurnBudget | SharedTurn, steps: int) -> None:
        """Play so many steps of each lane in the mean.

        Raises:
            BrayError: a gamecore ends again and again.
        """
        turn.grant(steps * self._play.num_lanes)
        if not self._has_played:  # its processes are starting
            self._has_played = True
            import_ahead(_LATER)
        while not turn.wait_played(_LOOK_S):
            check_interrupted()
            self._fleet.check()


class RemoteWireSource(WireSource):
    """A source whose actors live in workers on Ray, and which plays by itself."""

    _takes_tagged = False

    def collect(self, steps: int) -> None:
        """Do nothing: they play by themselves."""

    def poll(self) -> Played:
        """Return what was played since the last call; the first one starts the gamecores.

        Those that ended are replaced.

        Raises:
            BrayError: a gamecore ends again and again.
            WorkerLostError: a worker died too often; quotes its last words.
        """
        self._start_once()
        self._fleet.check()
        played: Played = self._actors.poll()
        return played

    def tell(self, news: Any) -> None:
        """Tell all workers what the driver says, such as new opponents or `NewResetOptions`."""
        self._actors.tell(news)


def _ports_of(play: GamecorePlay) -> dict[str, Any]:
    """Return the ports at which actors listen."""
    if not play.source.is_simulator:
        return {"port": play.actor.port}
    ports = SimulatorPorts.of(play.source, play.actor)
    return {"port": ports.tcp, "http_port": ports.http}
