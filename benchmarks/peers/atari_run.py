"""What every Atari peer's script shares: the command line, the clock, the counts, the JSON line.

    python atari_<peer>.py --game pong --seconds 120 --seed 1 --json

A frame is one decision of the agent (four of the emulator's). The clock of `frames_per_s` starts
when the first update of the learner is done: `start_s` is what went before, from the process's
creation on, and `seconds` what came after. Each frame counts once, however often it is trained on;
`trained_per_s` counts every pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Run:
    """One training run of a peer, from its command line to its JSON line.

    Args:
        peer: The peer's name, as in its script's.
        version: Of the framework.
        algorithm: What it trains with, for example `PPO`.
        epochs: Passes over each sample in the peer's own recipe.
        can_repeat: Whether `--epochs` may be another number.
    """

    def __init__(
        self, peer: str, version: str, algorithm: str, epochs: int, can_repeat: bool = True
    ) -> None:
        parser = argparse.ArgumentParser(description=f"{peer}: {algorithm} on an ALE game")
        parser.add_argument("--game", default="pong", help="ALE's name, for example space_invaders")
        parser.add_argument("--seconds", type=float, default=120, help="after the first update")
        parser.add_argument("--frames", type=int, help="end after so many as well")
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--epochs", type=int, default=epochs, help=f"default: {epochs}")
        parser.add_argument("--json", action="store_true", help="the last line as JSON")
        options = parser.parse_args()
        if options.epochs != epochs and not can_repeat:
            parser.error(f"--epochs: {algorithm} here has {epochs}, got {options.epochs}")
        self.game: str = options.game
        self.seconds: float = options.seconds
        self.seed: int = options.seed
        self.epochs: int = options.epochs
        self._frame_limit = options.frames or sys.maxsize
        self._as_json = options.json
        self._head = {"peer": peer, "version": version, "algorithm": algorithm, "game": self.game}
        self._returns: deque[float] = deque(maxlen=100)
        self._first: tuple[float, int, int] | None = None
        self._last = (0.0, 0, 0)
        self._told = 0.0
        self.num_episodes = 0

    @property
    def game_class(self) -> str:
        """The game's name as Gymnasium and EnvPool write it: `SpaceInvaders`."""
        return "".join(part.capitalize() for part in self.game.split("_"))

    def episodes(self, returns: Iterable[float]) -> None:
        """Count whole games with their true scores: neither clipped nor cut at a lost life."""
        for score in returns:
            self._returns.append(float(score))
            self.num_episodes += 1

    def updated(self, frames: int, trained: int) -> bool:
        """Note that an update is done; return whether the run is over.

        Args:
            frames: Decisions taken since the process began.
            trained: Samples that the learner has worked through, every pass counted.
        """
        now = time.perf_counter()
        self._last = (now, frames, trained)
        if self._first is None:
            self._first = self._last
            self.start_s = age_s()
        took = now - self._first[0]
        if now - self._told > 10:
            self._told = now
            rate = (frames - self._first[1]) / took if took else 0
            print(f"{took:6.0f} s {frames:,} frames {rate:,.0f}/s {self._mean()}", file=sys.stderr)
        return took >= self.seconds or frames >= self._frame_limit

    def _mean(self) -> float | None:
        return round(sum(self._returns) / len(self._returns), 2) if self._returns else None

    def finish(self, **settings: Any) -> None:
        """Print the figures; call it before workers are closed, for their memory."""
        if self._first is None:
            raise SystemExit("no update was made")
        seconds, frames, trained = (
            last - first for last, first in zip(self._last, self._first, strict=True)
        )
        figures = {
            **self._head,
            "seed": self.seed,
            "frames": self._last[1],
            "seconds": round(seconds, 2),
            "frames_per_s": round(frames / seconds, 1) if seconds else None,
            "trained_per_s": round(trained / seconds, 1) if seconds else None,
            "start_s": round(self.start_s, 2),
            "memory_mb": round(memory_mb()),
            "mean_return": self._mean(),
            "episodes": self.num_episodes,
            "epochs": self.epochs,
            "settings": settings,
        }
        text = json.dumps(figures)
        if not self._as_json:
            text = "\n".join(f"{name:14}{value}" for name, value in figures.items())
        print(text, flush=True)


def age_s() -> float:
    """Return the seconds since this process was created, its imports counted."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - ticks / os.sysconf("SC_CLK_TCK")


def process_tree() -> list[int]:
    """Return this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:  # ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [os.getpid()]
    for process in tree:
        tree.extend(children.get(process, []))
    return tree


def memory_mb() -> float:
    """Return the memory of the process tree: a page that several share is counted once (PSS)."""
    kilobytes = 0
    for process in process_tree():
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            continue
        kilobytes += sum(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")
        )
    return kilobytes / 1024
