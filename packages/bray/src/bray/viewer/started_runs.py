"""Runs that the page started (`bray train`, `serve`, `watch`); they end with the viewer."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

from bray_core.errors import AlreadyExistsError, ClosedError, NotFoundError

_SHOWN_LINES = 200
_MAX_LINE = 2000
_MOST_SEED = 100_000
_END_S = 8.0
"""Time that `bray train` gets to end by itself; after it the process is killed."""


class StartedRuns:
    """The runs of one project, at most one for each trial. Thread-safe.

    Args:
        folder: folder of the YAML files, and working directory of the runs.
        project: folder of the trials.
    """

    def __init__(self, folder: Path, project: Path) -> None:
        self._folder = folder
        self._project = project
        self._lock = threading.Lock()
        self._runs: dict[str, _StartedRun] = {}
        self._is_closed = False

    def start(self, file: str) -> None:
        """Start `bray train FILE`; the trial has the file's name.

        Raises:
            AlreadyExistsError: the trial's run that was started before still runs.
            ClosedError: the viewer ends.
        """
        trial = Path(file).stem
        command = ["train", file, "--project", str(self._project), "--trial", trial]
        self._start(trial, file, command, is_server=False)

    def serve(self, file: str) -> None:
        """Start `bray serve TRIAL` on free ports of this machine; the trial has the file's name.

        Raises:
            NotFoundError: there is no such trial.
            AlreadyExistsError: it is served from here already.
            ClosedError: the viewer ends.
        """
        trial = Path(file).stem
        if not (self._project / trial).is_dir():
            raise NotFoundError(f"trial: no {trial} yet: start it first")
        command = ["serve", "--tcp-port", "0", "--http-port", "0", str(self._project / trial)]
        self._start(f"serve {trial}", file, command, is_server=True)

    def watch(self, trial: Path) -> None:
        """Start `bray watch TRIAL`: an episode of a seed of its own, which the trial keeps.

        Raises:
            AlreadyExistsError: one of the same trial is being played.
            ClosedError: the viewer ends.
        """
        video, seed = str(trial / "watch.gif"), str(secrets.randbelow(_MOST_SEED))
        command = ["watch", str(trial), "--save", video, "--seed", seed]  # no window on a screen
        self._start(f"watch {trial.name}", "", command, is_server=False)

    def _start(self, name: str, file: str, command: list[str], *, is_server: bool) -> None:
        command = [sys.executable, "-m", "bray_core.cli", *command]
        with self._lock:
            if self._is_closed:
                raise ClosedError("runs: the viewer ends")
            before = self._runs.get(name)
            if before is not None and before.is_alive:
                raise AlreadyExistsError(f"trial {name}: was started here already: stop it first")
            self._runs[name] = _StartedRun(file, command, self._folder, is_server=is_server)

    def stop(self, trial: str) -> None:
        """End a run as Ctrl-C does: it saves a checkpoint, from which the next start goes on.

        Raises:
            NotFoundError: no run of that trial was started here.
        """
        with self._lock:
            run = self._runs.get(trial)
        if run is None:
            raise NotFoundError(f"trial: no run of {trial[:100]!r} was started here")
        run.stop()

    def listing(self) -> list[dict[str, object]]:
        """Return the state and last lines of output of each run, the newest last."""
        with self._lock:
            runs = sorted(self._runs.items(), key=lambda item: item[1].began_s)
        return [{"trial": trial, **run.describe()} for trial, run in runs]

    def close(self) -> None:
        """Stop all runs and wait for their end; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            runs = list(self._runs.values())
        for run in runs:
            run.stop()
        deadline = time.monotonic() + _END_S
        for run in runs:
            run.wait(deadline - time.monotonic())


class _StartedRun:
    def __init__(self, file: str, command: list[str], folder: Path, *, is_server: bool) -> None:
        self._file = file
        self._is_server = is_server
        self.began_s = time.time()
        self._lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._is_stopping = False
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # else Ctrl-C would reach the run twice
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"output of {file}", daemon=True
        )
        self._reader.start()

    def _read(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(_MAX_LINE):
                self._lines.append(line.decode(errors="replace").rstrip())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end with SIGTERM, as `bray` may have been started with SIGINT ignored."""
        if self.is_alive and not self._is_stopping:
            self._is_stopping = True
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end, and kill it when the time is over."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, timeout_s))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the processes that it may have left
        self._process.wait()
        self._reader.join()

    def describe(self) -> dict[str, object]:
        code = self._process.poll()
        state = "ended" if code is not None else "stopping" if self._is_stopping else "running"
        return {
            "file": self._file,
            "is_server": self._is_server,
            "state": state,
            "code": code,
            "began_s": self.began_s,
            "lines": list(self._lines),
        }
