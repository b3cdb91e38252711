"""Ticks per second of an AgentActor, and frames per second of a Runner.

    uv run python -m benchmarks.micro.actor
    uv run python -m benchmarks.micro.actor --seconds 10 --rounds 5

AgentActor: two agents of which one waits for the other's result, CartPole-sized messages in bray's
codec, the policy (4 → 64 → 64 → 2, torch) in the same process, 64 sessions over TCP from a load
generator in C++ in another process. Beside it the same server with parts left out, in turns, so
that the differences say where the time goes.

Runner: the vector CartPole; its frames/s beside those of the environment and of the inference,
each measured alone: 50 % would be as slow again as both together.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Report, argument, compiled_load, itself, main

OBSERVATION = np.array([0.01, -0.2, 0.03, 0.4], np.float32)
STAGES = {
    "bare": "the server: an actor that returns a constant",
    "codec": "+ decode the tick, encode the reply",
    "agents": "+ two agents, one waits for the other",
    "model": "+ the policy answers: the whole",
}


def policy() -> Any:
    """Make the network of the benchmark, in a `Model`."""
    import torch

    from bray_algo import PolicyValueMLP
    from bray_model import Model, ModelConfig

    torch.set_num_threads(1)
    module = PolicyValueMLP(4, 2, hidden=(64, 64))
    example = np.zeros((1, 4), np.float32)
    return Model(module, example, config=ModelConfig(max_batch_size=64))


def serve(stage: str) -> None:
    """Host one stage until SIGTERM; prints the port."""
    from bray_actor import Actor, Agent, AgentActor, TickState
    from bray_core import codec
    from bray_server import Limits
    from bray_server import serve as host

    reply = codec.encode({"policy": 1, "critic": 0.5})

    class Bare(Actor):
        async def tick(self, body: bytes) -> bytes:
            return reply

    class Codec(Actor):
        async def tick(self, body: bytes) -> bytes:
            codec.decode(body)
            return codec.encode({"policy": 1, "critic": 0.5})

    class Constant(Agent):
        async def on_tick(self, state: TickState) -> Any:
            return 1

    class Policy(Agent):
        async def on_tick(self, state: TickState) -> Any:
            answer = await model.infer(state.observation["observation"])
            state.set("value", float(answer.outputs["value"]))
            return int(answer.outputs["logits"].argmax())

    class Critic(Agent):
        async def on_tick(self, state: TickState) -> Any:
            return 0.5 if await state.wait("policy") else -0.5

    model = policy() if stage == "model" else None
    make: dict[str, Callable[[str], Actor]] = {
        "bare": lambda session: Bare(),
        "codec": lambda session: Codec(),
        "agents": lambda session: AgentActor(
            {"policy": Constant(), "critic": Critic()}, episode_length=128
        ),
        "model": lambda session: AgentActor(
            {"policy": Policy(), "critic": Critic()}, episode_length=128
        ),
    }
    host(
        make[stage],
        limits=Limits(),
        drain_s=0.0,
        on_start=lambda server: print(server.addresses[0].rpartition(":")[2], flush=True),
    )


def ticks_per_s(load: Path, body: Path, stage: str, seconds: float) -> dict[str, float]:
    """Measure one stage, in a process of its own."""
    command = itself(__file__, "--serve", stage)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        done = subprocess.run(
            [str(load), "tcp", port, "64", f"@{body}", str(seconds)],
            check=True,
            capture_output=True,
            text=True,
        )
        figures: dict[str, float] = json.loads(done.stdout)
        if figures["errors"]:
            raise SystemExit(f"{stage}: {figures['errors']} errors")
        return figures
    finally:
        server.terminate()
        server.communicate()


def agent_actor(seconds: float, rounds: int) -> None:
    """Print the table of the stages."""
    from bray_core import codec

    with tempfile.TemporaryDirectory() as folder:
        load = compiled_load(Path(folder))
        body = Path(folder) / "tick"
        body.write_bytes(codec.encode({"observation": OBSERVATION, "reward": 1.0}))
        found: dict[str, list[dict[str, float]]] = {stage: [] for stage in STAGES}
        for _ in range(rounds):
            for stage in STAGES:
                found[stage].append(ticks_per_s(load, body, stage, seconds))
    print("AgentActor, 64 sessions over TCP, one server process (medians)")
    print(f"{'':52}{'ticks/s':>9}{'us a tick':>11}{'of the whole':>14}{'p99 us':>9}")
    rates = {s: statistics.median(f["per_s"] for f in fs) for s, fs in found.items()}
    before = 0.0
    for stage, what in STAGES.items():
        each_us = 1e6 / rates[stage]
        share = (each_us - before) * rates["model"] / 1e6
        p99 = statistics.median(f["p99_us"] for f in found[stage])
        print(f"{what:52}{rates[stage]:9,.0f}{each_us - before:+11.1f}{share:14.0%}{p99:9,.0f}")
        before = each_us
    print(f"goal 5,000 ticks/s: {rates['model'] / 5000:.1f} times that\n")


class _Kept:
    """A buffer that drops what it gets, at once."""

    def __init__(self) -> None:
        from bray_actor import segment_spec
        from bray_core.layout import Layout
        from bray_core.nested import ArraySpec

        observation = ArraySpec(np.dtype(np.float32), (4,))
        self.layout = Layout(segment_spec(observation, ArraySpec(np.dtype(np.int64), ()), 64))
        self.segments = 0

    def push(self, *segments: Any, wait: bool = False, timeout_s: float | None = None) -> int:
        self.segments += sum(len(s.block) for s in segments)
        return len(segments)


def _rate(step: Callable[[], None], num_envs: int, seconds: float) -> float:
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            step()
        steps += 20
    return steps * num_envs / (time.perf_counter() - began)


async def runner_round(num_envs: int, seconds: float) -> tuple[float, float, float]:
    """Return the frames/s of the environment, of the inference, and of the Runner."""
    import gymnasium

    from bray_actor import Runner

    model, random = policy(), np.random.default_rng(0)
    environment = gymnasium.make_vec("CartPole-v1", num_envs)
    observation, _ = environment.reset(seed=0)
    actions = random.integers(0, 2, (64, num_envs))
    turn = iter(range(1 << 60))
    env_rate = _rate(lambda: environment.step(actions[next(turn) % 64]), num_envs, seconds)
    rows = np.asarray(observation, np.float32)
    await model.infer(rows, batch=True)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        await model.infer(rows, batch=True)
        steps += 1
    infer_rate = steps * num_envs / (time.perf_counter() - began)
    runner = Runner(environment, model, _Kept(), seed=0)  # type: ignore[arg-type]
    await runner.run(20)
    frames, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        frames += await runner.run(20)
    run_rate = frames / (time.perf_counter() - began)
    environment.close()
    model.close()
    return env_rate, infer_rate, run_rate


def run_runner(seconds: float, rounds: int) -> None:
    """Print the table of the Runner."""
    print("Runner on the vector CartPole-v1: frames/s (medians)")
    head = f"{'environments':>12}{'environment':>13}{'inference':>13}{'both in turn':>14}"
    print(f"{head}{'Runner':>12}{'Runner / both':>15}")
    for num_envs in (64, 256, 1024):
        found = [asyncio.run(runner_round(num_envs, seconds)) for _ in range(rounds)]
        env, infer, ran = (statistics.median(column) for column in zip(*found, strict=True))
        both = statistics.median(1 / (1 / e + 1 / i) for e, i, _ in found)
        ratio = statistics.median(r * (1 / e + 1 / i) for e, i, r in found)
        line = f"{num_envs:>12}{env:>13,.0f}{infer:>13,.0f}{both:>14,.0f}"
        print(f"{line}{ran:>12,.0f}{ratio:>14.0%}")
    print("goal: 50 %")


def benchmark(options: Namespace, report: Report) -> None:
    """Run both and print their tables."""
    if options.only != "runner":
        agent_actor(options.seconds, options.rounds)
    if options.only != "agent":
        run_runner(options.seconds, options.rounds)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=("agent", "runner")),
        rounds=3,
        seconds=5.0,
        inner={"--serve": serve},
    )
