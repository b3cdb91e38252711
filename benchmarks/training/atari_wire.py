"""Ticks per second of gamecores that play Atari over TCP, beside the Runner in one process.

    uv run python -m benchmarks.training.atari_wire
    uv run python -m benchmarks.training.atari_wire --seconds 10 --rounds 5
    python -m benchmarks.training.atari_wire --network my_module:make   # make(num_actions) → module

Eight gamecore processes with a game each, one actor server, the Nature CNN answers; both ways
record segments into a buffer that drops them. The Runner has the same number of games in ALE's
vector environment, once stepped by itself and once in two halves that take turns. All in turns of
one run; medians, ratios per round.

Then the actor's side of a tick by itself: a load generator in C++ in another process (load.cpp)
sends ticks of the same size over as many connections to the server with parts left out. The
differences of the processor time that the server's process takes for a tick say what socket,
codec, batcher, inference and recording cost; others on the machine hardly change that.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the rest is for the games

import numpy as np
import torch
from benchmarks.harness import Report, argument, compiled_load, main

from bray_actor import (
    Actor,
    AlternatingRunners,
    GamecoreFleet,
    PolicyActor,
    PolicyConfig,
    Runner,
    segment_spec,
)
from bray_actor.atari import AtariRewardTransform, make_atari
from bray_core import codec
from bray_core.layout import Layout
from bray_core.nested import ArraySpec
from bray_model import Model, ModelConfig
from bray_server import ServerThread

T = 128
FRAMES = ArraySpec(np.dtype(np.uint8), (4, 84, 84))
STAGES = {
    "socket": "an actor that returns a constant",
    "codec": "+ decode the tick, encode the reply",
    "batcher": "+ PolicyActor on a Model of constants",
    "inference": "+ the network instead",
    "recording": "+ segments: the whole",
}


class Constants(torch.nn.Module):
    """Answers without computing."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(1, num_actions))

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """`[B, 4, 84, 84]` → even logits `[B, A]`, value `[B]`."""
        logits = self.logits.expand(len(observation), -1)
        return {"logits": logits, "value": logits[:, 0]}


class Dropped:
    """A buffer that drops what it gets, at once."""

    def __init__(self) -> None:
        action = ArraySpec(np.dtype(np.int64), ())
        self.layout = Layout(segment_spec(FRAMES, action, T, stack=True))

    def push(self, *segments: Any, wait: bool = False, timeout_s: float | None = None) -> int:
        """Take segments."""
        return len(segments)


class Fixed(Actor):
    """Does nothing with a tick."""

    _reply = codec.encode({"action": 0})

    async def tick(self, body: bytes) -> bytes:
        """Answer."""
        return self._reply


class Coded(Actor):
    """Reads a tick, and does nothing with it."""

    async def tick(self, body: bytes) -> bytes:
        """Answer."""
        codec.decode(body)
        return codec.encode({"action": 0})


class Bench:
    """The models, and what is measured with them."""

    def __init__(self, options: Namespace) -> None:
        self.options = options
        games = make_atari(options.env, 1)
        num_actions = int(games.single_action_space.n)
        games.close()
        module, _, function = options.network.partition(":")
        make = getattr(importlib.import_module(module), function)
        example = np.zeros((1, *FRAMES.shape), np.uint8)
        config = ModelConfig(max_batch_size=64)
        self.model = Model(make(num_actions), example, config=config, name="network")
        self.constants = Model(Constants(num_actions), example, config=config, name="constants")
        self.buffer: Any = Dropped()

    def close(self) -> None:
        """Close the models."""
        self.model.close()
        self.constants.close()

    def service(self, stage: str) -> Callable[[str], Actor]:
        """Return what makes the actors of a stage."""
        if stage == "socket":
            return lambda session: Fixed()
        if stage == "codec":
            return lambda session: Coded()
        model = self.constants if stage == "batcher" else self.model
        buffer = self.buffer if stage == "recording" else None
        return PolicyActor.factory(model, PolicyConfig(), buffer=buffer)

    def wire(self) -> float:
        """Return the ticks/s of the gamecores."""
        server = ServerThread(self.service("recording"))
        count = self.options.gamecores
        fleet = GamecoreFleet(self.options.env, server.addresses, num_processes=count)
        try:
            fleet.start()
            while server.stats()["sessions"] < count or server.stats()["requests"] < count * 50:
                fleet.check()
                time.sleep(0.1)
            before, began = server.stats()["requests"], time.perf_counter()
            time.sleep(self.options.seconds)
            spent = time.perf_counter() - began
            return (server.stats()["requests"] - before) / spent
        finally:
            fleet.stop()
            server.close(0.0)

    def _runner(self, num_envs: int, seed: int) -> Runner:
        games = make_atari(self.options.env, num_envs, num_threads=self.options.threads)
        return Runner(
            games, self.model, self.buffer, seed=seed, reward_transform=AtariRewardTransform()
        )

    def runner(self) -> float:
        """Return the frames/s of a Runner."""
        return self._frames_per_s(self._runner(self.options.gamecores, 0))

    def halves(self) -> float:
        """Return the frames/s of two halves that take turns."""
        half = self.options.gamecores // 2
        return self._frames_per_s(AlternatingRunners([self._runner(half, seed) for seed in (0, 1)]))

    def _frames_per_s(self, runner: Runner | AlternatingRunners) -> float:
        async def play() -> float:
            await runner.run(20)
            frames, began = 0, time.perf_counter()
            while time.perf_counter() - began < self.options.seconds:
                frames += await runner.run(10)
            return frames / (time.perf_counter() - began)

        try:
            return asyncio.run(play())
        finally:
            runner.close()

    def environment(self) -> float:
        """Return the frames/s of the vector environment alone."""
        count = self.options.gamecores
        games = make_atari(self.options.env, count, num_threads=self.options.threads)
        games.reset(seed=0)
        actions = np.random.default_rng(0).integers(0, games.single_action_space.n, (64, count))
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < self.options.seconds:
            games.step(actions[steps % 64])
            steps += 1
        rate = steps * count / (time.perf_counter() - began)
        games.close()
        return rate

    def inference(self) -> float:
        """Return the observations/s of the model alone, in batches of all games."""
        count = self.options.gamecores
        frames = np.random.default_rng(0).integers(0, 256, (count, *FRAMES.shape), np.uint8)

        async def infer() -> float:
            await self.model.infer(frames, batch=True)
            steps, began = 0, time.perf_counter()
            while time.perf_counter() - began < self.options.seconds:
                await self.model.infer(frames, batch=True)
                steps += 1
            return steps * count / (time.perf_counter() - began)

        return asyncio.run(infer())

    def stage(self, name: str, load: Path, body: Path) -> tuple[float, float]:
        """Return the ticks/s of the server alone at a stage, and its processor's µs a tick."""
        server = ServerThread(self.service(name))
        port = server.addresses[0].rpartition(":")[2]
        count, seconds = str(self.options.gamecores), str(self.options.seconds)
        began = time.process_time()  # of all threads; this one only waits
        try:
            done = subprocess.run(
                [str(load), "tcp", port, count, f"@{body}", seconds],
                check=True,
                capture_output=True,
                text=True,
            )
            spent, ticks = time.process_time() - began, server.stats()["requests"]
        finally:
            server.close(0.0)
        figures = json.loads(done.stdout)
        if figures["errors"]:
            raise SystemExit(f"{name}: {figures['errors']} errors")
        return float(figures["per_s"]), 1e6 * spent / ticks


