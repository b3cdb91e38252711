"""A project for the viewer's tests, written by bray's own parts where they can write it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bray_actor import Actor, Recorder
from bray_algo.league.payoff import PayoffTable
from bray_core import codec
from bray_core.trials.experiment import Experiment
from bray_core.trials.launch_record import Ending, LaunchRecord
from bray_model.versions.retention import Retention
from bray_model.versions.version_store import VersionStore

HOSTILE = "<img src=x onerror=alert(1)>"
"""A folder may be named so: whoever shows it must not run it."""
BEGAN_S = 1_790_000_000.0


def make(project: Path) -> Experiment:
    """Write seven trials; return the one that runs, `live`, to be closed.

    `league` and `pixels` hold what they are named for, `ppo-1` episodes and versions, `ppo-2` a
    log.
    """
    for seed, name in enumerate(("ppo-1", "ppo-2", "ppo-3", HOSTILE)):
        trial(project, name, rows=400, seed=seed)
    (project / "ppo-1" / "result.json").write_text('{"reached": true, "evaluation_return": 481.5}')
    write_record(project / "ppo-1" / "launches" / "20261121-120000", "finished")
    trial(project, "league", rows=50, seed=9)
    league(project / "league", players=14)
    write_log(project / "ppo-2", 2000)
    for version in range(30):
        store = VersionStore(project / "ppo-1" / "models" / "policy" / "versions", Retention())
        store.save(version, {"weight": np.zeros((64, 64), np.float32)})
    record(project / "ppo-1", episodes=60, pixels=False)
    record(project / "pixels", episodes=2, pixels=True)
    (project / "pixels" / "launches").mkdir()
    live = Experiment.open(project, "live", {"buffer": {"capacity": 64}, "seed": 1})
    append(live.launch, rows=60, seed=5, began_s=time.time() - 120)
    return live


def trial(project: Path, name: str, *, rows: int, seed: int, began_s: float = BEGAN_S) -> Path:
    """Write a trial's folder with metrics."""
    launch = project / name / "launches" / "20261121-120000"
    launch.mkdir(parents=True)
    (project / name / "config.yaml").write_text("buffer:\n  capacity: 64\nseed: 1\n")
    append(launch, rows=rows, seed=seed, began_s=began_s)
    return project / name


def write_record(launch: Path, ending: Ending | None) -> None:
    """Write the record of a launch of ours that ended so."""
    record = replace(LaunchRecord.begin(launch, 1), commit="abc", ending=ending)
    (launch / "launch.json").write_bytes(record.to_json())


def append(launch: Path, *, rows: int, seed: int, began_s: float = BEGAN_S, first: int = 0) -> None:
    """Write lines of metrics, one every two seconds."""
    noise = np.random.default_rng(seed)
    with (launch / "metrics.jsonl").open("a") as file:
        for row in range(first, first + rows):
            file.write(json.dumps(line(row, noise, seed, began_s)) + "\n")


def line(row: int, noise: np.random.Generator, seed: int, began_s: float) -> dict[str, Any]:
    """Return a line of metrics of a run that learns; the others of the run follow it."""
    frames = 1024 * (row + 1)
    learned = 1 - math.exp(-row / (60 + 20 * seed))
    values = {
        "actor/episode_return": 20 + 460 * learned + noise.normal(0, 25 * learned + 5),
        "actor/episode_length": 20 + 460 * learned,
        "actor/episodes": 10.0 * row,
        "actor/steps": float(frames),
        "buffer/queued_segments": float(noise.integers(0, 9)),
        "buffer/dropped_segments": 0.0,
        "model/batch_rows": 15.5,
        "model/forward_s": 0.0009,
        "trainer/frames": float(frames),
        "trainer/loss": 4 * math.exp(-row / 80) + 0.02 * noise.random(),
        "trainer/entropy": 0.69 * math.exp(-row / 300),
        "trainer/train_s": 0.21,
        "trainer/wait_s": 0.64,
        "trainer/steps": 40.0 * row,
        "trainer/policy_version": float(row),
        "trainer/policy_lag_versions": 1.0 + 0.3 * noise.random(),
        "trainer/reuse": 1.0,
    }
    axes = {"frames": frames, "steps": 40 * row, "policy_version": row, "seconds": 2.0 * row}
    return {**axes, "wall_time_s": began_s + 2.0 * row, "values": values}


def league(folder: Path, players: int) -> None:
    """Write a league of players of rising strength, as `VersionPool` does."""
    table, rng = PayoffTable([f"v{10 * i}" for i in range(players)]), np.random.default_rng(3)
    for i in range(players):
        for j in range(i):
            for _ in range(8 if (i + j) % 5 else 0):
                won = rng.random() < 1 / (1 + math.exp((j - i) / 3))
                table.record(f"v{10 * i}", f"v{10 * j}", float(won))
    state = {"versions": {}, "payoff": table.state(), "notes": {}}
    (folder / "league.json").write_text(json.dumps(state))


def write_log(folder: Path, lines: int) -> None:
    """Write a log with a warning every 100 lines, an error with a traceback every 500."""
    with (folder / "bray.log").open("w") as file:
        for number in range(lines):
            level = "ERROR" if number % 500 == 499 else "WARNING" if number % 100 == 99 else "INFO"
            at = f"2026-11-21 12:{number // 60 % 60:02d}:{number % 60:02d},{number % 1000:03d}"
            file.write(
                f"{at} {level} actor/{number % 3} bray_actor.gamecores.fleet: line {number}\n"
            )
            if level == "ERROR":
                file.write("Traceback (most recent call last):\n  <b>not bold</b>\n")


class Echo(Actor):
    """Answers each tick with its own action."""

    def __init__(self, session: str) -> None:
        self._ticks = 0

    async def start(self, body: bytes) -> bytes:
        return codec.encode({})

    async def tick(self, body: bytes) -> bytes:
        self._ticks += 1
        return codec.encode({"action": np.int64(self._ticks % 2)})

    async def end(self, body: bytes) -> bytes:
        return codec.encode({})


def record(folder: Path, *, episodes: int, pixels: bool) -> None:
    """Record episodes of 20 ticks with the real recorder; each has the return 20."""
    recorder = Recorder(folder / "episodes", every=1, max_waiting=episodes)
    maker = recorder.record(Echo)
    for number in range(episodes):
        asyncio.run(play(maker(f"{os.path.basename(folder)}/{number}"), pixels))
    recorder.close()


async def play(actor: Any, pixels: bool) -> None:
    await actor.start(codec.encode({}))
    for tick in range(20):
        message: dict[str, Any] = {"observation": observation(tick, pixels)}
        if tick:
            message["reward"] = 1.0
        await actor.tick(codec.encode(message))
    await actor.end(codec.encode({"reward": 1.0, "terminated": True}))


def observation(tick: int, pixels: bool) -> Any:
    if not pixels:
        values = np.sin(np.arange(4) + tick / 4).astype(np.float32)
        return {"position": values, "map": np.outer(values, values).astype(np.float32)}
    frames = np.zeros((4, 42, 42), np.uint8)
    frames[-1, 2 * tick : 2 * tick + 4, 10:30] = 255
    frames[-1, 38:40, 2 * tick : 2 * tick + 8] = 140
    return frames
