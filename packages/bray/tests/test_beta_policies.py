"""`model.distribution: beta`: networks, refusal, softening, export, and a run of PPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms.ppo import PPO
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray_algo.distributions import outputs
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

PENDULUM = read_spaces("Pendulum-v1")
BETA = NetworkConfig(hidden=(8,), distribution="beta")


def spaces(action: Any) -> Spaces:
    return Spaces.parse("here", {"observation": {"shape": [3]}, "action": action})


def test_outputs_are_one_mode_between_the_bounds() -> None:
    made = make_policy(PENDULUM, BETA, 0)(torch.randn(4, 3))
    assert set(made) == {"alpha", "beta", "low", "high", "value"}
    assert {tuple(made[name].shape) for name in ("alpha", "beta", "low", "high")} == {(4, 1)}
    assert (made["alpha"] > 1).all()
    assert (made["beta"] > 1).all()
    assert made["high"].tolist() == [[2.0]] * 4


@pytest.mark.parametrize("memory_size", [0, 4])
def test_every_gradient_arrives(memory_size: int) -> None:
    both = spaces({"turn": {"discrete": 3}, "push": {"shape": [2], "low": -1, "high": 1}})
    config = NetworkConfig(hidden=(8,), distribution="beta", memory_size=memory_size)
    policy = make_policy(both, config, 0)
    state = (torch.zeros(4, policy.state_size),) if memory_size else ()
    made: Any = policy(torch.randn(4, 3), *state)
    action = torch.tensor([[0, -0.5, 1.0], [1, 0.0, 0.0], [2, 0.3, 0.9], [0, -1.0, 0.2]])
    log_prob, entropy = outputs.log_prob_and_entropy(made, action)
    (log_prob + entropy + made["value"]).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("distribution", ["beta", "squashed"])
def test_a_number_that_cannot_vary_has_a_density(distribution: Any) -> None:
    fixed = spaces({"shape": [2], "low": [0.0, -1.0], "high": [0.0, 1.0]})
    config = NetworkConfig(hidden=(8,), distribution=distribution)
    made: Any = make_policy(fixed, config, 0)(torch.randn(4, 3))
    assert outputs.log_prob(made, outputs.mode(made)).isfinite().all()
    assert outputs.entropy(made).isfinite().all()


def test_actions_without_bounds_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model.distribution: beta needs bounded actions, here has none for some"
    ):
        make_policy(spaces({"shape": [2]}), BETA, 0)


def test_a_softened_policy_is_its_power() -> None:
    policy: Any = make_policy(PENDULUM, BETA, 0)
    with torch.no_grad():
        policy.policy[-1].bias.copy_(torch.tensor([2.0, -1.0]))
    x = torch.linspace(-1.9, 1.9, 50)[:, None]
    seen = torch.ones(50, 3)
    sharp = outputs.log_prob(policy(seen), x)
    policy.soften(4.0)
    difference = (sharp / 4 - outputs.log_prob(policy(seen), x)).detach()
    torch.testing.assert_close(difference, difference[:1].expand(50), atol=1e-4, rtol=1e-4)


def test_an_export_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    row = np.array([0.5, -0.5, 2.0], np.float32)
    with Model(make_policy(PENDULUM, BETA, 0), row[None]) as model:
        model.export(tmp_path / "export")
        with Model(tmp_path / "export") as exported:
            got, want = exported(row), model(row)
    for name in ("alpha", "beta", "low", "high", "value"):
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)


@pytest.mark.parametrize("num_processes", [0, 1])
def test_a_run_of_ppo(num_processes: int, tmp_path: Path) -> None:
    goal = Goal(episode_return=1e6, evaluate_at=1e6, max_frames=256, evaluation_episodes=2)
    ppo = PPO.of(
        "Pendulum-v1",
        distribution="beta",
        hidden=(8,),
        num_envs=2,
        num_processes=num_processes,
        segment_length=8,
        steps_per_replay=64,
        minibatch_size=32,
    )
    with bray.init(tmp_path, "trial") as run:
        outcome = ppo.train(run, goal=goal, seed=1)
    assert outcome.frames >= 256
    assert outcome.version >= 2
