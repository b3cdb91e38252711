"""How near the trainer's step is to what the device can do, and whether the device waits.

    uv run python -m benchmarks.gpu.roofline [--device cuda|cpu]

The ceiling is one square matrix product in the same precision. `share` is the trainer's rate of
multiplications and additions (counted by torch) over the ceiling's; `waiting` is the share of the
loop's time in which nothing was there to train on. Beside it stands the bare torch loop over a
batch that lies on the device already.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from benchmarks.gpu.device import DEVICE, finish, rate_of
from benchmarks.harness import Report, argument, in_turns, main
from benchmarks.micro.networks import cnn
from benchmarks.micro.trainer import Classifier, Ready
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bray_trainer import TrainerConfig

Precision = Literal["fp32", "bf16"]
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Case(NamedTuple):
    """A network, its batch on a GPU and in the dry run on a CPU, and what a row of it is."""

    name: str
    network: Callable[[], nn.Module]
    batches: dict[str, int]
    row: Callable[[int], np.ndarray]


def _pixels(batch: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (batch, 84, 84, 4), np.uint8)


def _numbers(batch: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, 64)).astype(np.float32)


def _perceptron(width: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
        for _ in range(2):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, 6))

    return make


CASES = [
    Case("Atari CNN", lambda: cnn()[0], {"cuda": 4096, "cpu": 32}, _pixels),
    Case("perceptron, 3 × 256", _perceptron(256), {"cuda": 32768, "cpu": 256}, _numbers),
    Case("perceptron, 3 × 2048", _perceptron(2048), {"cuda": 32768, "cpu": 32}, _numbers),
]
REPLAYS = 8
"""Replays of one call: those to come are brought to the device while one is trained on."""


def ceiling(device: str, precision: Precision, seconds: float) -> float:
    """Return the FLOP/s of one large matrix product."""
    size = 8192 if device == "cuda" else 512
    left, right = (
        torch.randn(size, size, device=device, dtype=_TYPES[precision]) for _ in range(2)
    )

    def multiply() -> float:
        torch.mm(left, right)
        return 2.0 * size**3

    return rate_of(multiply, device, seconds)


def flops_of(case: Case, batch: int) -> float:
    """Return the operations of one step: forward and backward."""
    module = case.network()
    rows = torch.from_numpy(case.row(2))
    with FlopCounterMode(display=False) as counter:
        module(rows).sum().backward()
    return counter.get_total_flops() / 2 * batch


def bare(case: Case, batch: int, device: str, precision: Precision) -> Callable[[], float]:
    """Return the step of the plain loop over a batch on the device."""
    module = case.network().to(device)
    rows = torch.from_numpy(case.row(batch)).to(device)
    classes = torch.randint(0, 6, (batch,), device=device)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-4, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, _TYPES[precision], enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(module(rows).float(), classes)
        loss.backward()
        optimizer.step()
        return float(batch)

    return step


def measured(
    case: Case, device: str, precision: Precision, seconds: float, report: Report
) -> dict[str, float]:
    """Return the rates in rows/s, the share of the ceiling and the share of waiting."""
    batch = case.batches[device]
    config = TrainerConfig(device=device, precision=precision, prefetch=2)
    trainer = Classifier(case.network(), Ready(case.row(batch)), config=config)

    def trained() -> float:
        trainer.run(REPLAYS, checkpoint=False)
        finish(device)
        return float(batch * REPLAYS)

    plain = bare(case, batch, device, precision)
    ways = {
        "bare torch loop": lambda: rate_of(plain, device, seconds),
        "trainer": lambda: rate_of(trained, device, seconds),
    }
    rates = in_turns(ways, 2)
    title = f"{case.name}, batch {batch:,}, {precision}, {device}"
    report.table(title, rates, unit="rows/s", base="bare torch loop")
    rate = max(rates["trainer"])
    return {
        "rows_per_s": rate,
        "of_bare": rate / max(rates["bare torch loop"]),
        "flops_per_s": rate * flops_of(case, batch) / batch,
        "waiting": trainer.progress().get("share_wait", float("nan")),
    }


def benchmark(options: Namespace, report: Report) -> None:
    """Measure each network in both precisions."""
    part = options.seconds / (4 * len(CASES) * 2 + 2)
    peaks = {kind: ceiling(options.device, kind, part) for kind in ("fp32", "bf16")}
    for kind, peak in peaks.items():
        print(f"ceiling, {kind}: {peak / 1e12:.2f} TFLOP/s")
        report.figure(f"ceiling, {kind}", peak)
    for case in CASES:
        for kind in ("fp32", "bf16"):
            found = measured(case, options.device, kind, part, report)
            found["share"] = found["flops_per_s"] / peaks[kind]
            report.figure(f"{case.name}, {kind}", found)
            print(
                f"  {found['share']:.1%} of the ceiling, {found['of_bare']:.2f} of the bare loop, "
                f"waiting {found['waiting']:.1%}"
            )


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--device", **DEVICE), seconds=40.0)
