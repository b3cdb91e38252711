"""A training whose workers are killed at random: does it go on, learn, leak, count its losses?

    python -m benchmarks.soak.chaos                                # APPO on CartPole, 20 minutes
    uv run python -m benchmarks.soak.chaos --minutes 3 --every 10 15 --seed 2
    uv run python -m benchmarks.soak.chaos -- train atari source.environment=ALE/Pong-v5

What follows `--` is the command of `bray` without its project, trial and runtime. It runs on Ray,
in processes of its own; its workers are found by the lines `… joined: process …` of the trial's
`bray.log`. Every N to M seconds one of them, of a kind drawn first (seeded), gets SIGKILL, or
several of different kinds do (`--at-once`). Every two seconds what all its processes hold is looked
at, and written to the folder given by `--output` with all that was killed. At the end one line of
JSON, then a verdict for each promise:

- went on: after each kill the trainer trains again, and the worker is back, within `--within` s;
- return rose: the mean of the last quarter beside that of the first;
- nothing leaks: processes, zombies, listening ports, segments in /dev/shm, and open files of the
  driver and of the workers that lived throughout, after the last kill beside before the first
  (Ray's own servers are shown apart: its log monitor keeps up to 200 files of dead workers open);
- every loss is counted: `worker/restarts` (on Ray), `gamecore/restarts` (also of those whose actor
  died), `actor/rollouts_lost` and `trainer/restarts` beside the kills;
- nothing is left behind after Ctrl-C.

The exit code is 0 where all hold.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness import Report, argument, main
from benchmarks.soak.watched import Held, Machine, Training
from benchmarks.soak.watched.machine import command

LOOK_S = 2.0
WINDOW_S = 1.5
"""After it, nothing comes that was counted before a kill."""
CONNECTING = 3
"""Descriptors that a process may have more for a moment: connections that are being made."""
START_S = 180.0
SETTLE_S = 20.0
TRAINERS = ("trainer", "ppo")
"""Names of their pools."""
DEFAULT = ["train", "appo", "CartPole-v1", "num_workers=2", "--goal", "1e9"]
FOR_EVER = ["--frames", "1000000000"]


@dataclass
class Kill:
    """One, and what came after it."""

    at_s: float
    name: str
    pid: int
    trained: tuple[float, ...]
    """What the trainer has done, by the last words from before."""
    went_on_s: float | None = None
    """Until something was trained on again."""
    back_s: float | None = None
    """Until a worker of the same name joined."""


@dataclass
class Chaos:
    """Kills and looks."""

    training: Training
    machine: Machine
    random: random.Random
    rows: Path
    kills: list[Kill] = field(default_factory=list)
    helds: list[tuple[float, Held]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.started

    def look(self) -> None:
        """Note what is held and played."""
        self.training.look()
        held = self.machine.look()
        self.helds.append((self.now(), held))
        returns = self.training.returns
        row = {"at_s": round(self.now(), 1), "frames": self.training.frames, **held.counts()}
        row["return"] = returns[-1][1] if returns else None
        with self.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def wait(self, seconds: float) -> None:
        """Look for so long, and see what comes after the kills."""
        end = self.now() + seconds
        while self.training.is_running and self.now() < end:
            next_look = self.now() + LOOK_S
            self.look()
            while self.now() < min(next_look, end):
                time.sleep(0.1)
                self._follow()

    def _follow(self) -> None:
        self.training.look()
        workers = self.training.workers()
        for kill in self.kills:
            since = self.now() - kill.at_s
            if since < WINDOW_S:
                kill.trained = self._trained()
            elif kill.went_on_s is None and self._trained() != kill.trained:
                kill.went_on_s = since
            if kill.back_s is None and workers.get(kill.name, kill.pid) != kill.pid:
                kill.back_s = since

    def _trained(self) -> tuple[float, ...]:
        values = self.training.values
        return values.get("trainer/frames", 0.0), values.get("trainer/steps", 0.0)

    def kill(self, kinds: list[str] | None, at_once: int) -> None:
        """Kill workers of so many random kinds, of those that are up."""
        workers = self.training.workers()
        by_kind: dict[str, list[str]] = {}
        for name in sorted(workers):
            by_kind.setdefault(name.rpartition("/")[0], []).append(name)
        allowed = [kind for kind in by_kind if kinds is None or kind in kinds]
        self.training.look()
        for kind in self.random.sample(allowed, min(at_once, len(allowed))):
            name = self.random.choice(by_kind[kind])
            with contextlib.suppress(ProcessLookupError):  # it ended of its own accord just now
                os.kill(workers[name], signal.SIGKILL)
                self.kills.append(Kill(self.now(), name, workers[name], self._trained()))
                words = f"{self.now():7.1f} s  kill -9 {workers[name]} {name}"
                print(words, file=sys.stderr, flush=True)


def run(chaos: Chaos, options: Namespace) -> None:
    """Kill for so long, then let it settle."""
    chaos.wait(SETTLE_S)
    end = chaos.now() + 60 * options.minutes
    while chaos.training.is_running and chaos.now() < end:
        chaos.kill(options.kinds, options.at_once)
        chaos.wait(chaos.random.uniform(*options.every))
    chaos.wait(SETTLE_S)


def went_on(chaos: Chaos, within_s: float) -> tuple[bool, str]:
    """Judge whether frames were played and the worker was back after each kill."""
    if not chaos.training.is_running:
        return False, f"the driver ended with {chaos.training.process.returncode}"
    late = [
        f"{kill.name} at {kill.at_s:.0f} s ({part} {'never' if took is None else f'{took:.1f} s'})"
        for kill in chaos.kills
        for part, took in (("frames", kill.went_on_s), ("back", kill.back_s))
        if took is None or took > within_s
    ]
    frames = max((kill.went_on_s or 0.0 for kill in chaos.kills), default=0.0)
    back = max((kill.back_s or 0.0 for kill in chaos.kills), default=0.0)
    words = f"{len(chaos.kills)} kills; frames within {frames:.1f} s, worker back in {back:.1f} s"
    return not late and bool(chaos.kills), "; ".join([words, *late])


def return_rose(chaos: Chaos) -> tuple[bool, str]:
    """Compare the last quarter's mean return with the first's."""
    returns = [value for _, value in chaos.training.returns]
    quarter = len(returns) // 4
    if not quarter:
        return False, "too few episodes ended"
    first, last = statistics.fmean(returns[:quarter]), statistics.fmean(returns[-quarter:])
    return last > first, f"{first:.2f} → {last:.2f}"


def nothing_leaks(chaos: Chaos) -> tuple[bool, str]:
    """Compare what is held at the end with what was held before the first kill."""
    first_kill = chaos.kills[0].at_s if chaos.kills else SETTLE_S
    before = [held for at, held in chaos.helds if at < first_kill]
    after = [held for at, held in chaos.helds[-4:]]
    words, leaks = [], []
    for what in ("processes", "zombies", "ports", "segments", "segment_bytes"):
        was = max(getattr(held, what) for held in before)
        now = min(getattr(held, what) for held in after)
        words.append(f"{what} {was} → {now}")
        if now > was:
            leaks.append(what)
    kept = set(before[-1].descriptors) & set(after[-1].descriptors)
    rays = 0
    for pid in sorted(kept):
        was = max(held.descriptors.get(pid, 0) for held in before)
        now = min(held.descriptors.get(pid, 0) for held in after)
        if pid == chaos.machine.driver:
            words.append(f"driver's files {was} → {now}")
        if _is_rays(pid):
            rays += now - was
        elif now > was + CONNECTING:
            leaks.append(f"files of {pid} {command(pid)} {was} → {now}")
    rss = [held.driver_rss_bytes / 2**20 for held in (before[-1], after[-1])]
    total = [held.rss_bytes / 2**20 for held in (before[-1], after[-1])]
    words.append(f"files of Ray's own processes {rays:+}")
    words.append(f"RSS of the driver {rss[0]:.0f} → {rss[1]:.0f} MB")
    words.append(f"of all {total[0]:.0f} → {total[1]:.0f} MB")
    return not leaks, ", ".join(words) + (f"; MORE: {', '.join(leaks)}" if leaks else "")


def _is_rays(pid: int) -> bool:
    """Whether it is a server of Ray: its log monitor keeps 200 files of dead workers open."""
    return "/site-packages/ray/" in command(pid)


def losses_counted(chaos: Chaos) -> tuple[bool, str]:
    """Compare the counts of restarts with the kills."""
    values = chaos.training.look()
    kinds = [kill.name.rpartition("/")[0] for kill in chaos.kills]
    gamecores = kinds.count("gamecore")
    exact = {
        "worker/restarts": len(kinds) - gamecores,
        "actor/rollouts_lost": kinds.count("rollouts"),
        "trainer/restarts": sum(kind in TRAINERS for kind in kinds),
    }
    counted = {name: int(values.get(name, 0)) for name in (*exact, "gamecore/restarts")}
    words = [f"{name} {counted[name]} of {exact[name]}" for name in exact if exact[name]]
    words += [f"gamecore/restarts {counted['gamecore/restarts']} of {gamecores} or more"]
    good = all(counted[name] == wanted for name, wanted in exact.items())
    good = good and counted["gamecore/restarts"] >= gamecores
    lost = {n: int(v) for n, v in values.items() if n.endswith(("_lost", "lost_segments"))}
    return good, ", ".join(words) + f"; also {lost}"


def nothing_left(chaos: Chaos) -> tuple[bool, str]:
    """Interrupt the training and look for what stays."""
    code = chaos.training.stop()
    left = chaos.machine.end()
    segments = chaos.machine.look().segments
    return not left and not segments, f"exit {code}, {left or 'no'} processes, {segments} segments"


def benchmark(options: Namespace, report: Report) -> int:
    """Run, print the verdicts, return the exit code."""
    output = options.output or Path(tempfile.mkdtemp(prefix="chaos-"))
    words = [*(options.command or DEFAULT), "--runtime", "ray", "--seed", str(options.seed)]
    if words[0] == "train" and FOR_EVER[0] not in words:
        words += FOR_EVER
    print(f"in {output}: bray {' '.join(words)}", file=sys.stderr, flush=True)
    training = Training(words, output, "trial")
    machine = Machine(training.pid)
    try:
        training.wait_for_frames(1, START_S)
        chaos = Chaos(training, machine, random.Random(options.seed), output / "rows.jsonl")
        run(chaos, options)
        verdicts = {
            "went on": went_on(chaos, options.within),
            "return rose": return_rose(chaos),
            "nothing leaks": nothing_leaks(chaos),
            "losses counted": losses_counted(chaos),
            "nothing left": nothing_left(chaos),
        }
    finally:
        machine.processes()
        training.kill()
        machine.end()
    lines = [json.dumps(asdict(kill)) + "\n" for kill in chaos.kills]
    (output / "kills.jsonl").write_text("".join(lines))
    figures = {
        "minutes": options.minutes,
        "seed": options.seed,
        "kills": len(chaos.kills),
        "frames": training.frames,
        "verdicts": {name: good for name, (good, _) in verdicts.items()},
    }
    print(json.dumps(figures))
    for name, (good, words) in verdicts.items():
        print(f"{'yes' if good else 'NO ':3}  {name}: {words}")
    return 0 if all(good for good, _ in verdicts.values()) else 1


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--minutes", type=float, default=20.0),
        argument("--every", type=float, nargs=2, default=(20.0, 40.0), help="s, from to"),
        argument("--at-once", type=int, default=1, help="workers killed together"),
        argument("--within", type=float, default=20.0, help="s, for frames and the worker"),
        argument("--kinds", nargs="*", help="of workers, such as rollouts; by default all"),
        argument("--seed", type=int, default=1),
        argument("--output", type=Path, help="folder of trial, rows and kills"),
        argument("command", nargs="*", help="after --: of bray"),
    )
