"""`bray top`: a running trial in the terminal, with keys that ask it for something."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bray_core.command import Command
from bray_core.errors import BrayError, ConfigError, NotFoundError
from bray_core.files.trial_folders import PROJECT

if TYPE_CHECKING:
    from bray_core.trials.trial import Trial

_KEYS = "e evaluate   c checkpoint   s stop the run   q quit"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Another screen without a cursor, so that what was there is there again in the end."""


def _add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trial",
        nargs="?",
        type=Path,
        help="folder of the trial, or its name; by default the newest that runs",
    )
    parser.add_argument("--project", type=Path, default=PROJECT, help="folder of the trials")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--once", action="store_true", help="look once, and end")
    parser.add_argument("--json", action="store_true", help="print a line of JSON at each look")


def _top(options: argparse.Namespace) -> int:
    if not options.every > 0:
        raise ConfigError(f"--every: expected more than 0, got {options.every:g}")
    trial = _chosen(options)
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if options.json or options.once or not is_terminal:
        return _print(options, trial)
    return _Screen(trial, options.every).run()


def _chosen(options: argparse.Namespace) -> Trial:
    """Return the trial that is named, or the one whose launch began last of those that run.

    Raises:
        NotFoundError: there is no such trial, or none runs.
    """
    from bray_core.trials.trial import Trial, trials
    from bray_core.trials.trial_lock import is_running

    if options.trial is not None:
        is_folder = (options.trial / "launches").is_dir()
        return Trial(options.trial if is_folder else options.project / options.trial)
    running = [trial for trial in trials(options.project) if is_running(trial.path)]
    if not running:
        raise NotFoundError(f"trial: none runs in {options.project}: name one, or --project")
    return max(running, key=lambda trial: max((trial.path / "launches").iterdir()).name)


def _print(options: argparse.Namespace, trial: Trial) -> int:
    """Print the board again and again until the run ends, for files and pipes."""
    import json

    from bray.cli.trial_board import TrialBoard
    from bray_core.cli import check_interrupted

    while True:
        board = TrialBoard.read(trial)
        text = json.dumps(asdict(board)) if options.json else "\n".join(board.lines())
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        if options.once or board.state != "running":
            return 0
        time.sleep(options.every)
        check_interrupted()


class _Screen:
    """The board in a terminal, drawn anew in place."""

    def __init__(self, trial: Trial, every_s: float) -> None:
        self._trial = trial
        self._every_s = every_s
        self._said = ""
        self._is_over = False

    def run(self) -> int:
        """Show it until a key or the end of the run; the terminal is left as it was."""
        from bray.cli.trial_board import TrialBoard

        with _raw_keys():
            while not self._is_over:
                board = TrialBoard.read(self._trial)
                self._draw([*board.lines(), "", self._said or _KEYS])
                if board.state != "running":
                    break
                self._wait()
        sys.stdout.write("\n".join(TrialBoard.read(self._trial).lines()) + "\n")
        return 0

    def _draw(self, lines: list[str]) -> None:
        size = shutil.get_terminal_size()  # 80 × 24 where it is not known
        shown = [line[: max(1, size.columns - 1)] for line in lines[: max(1, size.lines - 1)]]
        body = "".join(f"{line}{_CLEAR_LINE}\r\n" for line in shown)
        sys.stdout.write(f"{_HOME}{body}{_CLEAR_BELOW}")
        sys.stdout.flush()

    def _wait(self) -> None:
        """Wait for the next look, or for a key."""
        from bray_core.cli import check_interrupted

        check_interrupted()
        ready, _, _ = select.select([sys.stdin], [], [], self._every_s)
        if ready:
            self._heed(os.read(sys.stdin.fileno(), 1).decode(errors="replace"))

    def _heed(self, key: str) -> None:
        from bray_core.trials.trial_requests import ask, stop

        try:
            if key == "e":
                ask(self._trial.path, "evaluate")
                self._said = "asked for an evaluation, after this turn"
            elif key == "c":
                ask(self._trial.path, "checkpoint")
                self._said = "asked for a checkpoint, after this turn; on Ray its rule decides"
            elif key == "s":
                stop(self._trial)
                self._said = "asked it to stop: it saves a checkpoint first"
            else:
                self._is_over = key in ("q", "", "\x04")
                self._said = ""
        except (BrayError, OSError) as error:
            self._said = str(error)


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Let keys come one by one, unseen, on a screen of its own; Ctrl-C still interrupts."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


top = Command("top", "watch a running trial in the terminal", _add_top, _top)
