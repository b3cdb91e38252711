"""Two ranks with rows of other number and length take the step of one that has all rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import text_rank_checks
from ports import free_port

from bray.text.policy_gradient_config import VARIANTS

NAMES = ["dapo", "grpo", "dr_grpo", "reinforce++", "gspo", "ppo"]


@pytest.mark.long
def test_two_ranks_take_the_step_of_one() -> None:
    variants = [VARIANTS[name] for name in NAMES]
    folder = Path(__file__).parent
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(folder),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(folder / "text_rank_checks.py"), json.dumps(variants)],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [p.returncode for p in processes] == [0, 0], "\n".join(e for _, e in outputs)
    first, second = (json.loads(out) for out, _ in outputs)
    for name, one, other in zip(NAMES, first, second, strict=True):
        alone = text_rank_checks.step(VARIANTS[name], slice(0, 3))
        assert one == other, name
        assert one == pytest.approx(alone, abs=1e-6), name
