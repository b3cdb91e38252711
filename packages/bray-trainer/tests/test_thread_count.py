"""`torch.set_num_threads` holds in the thread that trains, as it does in the caller's; so does
`TrainerConfig.threads`, in both."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bray_core.errors import ConfigError
from bray_trainer import TrainerConfig

PROGRAM = """
import ctypes
import numpy as np
import torch
from bray_buffer import Buffer, BufferConfig
from bray_core import nested
from bray_trainer import Trainer, TrainerConfig

OPENMP = next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line)

class One(Trainer):
    def loss(self, batch, step):
        self.threads = ctypes.CDLL(OPENMP).omp_get_max_threads()  # before any operation of torch
        return self.module(batch["x"]).sum(), {}

    def should_pause(self):
        return True

torch.set_num_threads(1)
buffer = Buffer(nested.spec({"x": np.zeros(2, "f4")}), BufferConfig(batch_size=1))
trainer = One(torch.nn.Linear(2, 1), buffer, config=TrainerConfig(threads=%s))
buffer.push({"x": np.ones(2, "f4")})
trainer.start()
assert trainer.wait(60)
in_loop = trainer.threads
torch.set_num_threads(1)
buffer.push({"x": np.ones(2, "f4")})
trainer.run(1)
print(in_loop, trainer.threads)
"""


@pytest.mark.long
@pytest.mark.parametrize(("threads", "expected"), [(None, "1 1\n"), (2, "2 2\n")])
def test_training_uses_as_many_threads_as_torch_or_the_trainer_was_told(
    threads: int | None, expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % threads],
        env={"OMP_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_no_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"threads: expected .*, got 0"):
        TrainerConfig(threads=0)
