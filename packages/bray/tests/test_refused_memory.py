"""Settings that no machine has the memory for, in the short form of a template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bray
from bray.algorithms import cql, crossq, sac
from bray.composition.part_errors import memory_errors_of
from bray_core.errors import CapacityError, ConfigError

WORDS = "expected settings that fit into this machine's memory: "


@pytest.mark.parametrize(
    ("name", "task", "settings"),
    [
        ("ppo", "CartPole-v1", {"hidden": [10**14]}),
        ("dqn", "CartPole-v1", {"batch_size": 10**14, "warmup_frames": 16, "num_envs": 2}),
    ],
)
def test_memory_that_the_system_refuses_is_told(
    tmp_path: Path, name: str, task: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(CapacityError, match=f"^{name}: {WORDS}"):
        bray.train(task, name, frames=256, trial=tmp_path / "t", **settings)


def test_a_gpus_memory_is_memory_and_another_error_passes() -> None:
    with (
        pytest.raises(CapacityError, match=rf"^ppo: {WORDS}CUDA out of memory"),
        memory_errors_of("ppo"),
    ):
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
    with pytest.raises(RuntimeError, match=r"^shapes do not fit"), memory_errors_of("ppo"):
        raise RuntimeError("shapes do not fit")


@pytest.mark.parametrize("algorithm", [sac.SAC, cql.CQL, crossq.CrossQ])
def test_an_entropy_is_a_number(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match="target_entropy: expected a finite number, got nan"):
        algorithm.of("Pendulum-v1", target_entropy=float("nan"))
