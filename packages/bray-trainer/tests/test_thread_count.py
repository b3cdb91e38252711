"""`torch.set_num_threads` holds in the thread that trains, as it does in the caller's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes
import numpy as np
import torch
from bray_buffer import Buffer, BufferConfig
from bray_core import nested
from bray_trainer import Trainer

OPENMP = next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line)

class One(Trainer):
    def loss(self, batch, step):
        self.threads = ctypes.CDLL(OPENMP).omp_get_max_threads()  # before any operation of torch
        return self.module(batch["x"]).sum(), {}

    def should_pause(self):
        return True

torch.set_num_threads(1)
buffer = Buffer(nested.spec({"x": np.zeros(2, "f4")}), BufferConfig(batch_size=1))
buffer.push({"x": np.ones(2, "f4")})
trainer = One(torch.nn.Linear(2, 1), buffer)
trainer.start()
assert trainer.wait(60)
print(trainer.threads)
"""


def test_the_training_thread_uses_as_many_threads_as_torch_was_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
