"""Gamecore processes of one machine, each of which plays several lanes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from bray_actor.gamecores.process_fleet import ProcessFleet
from bray_core.errors import ConfigError
from bray_core.process.user_modules import module_command


class LaneFleet(ProcessFleet):
    """Processes of a gamecore's module that each play `lanes` lanes of one kind.

    Process i plays the lanes from i × lanes on, at address i modulo their number. On Linux the
    processes end with the thread that called `start` or `check`, however it ends.

    Args:
        make: How what is played is made, as the module's `--make` takes it.
        addresses: Addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        lanes: Number of lanes that each plays side by side.
        seed: Seed of the environments.
        log: File that takes what the processes write to standard error.
    """

    _module: ClassVar[str]
    _lanes_name: ClassVar[str] = "lanes"
    """Name of `lanes` in messages."""
    _lanes_option: ClassVar[str] = "--lanes"

    def __init__(
        self,
        make: str,
        addresses: Sequence[str] | Callable[[], Sequence[str]],
        *,
        num_processes: int = 1,
        lanes: int = 1,
        seed: int = 0,
        log: Path | None = None,
    ) -> None:
        if lanes < 1:
            raise ConfigError(f"{self._lanes_name}: expected 1 or more, got {lanes}")
        self._make = make
        self._lanes = lanes
        self._seed = seed
        files = None if log is None else lambda _: log
        super().__init__(self._words, addresses, num_processes=num_processes, log=files)

    def _words(self, index: int, address: str) -> list[str]:
        command = [*module_command(self._module), "--make", self._make, "--address", address]
        command += [self._lanes_option, str(self._lanes), "--seed", str(self._seed)]
        command += ["--lane-offset", str(index * self._lanes)]
        return [*command, "--parent", str(os.getpid())]
