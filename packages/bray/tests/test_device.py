"""What is trained on a GPU; tests/test_on_a_gpu.py trains there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.registry import names
from bray.templates.loading import compose
from bray.training.algorithm import load_algorithm
from bray.training.device import num_gpus, playing_device
from bray_core.errors import ConfigError

WITHOUT = {"es"}
"""Its gradient is made of what many workers' CPUs played."""


@pytest.mark.parametrize("name", sorted(set(names()) - WITHOUT))
def test_every_algorithm_with_a_gradient_is_trained_where_a_setting_says(name: str) -> None:
    algorithm = load_algorithm(name)
    for device, gpus in (("cpu", 0.0), ("cuda", 1.0)):
        config = algorithm.of(algorithm.example, device=device).config
        assert config.device == device
        assert num_gpus(config) == gpus, "on Ray"
        if name not in ("dpo", "grpo", "sft"):  # models of language may have several GPUs
            assert playing_device(config, is_local=True) == device
            assert playing_device(config, is_local=False) == "cpu"
            with pytest.raises(ConfigError, match=r"device: expected one of cpu, cuda, got 'gpu'"):
                algorithm.of(algorithm.example, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("name", "task"), [("sac", "Pendulum-v1"), ("qmix", "two-step"), ("alphazero", "tic-tac-toe")]
)
def test_without_a_gpu_it_is_refused(name: str, task: str, tmp_path: Path) -> None:
    template = compose(name, task, ["device=cuda"])
    launch = Launch(project=tmp_path, trial="there")
    with pytest.raises(ConfigError, match=r"device='cuda': torch .* finds no GPU that it can use"):
        run_template(template, launch.open, completed_goal(template))
