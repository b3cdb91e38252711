"""Runs one trial of a search in a process of its own, and answers what the process asks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bray.searching.study import Study
from bray_core.process.machine import environment_of_children
from bray_core.process.user_modules import module_command

OUTPUT = "output.log"
"""File of a trial's folder with what its process printed."""
_MAX_ERROR_CHARS = 2000


@dataclass(eq=False, slots=True)
class TrialRunner:
    """Trains a trial; made and run by one thread, ended by another."""

    study: Study
    """The study that is told."""
    number: int
    """Number of the trial."""
    folder: Path
    """Folder of the trial."""
    task: Mapping[str, Any]
    """What the process is told in its first line."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _is_ended: bool = field(default=False, init=False)

    def run(self) -> None:
        """Train until the trial ends, and tell the study; not if `end` was called."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        with ours, (self.folder / OUTPUT).open("ab") as output:
            with theirs:
                self._process = subprocess.Popen(
                    [*module_command("bray.searching.trial_process"), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is the search's, which ends its trials
                    env={"OMP_NUM_THREADS": "1", **environment_of_children()},
                )
            if self._is_ended:  # a moment ago
                self.end()
            last = self._talk(ours)
        code = self._process.wait()
        if self._is_ended and "value" not in last:
            return
        if "value" in last:
            self.study.tell(
                self.number, last["value"], int(last["frames"]), is_pruned=bool(last["pruned"])
            )
        else:
            words = last.get("error") or f"its process ended with code {code}: see {OUTPUT}"
            self.study.fail(self.number, words[:_MAX_ERROR_CHARS])

    def end(self) -> None:
        """Interrupt the trial, which saves a checkpoint; another thread may be in `run`."""
        self._is_ended = True
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the trial's process."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _talk(self, connection: socket.socket) -> dict[str, Any]:
        """Answer what the process asks; return its last line, empty if there was none."""
        try:
            with connection.makefile("rw") as file:
                file.write(json.dumps(dict(self.task)) + "\n")
                file.flush()
                for line in file:
                    content: dict[str, Any] = json.loads(line)
                    if "evaluation" not in content:
                        return content
                    value = float(content["value"])
                    prune = self.study.report(self.number, int(content["evaluation"]), value)
                    file.write(json.dumps({"prune": prune}) + "\n")
                    file.flush()
        except (BrokenPipeError, ConnectionResetError):  # the process has died
            pass
        return {}
