"""Gamecore processes of one machine that play Gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.lane_fleet import LaneFleet


def lanes_at(
    address: int, num_addresses: int, num_processes: int, envs_per_process: int
) -> list[str]:
    """Return the lanes that a `GamecoreFleet` plays at one of its addresses, in order.

    Their sessions are named `lane/episode`.

    Args:
        address: Number of the address, from 0.
        num_addresses: Number of addresses of the fleet.
        num_processes: Number of gamecore processes.
        envs_per_process: Number of environments in each.
    """
    return [
        str(process * envs_per_process + environment)
        for process in range(address, num_processes, num_addresses)
        for environment in range(envs_per_process)
    ]


class GamecoreFleet(LaneFleet):
    """A `LaneFleet` whose processes each play `envs_per_process` environments of one kind.

    Args:
        environment: A Gymnasium id, or how it is made.
        addresses: Addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        envs_per_process: Number of environments in each.
        seed: Seed of the environments.
        log: File that takes what the processes write to standard error.
    """

    _module = "bray_actor.gamecores.gamecore"
    _lanes_name = "envs_per_process"
    _lanes_option = "--num-envs"

    def __init__(
        self,
        environment: str | EnvironmentSpec,
        addresses: Sequence[str] | Callable[[], Sequence[str]],
        *,
        num_processes: int = 1,
        envs_per_process: int = 1,
        seed: int = 0,
        log: Path | None = None,
    ) -> None:
        super().__init__(
            EnvironmentSpec.of(environment).to_json(),
            addresses,
            num_processes=num_processes,
            lanes=envs_per_process,
            seed=seed,
            log=log,
        )
