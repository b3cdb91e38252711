"""What the trainer adds to a step, and what bf16 and prefetch take away.

    uv run python -m benchmarks.micro.trainer [--only step|precision|waiting|publish|learning]

Ratios of one run: all ways take turns, round by round; medians of the rounds. One torch thread,
unless `--threads` says otherwise. The network is the Atari CNN (1.7 M parameters), batch 256.

step        the bare torch loop (the batch is in memory) beside the trainer, which pops the same
            batch; and both with a small network, where what is added can be seen
precision   float32, bf16, and both channels last
waiting     a buffer whose pop takes as long as a step, popped ahead or not
publish     what publishing each step costs: in the loop, and beside it
learning    the same task in float32 and in bf16: where is the bright square?
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable

import numpy as np
import torch
from benchmarks.harness import Report, argument, in_turns, main
from benchmarks.micro.networks import cnn, small
from torch import nn

from bray_core import metrics, nested
from bray_core.layout import Layout, Packed
from bray_model import Model
from bray_trainer import Trainer, TrainerConfig

BATCH = 256
CLASSES = 6


class Ready:
    """A buffer that has its batch already; `pop_s` is how long a pop takes."""

    def __init__(self, rows: np.ndarray, pop_s: float = 0.0) -> None:
        rng = np.random.default_rng(0)
        tree = {"x": rows, "y": rng.integers(0, CLASSES, len(rows))}
        self.layout = Layout(nested.spec({name: leaf[0] for name, leaf in tree.items()}))
        self.packed = Packed(self.layout, self.layout.pack(tree))
        self.pop_s = pop_s

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Copy the batch until the time is over, as one that gathers rows does."""
        until = time.perf_counter() + self.pop_s
        while time.perf_counter() < until:
            self.packed.block.copy()
        return self.packed


class Classifier(Trainer):
    """Cross entropy, nothing else."""

    def loss(self, batch: dict[str, torch.Tensor], step: int) -> tuple[torch.Tensor, dict]:
        """Return the cross entropy of the classes."""
        return nn.functional.cross_entropy(self.module(batch["x"]), batch["y"]), {}


def rows_of(name: str, batch: int = BATCH) -> np.ndarray:
    """Return a batch `[B, …]` for a network."""
    rng = np.random.default_rng(0)
    if name == "cnn":
        return rng.integers(0, 256, (batch, 84, 84, 4), np.uint8)
    return rng.normal(size=(batch, 4)).astype(np.float32)


def network(name: str) -> nn.Module:
    """Return one of the two networks, the same each time."""
    return (cnn if name == "cnn" else small)()[0]


def bare(module: nn.Module, rows: np.ndarray) -> Callable[[int], None]:
    """Return the plain loop over one batch in memory."""
    x = torch.from_numpy(rows)
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 2, len(rows)))
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-4, eps=1e-5, fused=True)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()

    return run


def trained(
    module: nn.Module, rows: np.ndarray, model: Model | None = None, **config: object
) -> Classifier:
    """Return a trainer of the same."""
    buffer = Ready(rows)
    buffer.packed.tree["y"][...] = np.random.default_rng(0).integers(0, 2, len(rows))
    return Classifier(module, buffer, model=model, config=TrainerConfig(**config))


def seconds(work: Callable[[int], None], steps: int) -> float:
    """Return the seconds of a step."""
    started = time.perf_counter()
    work(steps)
    return (time.perf_counter() - started) / steps


def turns(
    report: Report,
    title: str,
    ways: dict[str, Callable[[int], None]],
    steps: int,
    rounds: int,
    unit: str = "ms",
) -> dict[str, list[float]]:
    """Print and return the seconds of each way, beside the first."""
    timed = {name: lambda work=work: seconds(work, steps) for name, work in ways.items()}
    found = in_turns(timed, rounds, warm_up=1)
    scale = {"ms": 1e3, "µs": 1e6}[unit]
    shown = {name: [scale * each for each in times] for name, times in found.items()}
    report.table(title, shown, unit=unit, base=next(iter(ways)))
    return found


def step(rounds: int, report: Report) -> None:
    """The trainer's step beside the bare loop's."""
    for name, steps, unit in (("cnn", 4, "ms"), ("small", 400, "µs")):
        rows = rows_of(name, BATCH if name == "cnn" else 64)
        module = network(name)
        title = f"step, {name}, batch {len(rows)}"
        with Model(network(name), rows[:1]) as model:
            ways = {
                "bare torch loop": bare(network(name), rows),
                "trainer": trained(network(name), rows).run,
                "trainer, nothing popped ahead": trained(network(name), rows, prefetch=0).run,
                "trainer that publishes each step": trained(module, rows, model).run,
            }
            times = turns(report, title, ways, steps, rounds, unit)
        for name in list(times)[1:]:
            pairs = zip(times[name], times["bare torch loop"], strict=True)
            added = statistics.median(ours - bare_ for ours, bare_ in pairs)
            print(f"  added by {name}: {added * 1e6:.0f} µs a step")


