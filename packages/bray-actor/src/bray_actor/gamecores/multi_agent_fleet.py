"""Gamecore processes of one machine that play environments of several agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bray_actor.gamecores.process_fleet import ProcessFleet
from bray_core.errors import ConfigError


class MultiAgentFleet(ProcessFleet):
    """Processes that each play `lanes` games of one kind side by side.

    Process i plays the lanes from i × lanes on, at address i modulo their number. On Linux the
    processes end with the thread that called `start` or `check`, however it ends.

    Args:
        games: How a game is made, as `bray_actor.multi_agent.making.MultiAgentSpec.to_json` wrote.
        addresses: Addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        lanes: Number of games that each plays side by side.
        seed: Seed of the environments.
        log: File that takes what the processes write to standard error.
    """

    def __init__(
        self,
        games: str,
        addresses: Sequence[str] | Callable[[], Sequence[str]],
        *,
        num_processes: int = 1,
        lanes: int = 1,
        seed: int = 0,
        log: Path | None = None,
    ) -> None:
        if lanes < 1:
            raise ConfigError(f"lanes: expected 1 or more, got {lanes}")
        self._games = games
        self._lanes = lanes
        self._seed = seed
        super().__init__(
            self._words,
            addresses,
            num_processes=num_processes,
            log=None if log is None else lambda _: log,
        )

    def _words(self, index: int, address: str) -> list[str]:
        command = [sys.executable, "-m", "bray_actor.gamecores.multi_agent_gamecore"]
        command += ["--make", self._games, "--address", address]
        command += ["--lanes", str(self._lanes), "--seed", str(self._seed)]
        command += ["--lane-offset", str(index * self._lanes)]
        return [*command, "--parent", str(os.getpid())]
