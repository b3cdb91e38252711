"""Simulators of one's own, started by a command: what its words stand for, and a fleet of them."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from bray_actor.gamecores.process_fleet import ProcessFleet
from bray_core.errors import ConfigError
from bray_core.settings.choice import closest
from bray_server.wire.address import Address

SimulatorPhase: TypeAlias = Literal["training", "evaluation"]

PLACEHOLDERS = {
    "address": "where its actors listen, such as tcp://127.0.0.1:7300",
    "host": "the host of that address",
    "port": "the TCP port of that address",
    "http_port": "the port of the same actors for HTTP",
    "seed": "a seed, another one for each process",
    "phase": "training, or evaluation",
    "lanes": "number of sessions that the process plays side by side",
    "first_lane": "number of its first lane: a session is named lane/episode",
    "index": "number of the process, from 0",
}
"""Names in braces that a command may have, and what they stand for."""
_GUARD = Path(__file__).with_name("process_guard.py")
_SEEDS_A_RUN = 1000
_MOST_SEED = 2**31


def command_words(command: str, values: Mapping[str, object] | None = None) -> list[str]:
    """Return the words of a command, as a shell would split it; there is no shell.

    Args:
        command: The command, with names of `PLACEHOLDERS` in braces.
        values: What these stand for; None leaves them as they are.

    Raises:
        ConfigError: It has no words, an open quote, or an unknown name in braces.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"command: {error}, in {command!r}") from error
    if not words:
        raise ConfigError("command: expected a program and its arguments, got nothing")
    for name in placeholders(command):
        if name not in PLACEHOLDERS:
            raise ConfigError(
                f"command: unknown name {{{name}}}{closest(name, PLACEHOLDERS)}; "
                f"known: {', '.join(PLACEHOLDERS)}"
            )
    if values is None:
        return words
    return [re.sub(r"\{(\w+)\}", lambda found: str(values[found[1]]), word) for word in words]


def placeholders(command: str) -> set[str]:
    """Return the names in braces that a command has."""
    return set(re.findall(r"\{(\w+)\}", command))


class SimulatorFleet(ProcessFleet):
    """Processes of a command, each of which plays `lanes` sessions side by side.

    They end with this process, however it ends, and with them all that they started.

    Args:
        command: The command, with names of `PLACEHOLDERS` in braces.
        addresses: TCP addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        lanes: Number of sessions of each.
        seed: Seed of the run.
        phase: What the sessions are for.
        http_port: Port of the actors for HTTP; None: they have none.
        logs: Folder that takes what each process writes, in a file of its own.

    Raises:
        ConfigError: The command has an unknown name in braces.
    """

    def __init__(
        self,
        command: str,
        addresses: Sequence[str] | Callable[[], Sequence[str]],
        *,
        num_processes: int = 1,
        lanes: int = 1,
        seed: int = 0,
        phase: SimulatorPhase = "training",
        http_port: int | None = None,
        logs: Path | None = None,
    ) -> None:
        command_words(command)
        self._text = command
        self._lanes = lanes
        self._seed = seed
        self._phase = phase
        self._http_port = http_port
        super().__init__(
            self._words,
            addresses,
            num_processes=num_processes,
            log=None if logs is None else lambda index: logs / f"{phase}-{index}.log",
            takes_output=True,
        )

    def start(self) -> None:
        """Start all processes.

        Raises:
            ConfigError: There is no such program.
        """
        program = command_words(self._text)[0]
        if not placeholders(program) and shutil.which(program) is None:
            raise ConfigError(
                f"source.command: expected a program that can be run, got {program!r}: there is "
                f"none of this name in {Path.cwd()} or on the PATH"
            )
        super().start()

    def _words(self, index: int, address: str) -> list[str]:
        found = Address.parse(address)
        values = {
            "address": address,
            "host": found.host,
            "port": found.port,
            "http_port": self._http_port,
            "seed": (self._seed * _SEEDS_A_RUN + index) % _MOST_SEED,
            "phase": self._phase,
            "lanes": self._lanes,
            "first_lane": index * self._lanes,
            "index": index,
        }
        return [sys.executable, "-I", "-S", str(_GUARD), *command_words(self._text, values)]