def precision(rounds: int, report: Report) -> None:
    """What bf16 and channels last bring."""
    rows = rows_of("cnn")
    last = torch.channels_last
    turns(
        report,
        f"precision, cnn, batch {BATCH}; {processor()}",
        {
            "float32": trained(network("cnn"), rows).run,
            "float32, channels last": trained(network("cnn").to(memory_format=last), rows).run,
            "bf16": trained(network("cnn"), rows, precision="bf16").run,
            "bf16, channels last": trained(
                network("cnn").to(memory_format=last), rows, precision="bf16"
            ).run,
        },
        2,
        rounds,
    )


def processor() -> str:
    """Return which instructions for bf16 there are."""
    has = torch.cpu.get_capabilities()
    names = [name for name in ("amx_bf16", "avx512_bf16") if has.get(name)]
    return f"bf16 by {', '.join(names)}" if names else "no bf16 in hardware"


def waiting(rounds: int, report: Report) -> None:
    """The share of time that the loop waits for a pop as long as its step."""
    rows = rows_of("cnn", 64)
    trainers = {n: trained(network("cnn"), rows, prefetch=n) for n in (0, 1, 2)}
    trainers[0].run(3)
    step_s = seconds(trainers[0].run, 10)
    for trainer in trainers.values():
        trainer.buffer.pop_s = step_s
    title = f"waiting, cnn, a replay of 64; step and pop take {step_s * 1e3:.0f} ms each"
    metrics.drain()
    ways = {f"prefetch {n}": trainer.run for n, trainer in trainers.items()}
    turns(report, title, ways, 10, rounds)
    for n, trainer in trainers.items():
        print(f"  prefetch {n}: {trainer.summary()}")


def publish(rounds: int, report: Report) -> None:
    """What of publishing the loop feels."""
    rows = rows_of("cnn")
    module = network("cnn")
    with Model(network("cnn"), rows[:1]) as model:
        trainer = trained(module, rows, model)
        trainer.run(1)
        live = list(module.state_dict().values())
        copies = [torch.empty_like(tensor) for tensor in live]
        flat = torch.empty(sum(tensor.numel() for tensor in live))

        def stalls(times: int) -> None:
            for _ in range(times):
                trainer._publisher.offer()

        def inline(times: int) -> None:
            for _ in range(times):
                state = module.state_dict()
                model.publish({name: t.detach().numpy() for name, t in state.items()})

        def foreach(times: int) -> None:
            with torch.no_grad():
                for _ in range(times):
                    torch._foreach_copy_(copies, live)

        def flattened(times: int) -> None:
            for _ in range(times):
                torch.cat([tensor.ravel() for tensor in live], out=flat)

        with trainer._open():
            turns(
                report,
                "publish, cnn, 6.8 MB",
                {
                    "foreach copy": foreach,
                    "flat copy": flattened,
                    "offer, published by a thread": stalls,
                    "publish in the loop": inline,
                },
                10,
                rounds,
            )


def learning(rounds: int, report: Report) -> None:
    """The accuracy after as many steps in float32 and in bf16."""
    print("learning: which of six places is bright? mean loss of each ten steps, share right")
    for precision_ in ("fp32", "bf16"):
        losses, right = learn(precision_, 60)
        tens = [statistics.mean(losses[i : i + 10]) for i in range(0, len(losses), 10)]
        print(f"  {precision_}:", *(f"{loss:.3f}" for loss in tens), f"right {right:.3f}")


def learn(precision_: str, steps: int) -> tuple[list[float], float]:
    """Return the losses, and the share of right answers on rows that were not trained on."""
    rng = np.random.default_rng(1)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.integers(0, 128, (count, 84, 84, 4), np.uint8)
        places = rng.integers(0, CLASSES, count)
        for row, place in zip(rows, places, strict=True):
            top, left = 8 + 40 * (place // 3), 4 + 28 * (place % 3)
            row[top : top + 16, left : left + 16] += 32
        return rows, places

    class Squares(Ready):
        def pop(self, timeout_s: float | None = None) -> Packed:
            x, y = draw(64)
            return Packed(self.layout, self.layout.pack({"x": x, "y": y}))

    losses: list[float] = []

    class Noting(Classifier):
        def should_pause(self) -> bool:
            losses.append(self.progress()["loss"])
            return len(losses) == steps

    config = TrainerConfig(precision=precision_, learning_rate=1e-3, seed=0)
    trainer = Noting(network("cnn"), Squares(rows_of("cnn", 1)), config=config)
    trainer.start()
    while not trainer.wait(1.0):
        pass
    x, y = draw(512)
    with torch.no_grad():
        answers = trainer.module(torch.from_numpy(x)).argmax(1).numpy()
    return losses, float((answers == y).mean())


PARTS = {
    "step": step,
    "precision": precision,
    "waiting": waiting,
    "publish": publish,
    "learning": learning,
}


def benchmark(options: Namespace, report: Report) -> None:
    """Print all parts, or one."""
    torch.set_num_threads(options.threads)
    for name, part in PARTS.items():
        if options.only in (None, name):
            part(options.rounds, report)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--only", choices=PARTS),
        argument("--threads", type=int, default=1),
        rounds=9,
    )
