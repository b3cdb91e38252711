"""A `bray` command that trains: its workers and figures, by the files of its trial."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_JOINED = re.compile(r"bray_core\.metrics\.hub: (\S+/\d+) (joined|left): process (\d+)$")
_LOOK_S = 0.1


class Training:
    """One launch of a trial, from its construction on; `kill` or `stop` ends it.

    Args:
        command: the arguments of `bray`, such as `["train", "appo", "CartPole-v1", …]`.
        project: folder of the trials.
        trial: name of the trial.
    """

    def __init__(self, command: Sequence[str], project: Path, trial: str) -> None:
        self.path = project / trial
        self._before = set(self._launches())
        log = self.path / "bray.log"
        self._log_read = log.stat().st_size if log.exists() else 0
        self._workers: dict[str, int] = {}
        self._rows_read = 0
        self.values: dict[str, float] = {}
        """Newest value of each metric."""
        self.returns: list[tuple[float, float]] = []
        """Time and mean return of each second in which episodes of training ended."""
        project.mkdir(parents=True, exist_ok=True)
        self.output = project / f"{trial}.txt"
        words = [sys.executable, "-m", "bray_core.cli", *command]
        words += ["--project", str(project), "--trial", trial]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _launches(self) -> list[Path]:
        return sorted((self.path / "launches").glob("*"))

    @property
    def pid(self) -> int:
        """The driver."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the driver lives."""
        return self.process.poll() is None

    @property
    def frames(self) -> int:
        """Played in this launch."""
        return int(self.values.get("actor/steps", 0))

    def workers(self) -> dict[str, int]:
        """Return component/rank → process, of those that joined and live, by the trial's log."""
        for line in self._new_lines():
            if match := _JOINED.search(line):
                name, event, pid = match[1], match[2], int(match[3])
                if event == "joined":
                    self._workers[name] = pid
                elif self._workers.get(name) == pid:
                    del self._workers[name]
        return dict(self._workers)

    def _new_lines(self) -> list[str]:
        try:
            with (self.path / "bray.log").open("rb") as log:
                log.seek(self._log_read)
                whole = log.read().rpartition(b"\n")[0]
        except FileNotFoundError:  # it has not come so far
            return []
        self._log_read += len(whole) + bool(whole)
        return whole.decode(errors="replace").splitlines()

    def look(self) -> dict[str, float]:
        """Read what has been written since; return `values`."""
        started = [launch for launch in self._launches() if launch not in self._before]
        if started and (rows := started[-1] / "metrics.jsonl").exists():
            with rows.open("rb") as file:
                file.seek(self._rows_read)
                whole = file.read().rpartition(b"\n")[0]
            self._rows_read += len(whole) + bool(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))
        return self.values

    def _take(self, row: dict[str, Any]) -> None:
        values = row["values"]
        self.values |= values
        for axis in ("policy_version", "steps"):
            self.values[axis] = row[axis]
        if "actor/episode_return" in values:
            self.returns.append((row["wall_time_s"], values["actor/episode_return"]))

    def wait_until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> float:
        """Wait until something holds after a look; return the seconds that took.

        Raises:
            TimeoutError: it does not within `timeout_s`, or the driver has ended; quotes its words.
        """
        started = time.monotonic()
        while True:
            self.look()
            self.workers()
            if holds():
                return time.monotonic() - started
            late = time.monotonic() > started + timeout_s
            if late or not self.is_running:
                why = f"not within {timeout_s:g} s" if late else f"exit {self.process.returncode}"
                raise TimeoutError(f"{what}: {why}\n{self.last_words()}")
            time.sleep(_LOOK_S)

    def wait_for_frames(self, more: int, timeout_s: float) -> float:
        """Wait until so many more frames have been played; return the seconds."""
        self.look()
        goal = self.frames + more
        return self.wait_until(lambda: self.frames >= goal, timeout_s, f"{more} more frames")

    def last_words(self, characters: int = 6000) -> str:
        """Return the ends of the driver's output and of the trial's log."""
        log = self.path / "bray.log"
        texts = [path.read_text(errors="replace") for path in (self.output, log) if path.exists()]
        return "\n…\n".join(text[-characters:] for text in texts)

    def stop(self, timeout_s: float = 60.0) -> int:
        """Interrupt it as Ctrl-C does; return its exit code."""
        if self.is_running:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"training: still there {timeout_s:g} s after Ctrl-C\n{self.last_words()}"
            ) from None

    def kill(self) -> None:
        """Kill the driver alone, with SIGKILL."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
