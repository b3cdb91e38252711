"""Serving processes below one that watches over them."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from bray_core.errors import WorkerLostError
from bray_core.remote.restart_limit import RestartLimit

logger = logging.getLogger(__name__)

_MAIN = "import sys; from bray_core.entry import main; sys.exit(main())"
_START_S = 60.0
_LOOK_S = 0.2
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_WINDOW = RestartLimit()


class ServingProcesses:
    """Runs `bray ARGUMENTS` in several processes and starts anew those that die.

    One that dies again and again is started later each time, up to half a minute: the others go on
    answering, and its fault fills neither the log nor the processors.

    Args:
        arguments: Arguments of the command, which calls `say_ready`.
        num_workers: Number of processes.

    Raises:
        WorkerLostError: one ended before it was ready; it has said why on standard error.
    """

    def __init__(self, arguments: Sequence[str], num_workers: int) -> None:
        self._command = [sys.executable, "-c", _MAIN, *arguments]
        self._stopped = threading.Event()
        self._deaths: list[list[float]] = [[] for _ in range(num_workers)]
        """Times of each worker's recent deaths."""
        self._due: dict[int, float] = {}
        """Times at which dead workers are started anew, by index."""
        self.addresses: list[str]
        """Where clients reach them, all on the same ports."""
        self._processes = [self._spawn()]  # alone: what is wrong is then said once
        try:
            self.addresses = _await_ready(self._processes[0])
            self._processes += [self._spawn() for _ in range(num_workers - 1)]
            for process in self._processes[1:]:
                _await_ready(process)
        except BaseException:
            self._end(0.0)
            raise
        self._thread = threading.Thread(target=self._watch, name="bray-workers", daemon=True)
        self._thread.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C in a terminal reaches this process alone, which drains.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            for index, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._replace(index, process, time.monotonic())

    def _replace(self, index: int, process: subprocess.Popen[bytes], now: float) -> None:
        """Start another in place of a worker that ended, once its pause is over."""
        if index not in self._due:
            self._deaths[index] = [*_WINDOW.recent(self._deaths[index], now), now]
            pause = pause_s(len(self._deaths[index]))
            self._due[index] = now + pause
            logger.warning(
                "worker %d ended with %d: starting another in %g s",
                index,
                process.returncode,
                pause,
            )
            _close(process)
        elif now >= self._due[index]:
            del self._due[index]
            self._processes[index] = self._spawn()

    def close(self, drain_s: float) -> None:
        """Let the workers drain, and end those that do not."""
        self._stopped.set()
        self._thread.join()
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        self._end(drain_s)

    def _end(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)


def pause_s(num_deaths: int) -> float:
    """Return how long a worker is left dead that died so often lately, in seconds."""
    return min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(num_deaths - 1, 10))


def _await_ready(process: subprocess.Popen[bytes]) -> list[str]:
    stdout = _stdout(process)
    ready, _, _ = select.select([stdout], [], [], _START_S)
    line = stdout.readline() if ready else b""
    if not line:
        how = "ended before it listened" if ready else f"did not listen within {_START_S:g} s"
        raise WorkerLostError(f"worker process {process.pid} {how}: see what it said above")
    return line.decode().split()


def _close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    _stdout(process).close()


def _stdout(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def say_ready(addresses: Sequence[str]) -> None:
    """Tell the process above a worker that it listens; drain and end when that is gone."""
    sys.stdout.write(" ".join(addresses) + "\n")
    sys.stdout.flush()

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="bray-parent", daemon=True).start()
