"""`model.autoregressive`: heads, refusals, softening, export, and runs of PPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bray
from bray.algorithms.ppo import PPO
from bray.goal import Goal
from bray.policies.conditional_choices import choice_order
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray_actor.policy.decoder import decoder_for
from bray_algo.distributions import outputs
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

TESTS = Path(__file__).parent
BOTH = {
    "kind": {"discrete": 3},
    "aim": {"multi_discrete": [2, 4]},
    "push": {"shape": [2], "low": -1, "high": 1},
}


def spaces(action: Any, observation: Any = None) -> Spaces:
    return Spaces.parse("here", {"observation": observation or {"shape": [3]}, "action": action})


def config(**settings: Any) -> NetworkConfig:
    return NetworkConfig(**{"hidden": (8,), "autoregressive": True, **settings})


def loud(policy: Any) -> Any:
    """The policy with outputs far from uniform ones."""
    last = policy.policy[-1] if hasattr(policy.policy, "__getitem__") else policy.policy
    with torch.no_grad():
        last.bias.copy_(torch.randn(len(last.bias), generator=torch.Generator().manual_seed(1)))
    return policy


def test_an_order_is_that_of_the_space_or_of_the_setting() -> None:
    assert choice_order(spaces(BOTH), ()) == [0, 1, 2]  # `aim` comes before `kind`
    assert choice_order(spaces(BOTH), ("kind", "aim")) == [2, 0, 1]
    assert choice_order(spaces({"multi_discrete": [2, 3]}), ()) == [0, 1]


def test_only_what_is_drawn_later_depends_on_a_choice() -> None:
    made = loud(make_policy(spaces(BOTH), config(action_order=("kind", "aim")), 0))(
        torch.ones(2, 3)
    )
    table = made["conditional"][0]
    assert made["order"].tolist() == [[2.0, 0.0, 1.0]] * 2
    assert table.shape == (9, 11)
    aim_0, aim_1, kind, reals = slice(0, 2), slice(2, 6), slice(6, 9), slice(9, 11)
    assert (table[kind, aim_0] != 0).all()
    assert (table[kind, aim_1] != 0).all()
    assert (table[aim_0, aim_1] != 0).all()
    assert (table[:, reals] != 0).all()
    assert (table[:, kind] == 0).all()
    assert (table[aim_1, aim_0] == 0).all()


@pytest.mark.parametrize("memory_size", [0, 4])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_every_gradient_arrives(memory_size: int, distribution: Any) -> None:
    policy: Any = make_policy(
        spaces(BOTH), config(memory_size=memory_size, distribution=distribution), 0
    )
    state = (torch.zeros(2, policy.state_size),) if memory_size else ()
    made: Any = policy(torch.randn(2, 3), *state)
    action = torch.tensor([[0, 3, 1, -0.5, 0.9], [1, 0, 2, 0.0, 0.1]])
    log_prob, entropy = outputs.log_prob_and_entropy(made, action)
    (log_prob + entropy + made["value"]).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_masks_hold() -> None:
    seen = {"x": {"shape": [3]}, "action_mask": {"multi_binary": 5}}
    policy = loud(make_policy(spaces({"multi_discrete": [2, 3]}, seen), config(), 0))
    mask = torch.tensor([[True, True, False, True, False]])
    made = policy({"x": torch.ones(1, 3), "action_mask": mask})
    for first in range(2):
        p = [outputs.log_prob(made, torch.tensor([[first, value]])).exp() for value in range(3)]
        assert p[0] == p[2] == 0.0
        assert p[1] > 0.0


def test_a_softened_policy_divides_what_depends_on_choices_too() -> None:
    policy = loud(make_policy(spaces(BOTH), config(), 0))
    sharp = policy(torch.ones(1, 3))
    policy.soften(4.0)
    soft = policy(torch.ones(1, 3))
    for before, after in zip(sharp["logits"], soft["logits"], strict=True):
        torch.testing.assert_close(after, before / 4)
    torch.testing.assert_close(soft["conditional"][..., :9], sharp["conditional"][..., :9] / 4)
    torch.testing.assert_close(soft["conditional"][..., 9:], sharp["conditional"][..., 9:])
    torch.testing.assert_close(soft["mean"], sharp["mean"])


@pytest.mark.parametrize(
    ("action", "settings", "message"),
    [
        (
            {"discrete": 3},
            {},
            r"model.autoregressive: expected an action of several choices, or of",
        ),
        ({"shape": [2]}, {}, r"here has 0 of the first and 2 of the second: leave it off"),
        (
            {"multi_discrete": [400, 400]},
            {},
            r"model.autoregressive: expected at most 262144 numbers of tables, got 800",
        ),
        (
            BOTH,
            {"distribution": "beta"},
            r"model.autoregressive: expected distribution gaussian or",
        ),
        (
            BOTH,
            {"action_order": ("kind", "push")},
            r"model.action_order: expected each choice of here once \(aim, kind; reals follow "
            r"them\), got kind, push",
        ),
    ],
)
def test_what_cannot_be_put_in_order_is_refused(
    action: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_policy(spaces(action), config(**settings), 0)


def test_an_order_without_the_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match="action_order: expected autoregressive=true beside it"):
        NetworkConfig(action_order=("kind",))
    with pytest.raises(ConfigError, match="memory_size: expected an even number"):
        NetworkConfig(memory="gtrxl", memory_size=3)


def test_an_export_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    row = np.array([0.5, -0.5, 2.0], np.float32)
    with Model(loud(make_policy(spaces(BOTH), config(), 0)), row[None]) as model:
        model.export(tmp_path / "export")
        with Model(tmp_path / "export") as exported:
            got, want = exported(row), model(row)
    for name in ("conditional", "order", "mean", "log_std", "value"):
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)
    assert decoder_for(got).mode(got).action.tolist() == pytest.approx(
        decoder_for(want).mode(want).action.tolist(), abs=1e-5
    )


@pytest.mark.parametrize(
    ("num_processes", "settings"),
    [(0, {}), (0, {"memory_size": 4}), (1, {"normalize_observation": True})],
)
def test_a_run_of_ppo(num_processes: int, settings: dict[str, Any], tmp_path: Path) -> None:
    goal = Goal(episode_return=1e6, evaluate_at=1e6, max_frames=256, evaluation_episodes=2)
    ppo = PPO.of(
        f"{TESTS / 'matching_tasks.py'}:timed_matching",
        autoregressive=True,
        action_order=("second", "first"),
        hidden=(8,),
        num_envs=2,
        num_processes=num_processes,
        segment_length=8,
        steps_per_replay=64,
        minibatch_size=32,
        **settings,
    )
    with bray.init(tmp_path, "trial") as run:
        outcome = ppo.train(run, goal=goal, seed=1)
    assert outcome.frames >= 256
    assert outcome.version >= 2