def measure(options: Namespace) -> dict[str, list[float]]:
    """Return the figures of each round, by what was measured."""
    bench = Bench(options)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        load, body = compiled_load(Path(folder)), Path(folder) / "tick"
        noise = np.random.default_rng(0).integers(0, 256, FRAMES.shape, np.uint8)
        # Each tick is the same: the recorder would refuse frames that do not move on.
        still = np.broadcast_to(noise[:1], FRAMES.shape)
        body.write_bytes(codec.encode({"observation": still, "reward": 0.0}))
        for _ in range(options.rounds):
            for name in ("environment", "inference", "runner", "halves", "wire"):
                found.setdefault(name, []).append(getattr(bench, name)())
            for name in STAGES:
                rate, cost_us = bench.stage(name, load, body)
                found.setdefault(f"stage {name}", []).append(rate)
                found.setdefault(f"us {name}", []).append(cost_us)
    bench.close()
    return found


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, of the rounds' shares too, and what each stage adds to a tick in µs."""

    def share(name: str, of: str) -> float:
        return statistics.median(a / b for a, b in zip(found[name], found[of], strict=True))

    medians = {name: statistics.median(values) for name, values in found.items()}
    costs, before = {}, [0.0] * len(found["wire"])
    for stage in STAGES:
        each = found[f"us {stage}"]
        costs[stage] = statistics.median(a - b for a, b in zip(each, before, strict=True))
        before = each
    return {
        "per_s": {name: rate for name, rate in medians.items() if not name.startswith("us ")},
        "wire_of_runner": share("wire", "runner"),
        "wire_of_halves": share("wire", "halves"),
        "stage_us": costs,
    }


def show(figures: dict[str, Any], options: Namespace) -> None:
    """Print the tables."""
    rates = figures["per_s"]
    print(f"{options.env}, {options.gamecores} games, {os.cpu_count()} cores: per s (medians)")
    for name, what in [
        ("environment", f"vector environment alone, {options.threads} threads"),
        ("inference", "inference alone, one batch of all games"),
        ("runner", "Runner"),
        ("halves", "Runner in two halves"),
        ("wire", f"{options.gamecores} gamecores over TCP, one actor"),
    ]:
        print(f"{what:46}{rates[name]:9,.0f}")
    print(f"over the wire: {figures['wire_of_runner']:.0%} of the Runner, ", end="")
    print(f"{figures['wire_of_halves']:.0%} of the halves\n")
    whole = sum(figures["stage_us"].values())
    print(f"{'the actor alone':46}{'ticks/s':>9}{'us of CPU a tick':>18}{'of the whole':>14}")
    for stage, what in STAGES.items():
        cost = figures["stage_us"][stage]
        rate = rates[f"stage {stage}"]
        print(f"{stage + ': ' + what:46}{rate:9,.0f}{cost:+18.1f}{cost / whole:14.0%}")


def benchmark(options: Namespace, report: Report) -> None:
    """Measure and print."""
    figures = summary(measure(options))
    report.figures |= figures
    show(figures, options)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--env", default="Pong"),
        argument("--gamecores", type=int, default=8, help="processes; games of the Runner"),
        argument("--threads", type=int, default=os.cpu_count() or 1, help="of the Runner"),
        argument("--network", default="bray_algo.networks.feedforward:NatureCNN"),
        rounds=3,
        seconds=5.0,
    )
