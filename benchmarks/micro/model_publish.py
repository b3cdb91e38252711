"""How long new weights take to reach four readers on a node.

    uv run python -m benchmarks.micro.model_publish

One process publishes, four others read into memory of their own; the time runs until the last has
it. Beside it, in the same round: the block copied once in and once out for each reader by one
thread (what cannot be avoided, one after another), `torch.save` and four times `torch.load` of the
state dict, and `ray.put` and four times `ray.get` with a copy out. Medians of the rounds.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import numpy as np
import torch
from benchmarks.harness import Report, in_turns, itself, main

from bray_model.distributed.shared_weights import WeightsReader, WeightsWriter
from bray_model.versions.weights import WeightsStamp

READERS = 4
SIZES_MB = (7, 100)
_LOOK_S = 0.0002


def read(path: str) -> None:
    """Follow a writer; say so after each version."""
    reader = WeightsReader(path)
    out = np.zeros(reader.nbytes, np.uint8)
    last = -1
    sys.stdout.write("r")
    sys.stdout.flush()
    while True:
        if reader.version <= last:
            time.sleep(_LOOK_S)
            continue
        (_, last, _), _ = reader.read(out)
        sys.stdout.write("r")
        sys.stdout.flush()


class Bray:
    """A writer and its readers."""

    def __init__(self, nbytes: int) -> None:
        self.writer = WeightsWriter(nbytes)
        command = itself(__file__, "--read", self.writer.path)
        self.readers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) for _ in range(READERS)
        ]
        self.version = -1
        self._await()

    def _await(self) -> None:
        for reader in self.readers:
            assert reader.stdout is not None
            if reader.stdout.read(1) != b"r":
                raise SystemExit("a reader died")

    def publish(self, block: np.ndarray) -> None:
        """Return when all have it."""
        self.version += 1
        self.writer.publish(WeightsStamp.of(self.version), block)
        self._await()

    def close(self) -> None:
        """End all."""
        for reader in self.readers:
            reader.kill()
            reader.communicate()
        self.writer.close()


def copies(outs: list[np.ndarray], block: np.ndarray) -> None:
    """Copy a block to each."""
    for out in outs:
        np.copyto(out, block)


def by_torch(state: dict[str, torch.Tensor]) -> None:
    """Save once, load once for each reader."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for _ in range(READERS):
        buffer.seek(0)
        torch.load(buffer, weights_only=True)


def by_ray(arrays: dict[str, np.ndarray], outs: dict[str, np.ndarray]) -> None:
    """Put once; get and copy out once for each reader."""
    import ray

    reference = ray.put(arrays)
    for _ in range(READERS):
        for name, array in ray.get(reference).items():
            np.copyto(outs[name], array)


def timed(work: Callable[[], None]) -> float:
    """Return the milliseconds of one call."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def benchmark(options: Namespace, report: Report) -> None:
    """Print the table."""
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    print(f"ms until {READERS} readers have new weights (medians of {options.rounds} rounds)")
    for size_mb in SIZES_MB:
        parts = 20
        each = size_mb * 1_000_000 // 4 // parts
        arrays = {f"layer{i}": np.random.rand(each).astype(np.float32) for i in range(parts)}
        block = np.concatenate([array.view(np.uint8) for array in arrays.values()])
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        outs = {name: np.zeros_like(array) for name, array in arrays.items()}
        spare = [np.zeros_like(block) for _ in range(READERS + 1)]
        bray = Bray(block.nbytes)
        ways: dict[str, Callable[[], None]] = {
            "copies alone": partial(copies, spare, block),
            "bray, shared memory": partial(bray.publish, block),
            "torch.save, torch.load": partial(by_torch, state),
            "ray.put, ray.get": partial(by_ray, arrays, outs),
        }
        spent = {name: lambda work=work: timed(work) for name, work in ways.items()}
        found = in_turns(spent, options.rounds, warm_up=3)  # the first touch memory that is new
        bray.close()
        report.table(f"{size_mb} MB", found, unit="ms", base="copies alone")
    ray.shutdown()


if __name__ == "__main__":
    main(__doc__, benchmark, rounds=50, inner={"--read": read})
