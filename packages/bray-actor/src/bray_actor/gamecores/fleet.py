"""Gamecore processes of one machine: started, watched, replaced, stopped."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bray_actor.environments.spec import EnvironmentSpec
from bray_core import metrics
from bray_core.errors import BrayError, ConfigError, DeadlineError, WorkerLostError
from bray_core.remote.restart_limit import RestartLimit

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 2.0
_LIMIT = RestartLimit(max_restarts=10, window_s=60.0)
_ADDRESS_TIMEOUT_S = 60.0
"""Actor workers that were lost are back by then, or will not come."""


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


class GamecoreFleet:
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
        for name, number in (
            ("num_processes", num_processes),
            ("envs_per_process", envs_per_process),
        ):
            if number < 1:
                raise ConfigError(f"{name}: expected 1 or more, got {number}")
        self._make = EnvironmentSpec.of(environment).to_json()
        self._addresses = addresses
        self._num_processes = num_processes
        self._envs_per_process = envs_per_process
        self._seed = seed
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ends: list[list[float]] = [[] for _ in range(num_processes)]
        self._lost_since: float | None = None

    def start(self) -> None:
        """Start all processes."""
        if self._processes:
            raise ConfigError("start: the gamecores are running already")
        addresses = self._ask_addresses()
        for index in range(self._num_processes):
            self._processes.append(self._spawn(index, addresses))

    def _ask_addresses(self) -> Sequence[str]:
        return self._addresses() if callable(self._addresses) else self._addresses

    def _spawn(self, index: int, addresses: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "bray_actor.gamecores.gamecore",
            "--make",
            self._make,
        ]
        command += ["--address", addresses[index % len(addresses)]]
        command += ["--num-envs", str(self._envs_per_process), "--seed", str(self._seed)]
        command += ["--lane-offset", str(index * self._envs_per_process)]
        command += ["--parent", str(os.getpid())]
        log = self._log.open("ab") if self._log is not None else None
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log or subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent to handle
            )
        finally:
            if log is not None:
                log.close()

    @property
    def pids(self) -> list[int]:
        """Process ids by index."""
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Replace processes that ended, unless actor workers are being replaced just now.

        Raises:
            BrayError: a process ends again and again; the message has its last words.
            WorkerLostError, DeadlineError: no addresses for a minute.
        """
        codes = [process.poll() for process in self._processes]
        ended = [(index, code) for index, code in enumerate(codes) if code is not None]
        addresses = self._ask_again() if ended else []
        if not addresses:
            return
        for index, code in ended:
            self._count(index, code)
            logger.warning("gamecore %d ended with code %d: starting it again", index, code)
            metrics.record("gamecore/restarts", 1, kind="count")
            self._processes[index] = self._spawn(index, addresses)

    def _ask_again(self) -> Sequence[str]:
        """Return the addresses, or none while the actors' workers are being replaced."""
        try:
            addresses = self._ask_addresses()
        except (WorkerLostError, DeadlineError) as error:
            now = time.monotonic()
            if self._lost_since is None:
                self._lost_since = now
                logger.warning("gamecores wait for the actors: %s", error)
            if now - self._lost_since > _ADDRESS_TIMEOUT_S:
                raise
            return []
        self._lost_since = None
        return addresses

    def _count(self, index: int, code: int) -> None:
        """Count the end of a process; refuse to go on if that happens too often."""
        now = time.monotonic()
        ends = self._ends[index] = [*_LIMIT.recent(self._ends[index], now), now]
        if _LIMIT.is_exceeded(ends, now):
            raise BrayError(
                f"gamecore {index} ended more than {_LIMIT.max_restarts} times within "
                f"{_LIMIT.window_s:g} s, the last time with code {code}: {self._last_words()}"
            )

    def _last_words(self) -> str:
        if self._log is None or not self._log.is_file():
            return "no log was kept"
        return self._log.read_text(errors="replace").strip()[-500:] or "it said nothing"

    def stop(self) -> None:
        """End all processes, by force after two seconds; again is harmless."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
