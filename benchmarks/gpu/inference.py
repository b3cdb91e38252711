"""Rows a second that a model answers, by batch: its engine, the bare module, a replayed graph.

    uv run python -m benchmarks.gpu.inference [--device cuda|cpu]

`graph` replays a CUDA graph of one batch size and nothing else: what `cuda_graphs` could reach.
All copy rows to the device and answers back.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

import numpy as np
import torch
from benchmarks.gpu.device import DEVICE, rate_of
from benchmarks.harness import Report, argument, in_turns, main
from benchmarks.micro.networks import NETWORKS
from torch import nn

from bray_model import Model, ModelConfig

Way = Callable[[], float]
BATCHES = {"cuda": (1, 16, 128, 1024, 8192), "cpu": (1, 16)}


class Floats(nn.Module):
    """A network whose answers are float32, as numpy wants them, whatever it computes in."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = NETWORKS[name]()[0]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """`[B, …]` → `[B, outputs]`."""
        return self.network(rows).float()


def model_of(
    name: str,
    rows: np.ndarray,
    device: Literal["cuda", "cpu"],
    precision: Literal["fp32", "bf16"],
    *,
    is_replayed: bool = False,
) -> Model:
    """Return a model that answers batches of this size on the device."""
    size = len(rows)
    config = ModelConfig(
        max_batch_size=size,
        pad_to=(size,),
        device=device,
        precision=precision,
        cuda_graphs=is_replayed,
    )
    return Model(Floats(name), rows[:1], config=config)


def asking(model: Model, rows: np.ndarray, loop: asyncio.AbstractEventLoop) -> Way:
    """Return what asks the model for all rows at once."""

    def answered() -> float:
        loop.run_until_complete(model.infer(rows, batch=True))
        return float(len(rows))

    return answered


def bare(name: str, rows: np.ndarray, device: str, precision: str) -> Way:
    """Return a forward of the module, with both copies."""
    module = Floats(name).to(device).eval()

    def forward() -> float:
        with (
            torch.inference_mode(),
            torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"),
        ):
            module(torch.from_numpy(rows).to(device)).cpu()
        return float(len(rows))

    return forward


def graph(name: str, rows: np.ndarray, precision: str) -> Way:
    """Return the replay of a captured forward, with both copies."""
    module = Floats(name).cuda().eval()
    held = torch.from_numpy(rows).cuda()

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return module(held)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(captured):
        answer = forward()
    pinned = torch.from_numpy(rows).pin_memory()

    def replay() -> float:
        held.copy_(pinned, non_blocking=True)
        captured.replay()
        answer.cpu()
        return float(len(rows))

    return replay


def benchmark(options: Namespace, report: Report) -> None:
    """Measure both networks in both precisions at each batch size."""
    device, batches = options.device, BATCHES[options.device]
    part = options.seconds / (len(NETWORKS) * 2 * len(batches) * 4 * 2)
    loop = asyncio.new_event_loop()
    for name, make in NETWORKS.items():
        for precision in ("fp32", "bf16"):
            for size in batches:
                rows = np.repeat(make()[1], size, axis=0)
                with ExitStack() as stack:
                    ways = {"bare module": bare(name, rows, device, precision)}
                    made = model_of(name, rows, device, precision)
                    ways["model"] = asking(stack.enter_context(made), rows, loop)
                    if device == "cuda":
                        made = model_of(name, rows, device, precision, is_replayed=True)
                        ways["model, cuda_graphs"] = asking(stack.enter_context(made), rows, loop)
                        ways["graph"] = graph(name, rows, precision)
                    timed = {
                        way: lambda step=step: rate_of(step, device, part)
                        for way, step in ways.items()
                    }
                    title = f"{name}, batch {size:,}, {precision}, {device}"
                    report.table(title, in_turns(timed, 2), unit="rows/s", base="bare module")
    loop.close()


if __name__ == "__main__":
    main(__doc__, benchmark, argument("--device", **DEVICE), seconds=30.0)
