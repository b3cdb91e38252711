"""Microseconds a frame of the two hot paths, beside those of another checkout.

    uv run python -m benchmarks.micro.step_cost
    uv run python -m benchmarks.micro.step_cost --tree /path/to/checkout --rounds 9

- runner: a `Runner` steps a vector of environments that cost next to nothing, with a tiny policy.
- wire: processes of a gamecore's client tick over TCP → `PolicyActor` → model → buffer.

With `--tree`, the same measurement runs in turns on the sources of both checkouts, in a process of
its own each time, whose `PYTHONPATH` begins with that checkout's `packages/*/src`. So only names
that both have are used: those of the package roots. The bound of a refactoring is 3 %.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

BOUND = 1.03
NUM_ENVS = 64
NUM_CLIENTS = 4
SESSIONS = 16
"""Games of each client, one after the other, as one gamecore process plays several."""
SEGMENT = 32
WARM_UP_S = 0.5
_CLIENT = """
import sys, time
import numpy as np
from bray_core import encode
from bray_server import Client

address, seconds, name = sys.argv[1], float(sys.argv[2]), sys.argv[3]
body = encode({"observation": np.array([0.01, -0.2, 0.03, 0.4], np.float32), "reward": 1.0})
sessions = [f"{name}-{number}" for number in range(int(sys.argv[4]))]
with Client(address, timeout_s=60) as client:
    for session in sessions:
        client.start(session)
    print("ready", flush=True)
    sys.stdin.readline()
    ticks, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for session in sessions:
            client.tick(session, body)
        ticks += len(sessions)
    print(ticks, flush=True)
"""


def parts() -> tuple[Any, Any]:
    """Make the policy's model and the buffer of its experience."""
    import numpy as np
    import torch

    from bray_actor import segment_spec
    from bray_buffer import Buffer, BufferConfig
    from bray_core import ArraySpec, Layout
    from bray_model import Model, ModelConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Policy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(4, 8)
            self.logits = torch.nn.Linear(8, 2)
            self.value = torch.nn.Linear(8, 1)

        def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
            hidden = torch.tanh(self.body(observation))
            return {"logits": self.logits(hidden), "value": self.value(hidden).squeeze(-1)}

    config = ModelConfig(max_batch_size=NUM_ENVS)
    model = Model(Policy(), np.zeros((1, 4), np.float32), config=config)
    observation, action = ArraySpec(np.dtype("f4"), (4,)), ArraySpec(np.dtype("i8"), ())
    layout = Layout(segment_spec(observation, action, SEGMENT))
    return model, Buffer(layout, BufferConfig(batch_size=8, capacity=4096))


def drain(buffer: Any) -> None:
    """Take all whole batches out, as a trainer does."""
    while buffer.stats()["queued"] >= 8:
        buffer.pop(timeout_s=1.0)


def cheap_environments() -> Any:
    """Return a vector whose episodes have 200 steps and whose observations are drawn beforehand."""
    import gymnasium
    import numpy as np

    class Cheap(gymnasium.vector.VectorEnv):
        num_envs = NUM_ENVS
        single_observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        single_action_space = gymnasium.spaces.Discrete(2)
        observation_space = gymnasium.vector.utils.batch_space(single_observation_space, NUM_ENVS)
        action_space = gymnasium.vector.utils.batch_space(single_action_space, NUM_ENVS)
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

        def __init__(self) -> None:
            drawn = np.random.default_rng(0).uniform(-1, 1, (64, NUM_ENVS, 4))
            self._drawn = drawn.astype(np.float32)
            self._age = np.arange(NUM_ENVS) * 3
            self._steps = 0

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self._drawn[0], {}

        def step(self, actions: Any) -> Any:
            self._steps += 1
            self._age += 1
            terminated = self._age >= 200
            self._age[terminated] = 0
            rewards, truncated = np.ones(NUM_ENVS), np.zeros(NUM_ENVS, bool)
            return self._drawn[self._steps % 64], rewards, terminated, truncated, {}

    return Cheap()


def runner_us(seconds: float) -> float:
    """Return the microseconds of CPU a frame of a `Runner`."""
    from bray_actor import Runner

    model, buffer = parts()

    async def play() -> float:
        runner = Runner(cheap_environments(), model, buffer, seed=0)
        frames, cpu, began = 0, time.process_time(), time.perf_counter()
        is_warm = False
        while (now := time.perf_counter() - began) < seconds + WARM_UP_S:
            if not is_warm and now > WARM_UP_S:
                frames, cpu, is_warm = 0, time.process_time(), True
            frames += await runner.run(SEGMENT)
            drain(buffer)
        return (time.process_time() - cpu) / frames * 1e6

    found = asyncio.run(play())
    model.close()
    return found


def wire_us(seconds: float) -> float:
    """Return the microseconds of the server's CPU a frame over the wire."""
    from bray_actor import PolicyActor, PolicyConfig
    from bray_server import ServerThread

    model, buffer = parts()
    server = ServerThread(PolicyActor.factory(model, PolicyConfig(), buffer=buffer))
    clients = []
    for number in range(NUM_CLIENTS):
        arguments = [server.addresses[0], str(seconds), str(number), str(SESSIONS)]
        clients.append(
            subprocess.Popen(
                [sys.executable, "-c", _CLIENT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    cpu = time.process_time()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    while any(client.poll() is None for client in clients):
        time.sleep(0.05)
        drain(buffer)
    used = time.process_time() - cpu
    ticks = sum(int(client.communicate()[0]) for client in clients)
    server.close(0)
    model.close()
    return used / ticks * 1e6


PATHS = {"runner": runner_us, "wire": wire_us}


def one_process(path: str, tree: Path, seconds: float) -> float:
    """Measure one path on the sources of a checkout, in a process of its own."""
    sources = [str(folder) for folder in sorted(tree.glob("packages/*/src"))]
    if not sources:
        raise SystemExit(f"--tree {tree}: expected a checkout with packages/*/src")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), path, str(seconds), str(tree)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def benchmark(options: Namespace, report: Any) -> int:
    """Measure both paths, in turns with the other checkout's where there is one."""
    from benchmarks.harness import ROOT, in_turns

    trees = {"ours": ROOT} | ({"theirs": options.tree.resolve()} if options.tree else {})
    worst = 0.0
    for path in [options.only] if options.only else list(PATHS):
        ways = {
            name: lambda path=path, tree=tree: one_process(path, tree, options.seconds)
            for name, tree in trees.items()
        }
        base = "theirs" if options.tree else None
        report.table(path, in_turns(ways, options.rounds), unit="µs of CPU a frame", base=base)
        if options.tree:
            worst = max(worst, report.ratio("ours", "theirs"))
    if options.tree:
        verdict = "within" if worst <= BOUND else "beyond"
        print(f"ours / theirs at worst {worst:.3f}: {verdict} the bound of {BOUND}")
    return int(worst > BOUND)


def _measure(path: str, seconds: str, tree: str) -> None:
    """Print the figure, in the process that has the checkout's sources."""
    import bray_actor

    assert Path(bray_actor.__file__ or "").is_relative_to(tree), bray_actor.__file__
    print(json.dumps(PATHS[path](float(seconds))))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in PATHS:
        _measure(*sys.argv[1:])
    else:
        from benchmarks.harness import argument, main

        main(
            __doc__,
            benchmark,
            argument("--tree", type=Path, metavar="PATH", help="another checkout"),
            argument("--only", choices=list(PATHS)),
            rounds=5,
            seconds=3.0,
        )
