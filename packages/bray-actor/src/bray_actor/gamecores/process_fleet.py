"""Processes of one machine that call actors: started, watched, replaced, stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bray_core import metrics
from bray_core.errors import BrayError, ConfigError, DeadlineError, WorkerLostError
from bray_core.remote.restart_limit import RestartLimit

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 2.0
_LIMIT = RestartLimit(max_restarts=10, window_s=60.0)
_ADDRESS_TIMEOUT_S = 60.0
"""Actor workers that were lost are back by then, or will not come."""
_MAX_LOG_BYTES = 16 * 1024**2
"""Size of a log from which it begins anew, where what is written is not bray's."""


class ProcessFleet:
    """Processes that call actors, each in a process group of its own, which ends with it.

    Process i calls the address i modulo their number.

    Args:
        command: Function that returns the words of a process's command, from its number and the
            address of its actors.
        addresses: Addresses of the actors; a function is asked again before each restart.
        num_processes: Number of processes.
        log: Function that returns the file that takes what a process writes; None keeps nothing.
        takes_output: Whether the file takes standard output, too, and is kept from growing.
    """

    def __init__(
        self,
        command: Callable[[int, str], Sequence[str]],
        addresses: Sequence[str] | Callable[[], Sequence[str]],
        *,
        num_processes: int,
        log: Callable[[int], Path] | None,
        takes_output: bool = False,
    ) -> None:
        if num_processes < 1:
            raise ConfigError(f"num_processes: expected 1 or more, got {num_processes}")
        self._command = command
        self._addresses = addresses
        self._num_processes = num_processes
        self._log = log
        self._takes_output = takes_output
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
        command = self._command(index, addresses[index % len(addresses)])
        log = self._open_log(index)
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells `process_guard` that this process is gone
                stdout=(log if self._takes_output else None) or subprocess.DEVNULL,
                stderr=log or subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the parent to handle
            )
        finally:
            if log is not None:
                log.close()

    def _open_log(self, index: int) -> IO[bytes] | None:
        if self._log is None:
            return None
        path = self._log(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")

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
        self._shorten_logs()
        codes = [process.poll() for process in self._processes]
        ended = [(index, code) for index, code in enumerate(codes) if code is not None]
        addresses = self._ask_again() if ended else []
        if not addresses:
            return
        for index, code in ended:
            _signal(self._processes[index], signal.SIGKILL)  # what it has left behind
            _close(self._processes[index])
            self._count(index, code)
            logger.warning("gamecore %d ended with code %d: starting it again", index, code)
            metrics.record("gamecore/restarts", 1, kind="count")
            self._processes[index] = self._spawn(index, addresses)

    def _shorten_logs(self) -> None:
        if self._log is None or not self._takes_output:
            return
        for path in map(self._log, range(len(self._processes))):
            if path.is_file() and path.stat().st_size > _MAX_LOG_BYTES:
                os.truncate(path, 0)  # it is written to its end, wherever that is

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
                f"{_LIMIT.window_s:g} s, the last time with code {code}: {self.last_words(index)}"
            )

    def last_words(self, index: int) -> str:
        """Return the end of what a process wrote."""
        path = None if self._log is None else self._log(index)
        if path is None or not path.is_file():
            return "no log was kept"
        return path.read_text(errors="replace").strip()[-500:] or "it said nothing"

    def stop(self) -> None:
        """End all processes, by force after two seconds; again is harmless."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)
            process.wait()
            _close(process)
        self._processes = []


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all processes of a group, if there are any left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
