"""Gradients' averages over GPUs by NCCL: bytes a second of an all-reduce, beside the bus's.

    uv run python -m benchmarks.gpu.ranks

Where there is one GPU there is nothing to measure, and it says so.
"""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from benchmarks.harness import Report, main

SIZES_MB = (1, 7, 64, 512)


def work(rank: int, count: int, port: int, found: multiprocessing.SimpleQueue) -> None:
    """Be one rank; the first one tells the seconds of each size."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=count)
    times = {}
    for megabytes in SIZES_MB:
        block = torch.zeros(megabytes * 2**18, device="cuda")
        for _ in range(5):
            dist.all_reduce(block)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            dist.all_reduce(block)
        torch.cuda.synchronize()
        times[megabytes] = (time.perf_counter() - began) / 20
    if rank == 0:
        found.put(times)
    dist.destroy_process_group()


def benchmark(options: Namespace, report: Report) -> None:
    """Print the time and the rate of each size."""
    count = torch.cuda.device_count()
    report.figure("gpus", count)
    if count < 2:
        print(f"{count} GPU: averaging between several was not measured")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(work, (count, port, found), nprocs=count)
    for megabytes, seconds in found.get().items():
        rate = 2 * (count - 1) / count * megabytes * 2**20 / seconds
        report.figure(f"{megabytes} MB", {"seconds": seconds, "bytes_per_s": rate})
        print(f"{count} GPUs, {megabytes:4} MB: {seconds * 1e3:8.3f} ms, {rate / 1e9:6.1f} GB/s")


if __name__ == "__main__":
    main(__doc__, benchmark)
