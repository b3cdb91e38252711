"""`torch.set_num_threads` holds in the thread that computes, as it does in the caller's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, ctypes
import torch
from bray_model import Model

OPENMP = next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line)

class Threads(torch.nn.Module):
    def forward(self, x):
        threads = ctypes.CDLL(OPENMP).omp_get_max_threads()  # before any operation of torch
        return torch.tensor([[float(threads)]] * len(x))

torch.set_num_threads(1)
model = Model(Threads(), torch.zeros(1, 1).numpy())
print(int(asyncio.run(model.forward(torch.zeros(1).numpy())).item()))
model.close()
"""


def test_the_inference_thread_uses_as_many_threads_as_torch_was_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
