"""Two ranks beside one: the ratio, and where the rest goes.

    uv run python -m benchmarks.micro.trainer_ranks

The Atari network (1.7 M parameters), batches of the same global size that lie in memory, one
thread a process, gloo. By turns in each round, in the same two processes: a bare torch loop in one
of them, the `Trainer` in one, the `Trainer` on both, and a bare loop of torch's
DistributedDataParallel on both. Then the parts of a step on two ranks; that of averaging differs
between them by what the earlier one waits for the later. Medians of the rounds; read the ratios.
Beside the wall time stands the processors' time of both processes, which other programs on the
machine disturb less.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.harness import Report, argument, itself, main
from benchmarks.micro.networks import cnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.distributed import ranks

LAYOUT = Layout(nested.spec({"x": np.zeros((84, 84, 4), np.uint8), "y": np.int64(0)}))
SIZE = 2


class Ready:
    """A buffer that holds one batch and gives it again and again."""

    layout = LAYOUT

    def __init__(self, rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 256, (rows, 84, 84, 4), np.uint8)
        self.batch = Packed(LAYOUT, LAYOUT.pack({"x": x, "y": rng.integers(0, 6, rows)}))

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the batch."""
        return self.batch


class Classifier(Trainer):
    """Cross-entropy of the network's six outputs."""

    def loss(self, batch: Any, step: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the mean over the batch."""
        return nn.functional.cross_entropy(self.module(batch["x"]), batch["y"]), {}


class Timed:
    """Adds up the seconds of methods of `Ranks`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Replace a method by one that is timed as `part`."""
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent = time.perf_counter() - started
                self.seconds[part] = self.seconds.get(part, 0.0) + spent

        setattr(owner, name, timed)


def bare(rows: int, is_parallel: bool) -> Callable[[int], None]:
    """Return a bare loop of so many steps."""
    module, _ = cnn()
    run: nn.Module = DistributedDataParallel(module) if is_parallel else module
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-4, fused=True)
    tree = Ready(rows, 0).batch.tree
    x, y = torch.from_numpy(tree["x"]), torch.from_numpy(tree["y"])

    def loop(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(x), y).backward()
            optimizer.step()

    return loop


def trainer(rows: int, own: ranks.Ranks) -> Classifier:
    """Return a trainer of these ranks; it publishes and writes nothing."""
    ranks.assign(own)
    buffer: Any = Ready(rows, own.rank)
    return Classifier(cnn()[0], buffer, config=TrainerConfig(prefetch=0))


def lone_all_reduce_s(own: ranks.Ranks, nbytes: int) -> float:
    """Return the median time of an all-reduce that both ranks enter together."""
    block = torch.zeros(nbytes // 4)
    times = []
    for _ in range(20):
        own.agree(1)
        started = time.perf_counter()
        own.sum(block)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def lone_agree_s(own: ranks.Ranks) -> float:
    """Return the median time of agreeing when nobody is late."""
    times = []
    for _ in range(200):
        started = time.perf_counter()
        own.agree(1)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def work(rounds: int, steps: int, rows: int) -> None:
    """Be one of the ranks; rank 0 prints what was measured."""
    torch.set_num_threads(1)
    both = ranks.Ranks.from_environment()
    alone = ranks.Ranks()
    share = rows // SIZE
    timed = Timed()
    pair = trainer(share, both)
    loops: dict[str, tuple[bool, Callable[[int], None]]] = {
        "one bare": (False, bare(rows, False)),
        "one Trainer": (False, trainer(rows, alone).run),
        "two Trainer": (True, pair.run),
        "two DDP": (True, bare(share, True)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    busy: dict[str, list[float]] = {name: [] for name in loops}
    parts: dict[str, list[float]] = {}
    for name, part in (("smallest", "agree"), ("average", "average"), ("sum_by_name", "figures")):
        timed.wrap(both, name, part)
    for turn in range(rounds + 1):
        for name, (is_parallel, loop) in loops.items():
            both.agree(1)
            timed.seconds.clear()
            started, cpu = time.perf_counter(), time.process_time()
            if is_parallel or both.is_first:
                loop(steps)
            spent = time.perf_counter() - started
            cpus = sum(
                both.gather(time.process_time() - cpu if is_parallel or both.is_first else 0.0)
            )
            own_parts = dict(timed.seconds) if name == "two Trainer" else {}
            if turn:  # the first warms up
                seconds[name].append(spent / steps)
                busy[name].append(cpus / steps)
                for part, value in own_parts.items():
                    parts.setdefault(part, []).append(value / steps)
    all_parts = both.gather({part: statistics.median(values) for part, values in parts.items()})
    lone = {
        "all_reduce": lone_all_reduce_s(both, 4 * sum(p.numel() for p in pair.module.parameters())),
        "agree": lone_agree_s(both),
    }
    if both.is_first:
        print(json.dumps({"seconds": seconds, "busy": busy, "parts": all_parts, "lone": lone}))
    dist.barrier()
    both.close()


def start(rounds: int, steps: int, rows: int) -> dict[str, Any]:
    """Run the two processes and return what the first printed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(SIZE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = itself(__file__, "--work", rounds, steps, rows)
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(SIZE)
    ]
    outputs = [process.communicate()[0] for process in processes]
    found: dict[str, Any] = json.loads(outputs[0])
    return found


def show(found: dict[str, Any], rows: int) -> None:
    """Print the table."""
    median = {name: statistics.median(values) for name, values in found["seconds"].items()}
    print(f"global batch {rows}, median of {len(found['seconds']['one bare'])} rounds")
    for name, value in median.items():
        pairs = zip(found["seconds"]["one bare"], found["seconds"][name], strict=True)
        ratio = statistics.median(one / other for one, other in pairs)
        busy = statistics.median(found["busy"][name])
        print(
            f"{name:12} {value * 1e3:7.1f} ms a step, {busy * 1e3:7.1f} ms of processors"
            f"   {ratio:5.2f}× the rate of one bare"
        )
    pairs = zip(found["seconds"]["two DDP"], found["seconds"]["two Trainer"], strict=True)
    against = statistics.median(one / other for one, other in pairs)
    print(f"two Trainer beside two DDP: {against:.3f}× its rate")
    total, lone = median["two Trainer"], found["lone"]
    parts = [max(rank[part] for rank in found["parts"]) for part in ("agree", "figures")]
    least, most = sorted(rank["average"] for rank in found["parts"])
    print(f"of a step of two, in % of {total * 1e3:.1f} ms:")
    for name, value in (
        ("all-reduce alone", lone["all_reduce"]),
        ("averaging, the later rank", least),
        ("averaging, the earlier rank", most),
        ("agreeing (waits included)", parts[0]),
        ("three agreements alone", 3 * lone["agree"]),
        ("figures of all ranks", parts[1]),
    ):
        print(f"  {name:28} {value / total:6.1%}  {value * 1e3:6.2f} ms")


def benchmark(options: Namespace, report: Report) -> None:
    """Run the two ranks and print what they found."""
    show(start(options.rounds, options.steps, options.rows), options.rows)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--steps", type=int, default=8),
        argument("--rows", type=int, default=256, help="of the global batch"),
        rounds=7,
        inner={"--work": lambda *counts: work(*map(int, counts))},
    )
