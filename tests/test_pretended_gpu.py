"""Every algorithm trains on a device that is none, and refuses what a GPU refuses.

It stands for the GPU that these machines do not have: what would mix tensors of a GPU with those of
the CPU fails here, too. Streams, graphs and speed it cannot show; `pytest -m gpu` does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_on_a_gpu
import torch
from torch.utils import cpp_extension

pytestmark = pytest.mark.long

FOLDER = Path(__file__).with_name("pretended_gpu")
SHARES = 4


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    made = tmp_path_factory.mktemp("device") / "pretended_gpu.so"
    include = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = Path(torch.__file__).parent / "lib"
    command = ["g++", "-std=c++20", "-O0", "-fPIC", "-shared", *include]
    command += [str(FOLDER / "pretended_gpu.cpp"), f"-L{libraries}", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command, "-o", str(made)], check=True)
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_algorithm_trains_there_and_goes_on_there_and_elsewhere(
    library: Path, share: int
) -> None:
    names = list(test_on_a_gpu.ROWS)[share::SHARES]
    command = [sys.executable, str(FOLDER / "train.py"), str(library), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    trained = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("ok ")]
    assert trained == names, done.stderr[-4000:]
