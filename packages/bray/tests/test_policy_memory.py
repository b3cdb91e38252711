"""A gated Transformer-XL as a policy's memory: one vector, from step to step as over a segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bray
from bray.algorithms import ppo
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources.environments import read_spaces
from bray_core.errors import ConfigError
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

RECALL = "bray.sources.tasks:Recall-v0"
B, T, LAYERS, LENGTH, SIZE = 4, 9, 2, 3, 6
STATE = LAYERS * LENGTH * SIZE + LENGTH


@pytest.fixture
def policy() -> Any:
    """Return a policy far from uniform, whose memory is shorter than a segment."""
    settings = {"memory_size": SIZE, "memory_length": LENGTH, "memory_layers": LAYERS}
    config = NetworkConfig(hidden=(8,), memory="gtrxl", **settings)
    torch.manual_seed(1)
    made: Any = make_policy(read_spaces(RECALL), config, seed=1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def step_by_step(policy: Any, observation: Tensor, state: Tensor) -> list[dict[str, Tensor]]:
    """Return the outputs of each step, the state of one being the input of the next."""
    found = []
    for seen in observation:
        found.append({name: leaf.detach() for name, leaf in policy(seen, state).items()})
        state = found[-1]["state"]
    return found


def test_one_step_at_a_time_is_a_whole_segment(policy: Any) -> None:
    observation, zeros = torch.rand(T, B, 9), torch.zeros(B, policy.state_size)
    before = step_by_step(policy, torch.rand(2, B, 9), zeros)[-1]["state"]  # fills it in part
    before[0] = 0.0  # one begins its episode here
    length = torch.tensor([T, 3, 1, 7])
    whole = policy.replay(observation, before, length)
    steps = step_by_step(policy, observation, before)
    for name in ("logits", "value"):
        acted = torch.stack([step[name] for step in steps])
        for column, valid in enumerate(length.tolist()):
            torch.testing.assert_close(
                whole[name][:valid, column], acted[:valid, column], atol=1e-6, rtol=1e-5
            )


def test_zeros_remember_nothing_and_each_step_fills_one_entry(policy: Any) -> None:
    assert policy.state_size == STATE
    seen = torch.rand(T, 1, 9)
    steps = step_by_step(policy, seen, torch.zeros(1, STATE))
    flags = torch.stack([step["state"][0, -LENGTH:] for step in steps])
    assert flags.sum(-1).tolist() == [1, 2, *[3] * (T - 2)]
    noise = torch.rand(1, STATE)  # entries not marked as filled are not looked at
    noise[:, -LENGTH:] = 0.0
    torch.testing.assert_close(policy(seen[0], noise)["value"].detach(), steps[0]["value"])
    filled = policy(seen[0], steps[-1]["state"])["value"]
    assert float((filled - steps[0]["value"]).detach().abs()) > 1e-3


@pytest.mark.parametrize("size", [4, 6])
def test_every_gradient_arrives(size: int) -> None:
    config = NetworkConfig(hidden=(8,), memory="gtrxl", memory_size=size)
    policy: Any = make_policy(read_spaces(RECALL), config, seed=1)
    outputs = policy.replay(
        torch.rand(T, B, 9), torch.zeros(B, policy.state_size), torch.full((B,), T)
    )
    (outputs["value"].sum() + outputs["logits"].square().sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name


def test_an_export_remembers_as_torch_does(policy: Any, tmp_path: Path) -> None:
    inputs = example_inputs(read_spaces(RECALL), policy.state_size)
    with Model(policy, inputs) as model:
        model.export(tmp_path / "export")  # compares one step with torch
    observation = torch.rand(T, B, 9)
    wanted = step_by_step(policy, observation, torch.zeros(B, policy.state_size))
    state = np.zeros((B, policy.state_size), np.float32)
    with Model(tmp_path / "export") as served:
        for seen, step in zip(observation.numpy(), wanted, strict=True):
            outputs: Any = served(seen, state, batch=True)
            state = outputs["state"]
            for name, leaf in step.items():
                np.testing.assert_allclose(outputs[name], leaf, atol=1e-5)


def test_a_trial_with_it_goes_on(tmp_path: Path) -> None:
    settings = {"memory": "gtrxl", "memory_size": 4, "steps_per_replay": 64, "hidden": (8,)}
    algorithm = ppo.PPO.of(RECALL, num_envs=2, epochs=1, segment_length=8, **settings)
    versions = []
    for frames in (150, 400):
        goal = Goal(evaluate_at=1e9, max_frames=frames, evaluation_episodes=1)
        with bray.init(tmp_path, "trial") as run:
            versions.append(algorithm.train(run, goal=goal, seed=1).version)
    assert versions[1] > versions[0] > 0


def test_a_width_that_is_odd_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="memory_size: expected an even number for memory=gtrxl, got 5"
    ):
        NetworkConfig(memory="gtrxl", memory_size=5)
    assert NetworkConfig(memory="gtrxl").memory_size == 0
    with pytest.raises(ConfigError, match="memory_length: expected 1 or more"):
        NetworkConfig(memory="gtrxl", memory_size=4, memory_length=0)
