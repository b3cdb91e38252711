"""The server that hostile requests are sent to: `bray serve` with all its ports."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_harness import Target

from bray_algo import PolicyValueMLP
from bray_model import Model


@pytest.fixture(scope="session")
def policy_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose sessions `PolicyActor` answers, under the name `policy`."""
    folder = tmp_path_factory.mktemp("export") / "policy"
    torch.manual_seed(0)
    with Model(PolicyValueMLP(4, 2, hidden=(8,)), np.zeros((1, 4), np.float32)) as model:
        model.export(folder, actor={"name": "policy", "config": {"deterministic": True}})
    return folder


@pytest.fixture(scope="module")
def target(policy_export: Path) -> Iterator[Target]:
    """`bray serve` on free ports, without a token, and a witness that ticks all the while."""
    program = "import sys; from bray_core.cli import main; sys.exit(main(sys.argv[1:]))"
    ports = ("--tcp-port=0", "--http-port=0", "--admin-port=0")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", str(policy_export), *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    found = re.search(
        r"(?P<tcp>tcp://\S+) and (?P<http>http://\S+) and (?P<admin>http://\S+) \(admin\)",
        next(line for line in lines if line.startswith("listening")),
    )
    assert found is not None
    served = Target(process, found.groupdict())
    yield served
    served.close()
