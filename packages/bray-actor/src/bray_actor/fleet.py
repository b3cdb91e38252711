"""Gamecore processes of one machine: started, watched, replaced, stopped."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from bray_core import metrics
from bray_core.errors import BrayError, ConfigError

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 2.0
_MAX_RESTARTS = 10
_RESTART_WINDOW_S = 60.0
"""More than `_MAX_RESTARTS` in so many seconds is a fault that restarting does not mend."""


class GamecoreFleet:
    """Processes that each play `envs_per_process` environments of one kind.

    Process i plays the lanes from i × envs_per_process on, at address i modulo their number.

    Args:
        environment: a Gymnasium id.
        addresses: of the actors; a function is asked again before each restart.
        num_processes: how many.
        envs_per_process: environments in each.
        seed: of the environments.
        log: file that takes what the processes write to standard error.
    """

    def __init__(
        self,
        environment: str,
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
        self._environment = environment
        self._addresses = addresses
        self._num_processes = num_processes
        self._envs_per_process = envs_per_process
        self._seed = seed
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._restarts: deque[float] = deque()

    def start(self) -> None:
        """Start all processes."""
        if self._processes:
            raise ConfigError("start: the gamecores are running already")
        addresses = self._ask_addresses()
        self._processes = [self._spawn(index, addresses) for index in range(self._num_processes)]

    def _ask_addresses(self) -> Sequence[str]:
        return self._addresses() if callable(self._addresses) else self._addresses

    def _spawn(self, index: int, addresses: Sequence[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bray_actor.gamecore", "--env", self._environment]
        command += ["--address", addresses[index % len(addresses)]]
        command += ["--num-envs", str(self._envs_per_process), "--seed", str(self._seed)]
        command += ["--lane-offset", str(index * self._envs_per_process)]
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
        """Replace processes that ended.

        Raises:
            BrayError: they end again and again; carries the last words in the log.
        """
        for index, process in enumerate(self._processes):
            code = process.poll()
            if code is None:
                continue
            now = time.monotonic()
            self._restarts.append(now)
            while self._restarts[0] < now - _RESTART_WINDOW_S:
                self._restarts.popleft()
            if len(self._restarts) > _MAX_RESTARTS:
                raise BrayError(
                    f"gamecores: more than {_MAX_RESTARTS} ended within {_RESTART_WINDOW_S:g} s, "
                    f"the last with code {code}: {self._last_words()}"
                )
            logger.warning("gamecore %d ended with code %d: starting it again", index, code)
            metrics.record("gamecore/restarts", 1, kind="count")
            self._processes[index] = self._spawn(index, self._ask_addresses())

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
