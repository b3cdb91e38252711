"""A league at scale: 200 versions of one model, every two of them play, on shared workers.

    uv run python -m benchmarks.micro.league [--versions N] [--runtime ray --workers N] [--quick]

1. Self-play by PPO (tic-tac-toe) freezes a version after each of N rounds: they get better.
2. The trial is opened anew, as after a crash: the pool with its payoff table is loaded.
3. Every two versions play, each with the first move in half of the games; the table is saved after
   each 2048 pairs. Locally one `Model` answers all versions, on Ray inference workers do.
4. The trial is opened once more; the table is compared and rated (Elo with intervals).

Matches are games from the first move to the last. Memory is the peak resident set of this process
and of the workers that answer, interpreter and torch included.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from benchmarks.harness import Report, argument, main

import bray
from bray.algorithms.selfplay import SelfPlayPPO, SelfPlayRun
from bray.games.recording_player import network
from bray.games.tic_tac_toe_report import TIC_TAC_TOE
from bray.games.tournament import play_tournament
from bray.games.version_pool import VersionPool
from bray.training.lockstep import training
from bray_model import ModelConfig

T = TypeVar("T")
ROWS = 4096


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what the work returns, and its seconds."""
    started = time.perf_counter()
    found = work()
    return found, time.perf_counter() - started


def make_versions(project: Path, number: int) -> float:
    """Train, freezing a version a round; return the seconds."""

    async def learn(player: SelfPlayRun) -> None:
        async with training(player.trainer, [player.model]):
            for made in range(number):
                await player.advance(made + 1)

    with bray.init(project, "league") as run:
        settings = SelfPlayPPO.of("tic-tac-toe", games_per_round=128, freeze_every=1)
        player = SelfPlayRun(run, settings.parts, seed=1)
        return timed(lambda: asyncio.run(learn(player)))[1]


def open_pool(run: bray.Run, options: Namespace) -> tuple[Any, VersionPool]:
    """Open the trial's model, on shared workers where the run is on Ray, and its pool."""
    example = np.zeros((1, TIC_TAC_TOE.observation_size), np.float32)
    hidden = SelfPlayPPO.of("tic-tac-toe").parts.model.hidden
    module, config = network(TIC_TAC_TOE, hidden, 1), ModelConfig(max_batch_size=ROWS)
    model = run.model(
        "policy", module, example, config, placement="workers", num_workers=options.workers
    )
    return model, VersionPool(model, run.experiment.path / "league.json")


def peak_mib(pids: list[int]) -> str:
    """Return the peak memory of this process and of others."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    others = []
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        others += [int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")]
    return " + ".join(f"{mib} MiB" for mib in (own, *others))


def play_all(project: Path, options: Namespace) -> np.ndarray[Any, Any]:
    """Open the trial and let every two versions play; return the table of wins."""
    with bray.init(project, "league", options.runtime) as run:
        (model, pool), load_s = timed(lambda: open_pool(run, options))
        names = pool.names
        print(f"open the trial: {load_s * 1e3:.0f} ms (of this the pool: "
              f"{timed(lambda: VersionPool(model, pool.path))[1] * 1e3:.0f} ms)")  # fmt: skip
        warm = timed(lambda: [pool[name].version for name in names])[1]
        print(f"find {len(names)} clones: {warm * 1e3:.0f} ms")
        matches, seconds = timed(
            lambda: asyncio.run(play_tournament(pool, TIC_TAC_TOE, options.games, seed=1))
        )
        print(f"{len(names)} versions, {matches:,} matches in {seconds:.1f} s: "
              f"{matches / seconds:,.0f} matches/s")  # fmt: skip
        save_s = timed(pool.save)[1]
        size = pool.path.stat().st_size / 2**20
        print(f"save the pool: {save_s * 1e3:.0f} ms, {size:.2f} MiB")
        pids = [] if run.is_local else model.pids()
        print(f"peak memory: {peak_mib(pids)}")
        return pool.payoff.wins


def look_again(project: Path, options: Namespace, wins: np.ndarray[Any, Any]) -> None:
    """Open the trial once more, compare the table and rate it."""
    with bray.init(project, "league", options.runtime) as run:
        model, pool = open_pool(run, options)
        load_s = timed(lambda: VersionPool(model, pool.path))[1]
        assert (pool.payoff.wins == wins).all()
        print(f"load the full pool after a restart: {load_s * 1e3:.0f} ms, the same table")
        fit, fit_s = timed(pool.elo)
        lower, upper = fit.interval()
        half = np.mean(upper - lower) / 2
        print(f"Elo with intervals: {fit_s * 1e3:.0f} ms; first {fit.rating[0]:.0f}, "
              f"last {fit.rating[-1]:.0f}, half an interval {half:.0f}")  # fmt: skip


def benchmark(options: Namespace, report: Report) -> None:
    """Make the versions, let them play, look again."""
    versions = 20 if options.quick else options.versions
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bray-league-") as folder:
        train_s = make_versions(Path(folder), versions)
        print(
            f"{versions} versions frozen in {train_s:.1f} s, {128 * versions:,} games of training"
        )
        wins = play_all(Path(folder), options)
        look_again(Path(folder), options, wins)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--versions", type=int, default=200),
        argument("--games", type=int, default=2, help="of each two versions, even"),
        argument("--runtime", choices=("local", "ray"), default="local"),
        argument("--workers", type=int, default=2, help="that answer, on Ray"),
        argument("--quick", action="store_true", help="20 versions"),
    )
