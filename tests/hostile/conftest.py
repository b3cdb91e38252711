"""The server that hostile requests are sent to: `bray serve` with all its ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_harness import WITNESS_TOKEN_VARIABLE, Target

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
    with _served(policy_export) as served:
        yield served


TOKEN = "hostile-tests"


@pytest.fixture(scope="module")
def guarded(policy_export: Path) -> Iterator[Target]:
    """The same with a token, which only the witness has, and room for 32 MiB in flight."""
    os.environ[WITNESS_TOKEN_VARIABLE] = TOKEN
    options = (f"--token-env={WITNESS_TOKEN_VARIABLE}", f"--max-bytes-in-flight={32 * 1024**2}")
    try:
        with _served(policy_export, *options) as served:
            yield served
    finally:
        del os.environ[WITNESS_TOKEN_VARIABLE]


@contextmanager
def _served(export: Path, *options: str) -> Iterator[Target]:
    program = "import sys; from bray_core.cli import main; sys.exit(main(sys.argv[1:]))"
    ports = ("--tcp-port=0", "--http-port=0", "--admin-port=0")
    process = subprocess.Popen(
        [sys.executable, "-c", program, "serve", str(export), *ports, *options],
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
