"""The processes that play a source over the wire: gamecores, simulators of a command, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bray.run import Run
from bray.sources.simulator_evaluation import LOGS
from bray.sources.simulator_ports import http_port_of
from bray.sources.wire.gamecore_play import GamecorePlay
from bray_actor.gamecores.process_fleet import ProcessFleet


def fleet_of(run: Run, play: GamecorePlay, actors: Any) -> ProcessFleet | ExternalSimulators:
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
