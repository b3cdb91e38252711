"""Random messages of the Open Inference Protocol: each is answered, none costs the server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzz_open_inference import fuzz
from hostile_harness import Target

from bray_model import Model

pytestmark = pytest.mark.long

COUNT = int(os.environ.get("FUZZ_COUNT", "3000"))
"""Messages; before a release 100,000."""
MAX_GROWTH_BYTES = 30 * 1024**2


class Recurrent(torch.nn.Module):
    """A GRU cell; its state is an input and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 4)

    def forward(self, row: torch.Tensor, state: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the next state and its sum."""
        state = self.cell(row, state)
        return {"sum": state.sum(-1), "state": state}


@pytest.fixture(scope="module")
def two_models(policy_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """`bray serve` of the policy and of a recurrent model, and a witness that plays the policy."""
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(policy_export, folder / "policy")
    example = (np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32))
    with Model(Recurrent(), example, name="gru", state={"inputs[1]": "outputs/state"}) as model:
        model.export(folder / "gru")
    program = "import sys; from bray_core.cli import main; sys.exit(main(sys.argv[1:]))"
    options = ("--model=model", "--tcp-port=0", "--http-port=0")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", str(folder), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    listening = next(line for line in lines if line.startswith("listening"))
    found = re.search(r"(?P<tcp>tcp://\S+) and (?P<http>http://\S+)", listening)
    assert found is not None
    served = Target(process, found.groupdict())
    yield served
    served.close()


def resident_bytes(pid: int) -> int:
    """Return what a process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_random_messages_are_answered_and_leave_nothing(two_models: Target) -> None:
    pid, address = two_models.process.pid, two_models.addresses["http"]
    fuzz(address, 500, seed=1)  # pools, caches
    before = resident_bytes(pid)
    statuses = fuzz(address, COUNT, seed=2)
    assert two_models.process.poll() is None
    assert resident_bytes(pid) - before < MAX_GROWTH_BYTES
    assert two_models._longest_stall()[1] < 0.1, "the witness was answered all the while"
    assert statuses[200] > COUNT // 10, "they are near enough to proper ones"
    assert statuses[400] > COUNT // 10
