"""200 versions of one network over two worker processes: memory, and rows/s beside one version.

    uv run python -m benchmarks.micro.model_clones [--rounds N] [--quick]

Each worker holds half the versions of an Atari CNN (1.7 M parameters) as clones of one model. A
batch of 64 rows goes to one version, drawn uniformly. In each round every worker measures, at the
same time as the other:

    one version         always the same clone: what batching and the forward cost
    all in memory       drawn among as many clones as the memory for engines holds
    from disk as well   drawn among all: most are loaded when they are asked

Memory is that of one process (RSS) beyond what it took with one clone, and its share of
`cache_bytes`; it is read after each case, and the largest counts. Other figures are medians of the
rounds, rows/s those of both workers together.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.harness import Report, argument, main
from benchmarks.micro.networks import cnn

from bray_core import metrics
from bray_model import Model, ModelConfig, Retention

WORKERS = 2
ROWS = 64
CASES = ("one version", "all in memory", "from disk as well")


def rss_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_clones(model: Model, number: int) -> list[Model]:
    """Put so many versions on disk, each with weights of its own, and clone each."""
    _, first = model.weights()
    clones = []
    for _ in range(number):
        scale = np.float32(1 + model.version / 1000)
        model.publish({name: array * scale for name, array in first.items()})
        model.checkpoint()
        clones.append(model.clone(name=f"v{model.version}"))
    return clones


def measure(clones: list[Model], batches: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return rows/s over batches drawn among the clones, and the share of them that was loaded."""
    images = rng.integers(0, 256, (ROWS, 84, 84, 4), np.uint8)
    for clone in clones[-64:]:
        clone(images[0])  # what fits is in memory
    metrics.drain()
    started = time.perf_counter()
    for index in rng.integers(0, len(clones), batches):
        clones[index](images, batch=True)
    seconds = time.perf_counter() - started
    loads = {sample.name: sample.value for sample in metrics.drain()}.get("model/version_loads", 0)
    return batches * ROWS / seconds, loads / batches


def work(
    pipe: Connection, directory: str, seed: int, number: int, cached: int, batches: int
) -> None:
    """A worker: measures the cases of a round when told to, until None comes."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    module, example = cnn()
    nbytes = sum(p.numel() * 4 for p in module.parameters())
    config = ModelConfig(
        max_batch_size=ROWS,
        cache_bytes=cached * nbytes,
        retention=Retention(keep_last=number),
    )
    with Model(module, example, directory=directory, config=config) as model:
        clones = make_clones(model, number)
        measure(clones[:1], 3, rng)
        gc.collect()
        before = rss_bytes()
        pipe.send(nbytes)
        groups = {CASES[0]: clones[:1], CASES[1]: clones[:cached], CASES[2]: clones}
        while pipe.recv():
            for case in CASES:
                pipe.recv()
                rate, loaded = measure(groups[case], batches, rng)
                pipe.send((rate, loaded, rss_bytes() - before))


def rounds(pipes: list[Connection], number: int) -> Iterator[dict[str, list[Any]]]:
    """Yield case → what each worker measured, the workers side by side."""
    for _ in range(number):
        for pipe in pipes:
            pipe.send(True)
        found = {}
        for case in CASES:
            for pipe in pipes:
                pipe.send(case)
            found[case] = [pipe.recv() for pipe in pipes]
        yield found


def show(found: list[dict[str, list[Any]]], limit_bytes: int) -> None:
    """Print the table."""
    print(f"{'':20}{'rows/s':>10}{'ratio':>8}{'loaded':>9}{'memory':>10}{'of limit':>10}")
    single = None
    for case in CASES:
        rate = statistics.median(sum(rate for rate, *_ in r[case]) for r in found)
        loaded = statistics.median(share for r in found for _, share, _ in r[case])
        grown = max(nbytes for r in found for *_, nbytes in r[case])
        single = single or rate
        print(
            f"{case:20}{rate:10.0f}{rate / single:8.2f}{loaded:8.0%} "
            f"{grown / 2**20:6.0f} MiB{grown / limit_bytes:10.2f}"
        )


def benchmark(options: Namespace, report: Report) -> None:
    """Start the workers, run the rounds."""
    if options.quick:
        options.rounds, options.versions, options.cached, options.batches = 2, 20, 4, 20
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bray-clones-") as folder:
        pipes, processes = [], []
        for seed in range(WORKERS):
            pipe, other = context.Pipe()
            sizes = (options.versions // WORKERS, options.cached, options.batches)
            process = context.Process(target=work, args=(other, f"{folder}/{seed}", seed, *sizes))
            process.start()
            pipes.append(pipe)
            processes.append(process)
            other.close()
        nbytes, *_ = [pipe.recv() for pipe in pipes]
        limit = options.cached * nbytes
        print(
            f"{options.versions} versions of {nbytes / 2**20:.1f} MiB over {WORKERS} workers, "
            f"each may hold {options.cached} ({limit / 2**20:.0f} MiB); {ROWS} rows a batch"
        )
        found = list(rounds(pipes, options.rounds))
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join()
    show(found, limit)


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        argument("--versions", type=int, default=200),
        argument("--cached", type=int, default=25, help="versions that a worker may hold"),
        argument("--batches", type=int, default=200, help="of each case in a round"),
        argument("--quick", action="store_true", help="two short rounds of 20 versions"),
        rounds=5,
    )
