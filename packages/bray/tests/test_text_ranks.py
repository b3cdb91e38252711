"""Two ranks with rows of other number and length take the step of one that has all rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import text_rank_checks
from ports import free_port

from bray.text.policy_gradient_config import VARIANTS

NAMES = ["dapo", "grpo", "dr_grpo", "reinforce++", "gspo", "ppo"]
SPLIT: list[tuple[dict[str, Any], str]] = [
    (VARIANTS["dapo"], "uneven"),
    ({**VARIANTS["dapo"], "packed_tokens": 16}, "one has none"),
    ({**VARIANTS["gspo"], "gradient_checkpointing": True}, "uneven"),
    ({**VARIANTS["grpo"], "kl_coefficient": 0.1, "old_log_prob": "trainer"}, "one has none"),
    ({**VARIANTS["ppo"], "minibatches": 2}, "uneven"),
]
"""Settings of a Llama whose parameters are split, and which rank has what."""


def of_two_ranks(cases: list[Any], folder: Path) -> list[list[Any]]:
    """Return what each of two processes, started as torchrun does, prints of the cases."""
    file = folder / "cases.json"
    file.write_text(json.dumps(cases))
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(here),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(here / "text_rank_checks.py"), str(file)],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [p.returncode for p in processes] == [0, 0], "\n".join(e for _, e in outputs)
    return [json.loads(out) for out, _ in outputs]


@pytest.mark.long
def test_two_ranks_take_the_step_of_one(tmp_path: Path) -> None:
    cases = [(VARIANTS[name], "uneven", "sum") for name in NAMES]
    first, second = of_two_ranks(cases, tmp_path)
    for name, one, other in zip(NAMES, first, second, strict=True):
        alone = text_rank_checks.step(VARIANTS[name], [0, 1, 2])
        assert one == other, name
        assert one == pytest.approx(alone, abs=1e-6), name


@pytest.mark.long
def test_two_ranks_with_split_parameters_take_the_step_of_one(tmp_path: Path) -> None:
    cases = [({**settings, "shard": True}, groups, "llama") for settings, groups in SPLIT]
    first, second = of_two_ranks(cases, tmp_path)
    for (settings, _), one, other in zip(SPLIT, first, second, strict=True):
        minibatches = settings.get("minibatches", 1)
        assert one == other, settings
        if minibatches > 1:  # which rows are in the first one is drawn by each rank
            continue
        alone = text_rank_checks.step(settings, [0, 1, 2], "llama")
        assert one == pytest.approx(alone, abs=1e-5), settings
