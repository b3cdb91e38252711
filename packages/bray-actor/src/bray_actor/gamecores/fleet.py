"""Gamecore processes of one machine that play Gymnasium environments."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.gamecores.process_fleet import ProcessFleet
from bray_core.errors import ConfigError


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


class GamecoreFleet(ProcessFleet):
    """Processes that each play `envs_per_process` environments of one kind.

    Process i plays the lanes from i × envs_per_process on, at address i modulo their number.
    On Linux the processes end with the thread that called `start` or `check`, however it ends.

    Args:
        environment: A Gymnasium id, or how it is made.
        addresses: Addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        envs_per_process: Number of environments in each.
        seed: Seed of the environments.
        log: File that takes what the processes write to standard error.
    """

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
        if envs_per_process < 1:
            raise ConfigError(f"envs_per_process: expected 1 or more, got {envs_per_process}")
        self._make = EnvironmentSpec.of(environment).to_json()
        self._envs_per_process = envs_per_process
        self._seed = seed
        super().__init__(
            self._words,
            addresses,
            num_processes=num_processes,
            log=None if log is None else lambda _: log,
        )

    def _words(self, index: int, address: str) -> list[str]:
        command = [sys.executable, "-m", "bray_actor.gamecores.gamecore"]
        command += ["--make", self._make, "--address", address]
        command += ["--num-envs", str(self._envs_per_process), "--seed", str(self._seed)]
        command += ["--lane-offset", str(index * self._envs_per_process)]
        return [*command, "--parent", str(os.getpid())]
