"""PPO's step by hand, beside the one through autograd: same gradients, same training."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bray.algorithms import ppo
from bray.algorithms.rl_imitation import ImitatingTrainer
from bray.policies.config import NetworkConfig
from bray.policies.networks import VectorPolicy, make_policy
from bray.training.by_hand import choice_ppo
from bray.training.by_hand.perceptron_ppo import PerceptronPPO, fits
from bray.training.on_policy import segment_layout
from bray_core import nested
from bray_core.layout import Packed
from bray_core.spaces import Spaces
from bray_trainer.flat_adam import FlatAdam

BOX = {"shape": [3]}
REALS = {"shape": [2], "low": -1.0, "high": 1.0}
ACTIONS: dict[str, Any] = {
    "choice": {"discrete": 4},
    "choices": {"kind": {"discrete": 2}, "target": {"discrete": 3}},
    "reals": REALS,
}
LENGTH = 8


def spaces_of(action: Any, observation: Any = BOX) -> Spaces:
    return Spaces.parse("none", {"observation": observation, "action": action})


class Feed:
    """A buffer of replays of noise, the same for the same seed."""

    def __init__(self, spaces: Spaces, lengths: list[int]) -> None:
        self.layout = segment_layout(spaces, LENGTH, 0)
        self.lengths = lengths
        self.popped = 0

    def pop(self, timeout_s: float | None = None) -> Packed:
        rng = np.random.default_rng(self.popped)
        self.popped += 1
        views = self.layout.views(block := self.layout.empty(len(self.lengths)))
        for name in ("observation", "final_observation", "value", "reward"):
            for leaf in nested.flatten(views[name]).values():
                is_mask = leaf.dtype.kind == "i"
                leaf[...] = 1 if is_mask else rng.normal(size=leaf.shape)
        action = views["action"]
        is_whole = action.dtype.kind == "i"
        action[...] = (
            rng.integers(0, 2, action.shape) if is_whole else rng.normal(size=action.shape)
        )
        views["log_prob"][...] = -1.0 + 0.3 * rng.normal(size=views["log_prob"].shape)
        views["length"][...] = self.lengths
        return Packed(self.layout, block)


class ByAutograd(ppo.PPOTrainer):
    def gradients(self, batch: Any, step: int) -> None:
        """Leave them to autograd."""


def made(
    kind: type[ppo.PPOTrainer],
    spaces: Spaces,
    lengths: list[int],
    network: dict[str, Any] | None = None,
    **part: Any,
) -> Any:
    return kind(
        make_policy(spaces, NetworkConfig(**{"hidden": (16, 16), **(network or {})}), seed=0),
        Feed(spaces, lengths),
        model=None,  # type: ignore[arg-type]
        part=ppo.PPO.of("CartPole-v1", **part).config,
        seed=0,
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each call whether the gradients were found by hand."""
    noted: list[bool] = []
    by_hand = PerceptronPPO.__call__

    def noting(self: PerceptronPPO, *args: Any, **settings: Any) -> Any:
        found = by_hand(self, *args, **settings)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(PerceptronPPO, "__call__", noting)
    return noted


@pytest.mark.parametrize(
    ("lengths", "part"),
    [
        ([8, 8, 8, 8], {"minibatch_size": 8}),
        ([8, 3, 5], {"minibatch_size": 7, "entropy_coefficient": 0.05, "clip": 0.05}),
        ([4, 1], {"minibatch_size": 1, "value_coefficient": 2.0}),
        ([8, 8], {"minibatch_size": 64, "anneal_frames": 100, "normalize_reward": False}),
    ],
)
@pytest.mark.parametrize("action", list(ACTIONS))
def test_both_ways_train_alike(
    action: str, lengths: list[int], part: dict[str, Any], asked: list[bool]
) -> None:
    spaces = spaces_of(ACTIONS[action])
    part = {"epochs": 3, **part}
    ours, theirs = (made(kind, spaces, lengths, **part) for kind in (ppo.PPOTrainer, ByAutograd))
    for replays in (1, 3):
        for trainer in (ours, theirs):
            trainer.run(replays, checkpoint=False)
        torch.testing.assert_close(
            ours.module.state_dict(), theirs.module.state_dict(), rtol=1e-5, atol=2e-6
        )
    assert asked
    assert all(asked)
    figures = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm")
    told, wanted = ours.progress(), theirs.progress()
    assert ours.steps == theirs.steps > 0
    assert [told[name] for name in figures] == pytest.approx(
        [wanted[name] for name in figures], rel=1e-3, abs=1e-5
    )
    assert told["clip_fraction"] == pytest.approx(wanted["clip_fraction"], abs=0.02)


class InDouble(PerceptronPPO):
    """Reads observations in float64, which networks bring to float32."""

    def _seen(self, observation: Any) -> Tensor:
        return super()._seen(observation).double()


@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("rows", [1, 5])
def test_gradients_agree_in_float64(action: str, rows: int) -> None:
    trainer = made(ByAutograd, spaces_of(ACTIONS[action]), [8, 8], normalize_reward=False)
    batch = next(trainer.handle(trainer.buffer.pop()))
    module = trainer.module.double()
    batch = {
        name: leaf.double() if leaf.is_floating_point() else leaf for name, leaf in batch.items()
    }
    batch = {name: leaf[:rows] for name, leaf in batch.items()}
    batch["advantage"] = torch.linspace(-1, 1, rows, dtype=torch.float64)
    settings = {"clip": 0.2, "value_coefficient": 0.5, "entropy_coefficient": 0.02}
    by_hand = InDouble(module, None)
    found = by_hand(batch, **settings)
    assert found is not None
    ours = [parameter.grad.clone() for parameter in module.parameters()]

    def loss() -> float:
        again = by_hand(batch, **settings)
        assert again is not None
        return float(again[1].loss)

    for parameter, gradient in zip(module.parameters(), ours, strict=True):
        flat, step = parameter.data.view(-1), 1e-6
        for index in range(0, flat.numel(), max(1, flat.numel() // 5)):
            kept = float(flat[index])
            flat[index] = kept + step
            above = loss()
            flat[index] = kept - step
            below = loss()
            flat[index] = kept
            assert (above - below) / (2 * step) == pytest.approx(
                float(gradient.view(-1)[index]), rel=1e-5, abs=1e-8
            )


def test_what_is_not_the_default_perceptrons_goes_through_autograd(asked: list[bool]) -> None:
    masked = {"observation": BOX, "action_mask": {"shape": [4], "dtype": "int8"}}
    spaces = spaces_of(ACTIONS["choice"], masked)
    trainer = made(ppo.PPOTrainer, spaces, [8, 8], minibatch_size=8, epochs=1)
    trainer.run(1, checkpoint=False)
    assert not any(asked)
    assert trainer.steps == 2


@pytest.mark.parametrize(
    ("action", "network"),
    [
        ("reals", {"distribution": "squashed"}),
        ("reals", {"distribution": "beta"}),
        ("choices", {"autoregressive": True}),
        ("choice", {"memory_size": 4}),
    ],
)
def test_what_does_not_fit(action: str, network: dict[str, Any]) -> None:
    policy = make_policy(spaces_of(ACTIONS[action]), NetworkConfig(**network), seed=0)
    assert not fits(policy)


def test_frozen_or_changed_policies_do_not_fit() -> None:
    policy = make_policy(spaces_of(ACTIONS["choice"]), NetworkConfig(), seed=0)
    assert isinstance(policy, VectorPolicy)
    assert fits(policy)
    assert not fits(copy.deepcopy(policy).double())
    assert not fits(copy.deepcopy(policy).requires_grad_(False))
    changed = copy.deepcopy(policy)
    changed.policy[1] = torch.nn.GELU()
    assert not fits(changed)


def test_a_subclass_with_a_loss_of_its_own_is_asked_for_it() -> None:
    class Own(ppo.PPOTrainer):
        def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
            loss, terms = super().loss(batch, step)
            return 2 * loss, terms

    spaces = spaces_of(ACTIONS["choice"])
    trainer = made(Own, spaces, [8], minibatch_size=8, epochs=1)
    assert trainer.gradients(next(trainer.handle(trainer.buffer.pop())), 0) is None
    assert ImitatingTrainer.loss is not ppo.PPOTrainer.loss


def test_normalised_observations_train_alike(asked: list[bool]) -> None:
    spaces, network = spaces_of(ACTIONS["choice"]), {"normalize_observation": True}
    ours, theirs = (
        made(kind, spaces, [8, 8], network, minibatch_size=8, epochs=2)
        for kind in (ppo.PPOTrainer, ByAutograd)
    )
    for trainer in (ours, theirs):
        trainer.run(3, checkpoint=False)
    assert asked
    assert all(asked)
    torch.testing.assert_close(
        ours.module.state_dict(), theirs.module.state_dict(), rtol=1e-5, atol=2e-6
    )


def test_a_divergence_that_is_too_far_ends_the_passes(asked: list[bool]) -> None:
    spaces = spaces_of(ACTIONS["choice"])
    trainer = made(ppo.PPOTrainer, spaces, [8, 8], minibatch_size=8, epochs=5, target_kl=1e-9)
    trainer.run(1, checkpoint=False)
    assert trainer.steps == len(asked) == 1


def test_a_number_that_is_not_finite_is_named_as_by_autograd() -> None:
    trainer = made(ppo.PPOTrainer, spaces_of(ACTIONS["choice"]), [8, 8], minibatch_size=8)
    batch = next(trainer.handle(trainer.buffer.pop()))
    batch["return"] = torch.full_like(batch["return"], torch.nan)
    assert trainer.gradients(batch, 0) is None
    with pytest.raises(ValueError, match=r"^target: expected finite numbers, got nan"):
        trainer.loss(batch, 0)


class Own(VectorPolicy):
    """A policy that bray knows nothing of."""


class Illegal(Own):
    """Forbids its last choice by a logit of −inf."""

    def forward(self, observation: Any) -> dict[str, Any]:
        outputs = super().forward(observation)
        logits = outputs["logits"]
        no = torch.zeros_like(logits)
        no[:, -1] = -torch.inf
        return {**outputs, "logits": logits + no}


def own(kind: type[ppo.PPOTrainer], policy: type[VectorPolicy], action: str, **part: Any) -> Any:
    spaces = spaces_of(ACTIONS[action])
    torch.manual_seed(0)
    module = policy(spaces, NetworkConfig(hidden=(16, 16)))
    part = {"minibatch_size": 8, "epochs": 3, **part}
    config = ppo.PPO.of("CartPole-v1", **part).config
    model: Any = None
    return kind(module, Feed(spaces, [8, 5, 8]), model=model, part=config, seed=0)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each call whether what lies behind a module was found by hand."""
    noted: list[bool] = []
    add = choice_ppo.add_gradients

    def noting(*args: Any, **settings: Any) -> Any:
        found = add(*args, **settings)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(choice_ppo, "add_gradients", noting)
    return noted


@pytest.mark.parametrize("part", [{}, {"entropy_coefficient": 0.05, "clip": 0.05}])
def test_other_modules_of_one_choice_train_alike(part: dict[str, Any], behind: list[bool]) -> None:
    ours, theirs = (own(kind, Own, "choice", **part) for kind in (ppo.PPOTrainer, ByAutograd))
    for trainer in (ours, theirs):
        trainer.run(3, checkpoint=False)
    torch.testing.assert_close(
        ours.module.state_dict(), theirs.module.state_dict(), rtol=1e-5, atol=2e-6
    )
    assert behind == [True] * (ours.steps - 1), "all but the first, by which it is known"
    for name in ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm"):
        assert ours.progress()[name] == pytest.approx(theirs.progress()[name], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("action", ["choices", "reals"])
def test_other_modules_of_other_actions_are_left_to_autograd(
    action: str, behind: list[bool]
) -> None:
    own(ppo.PPOTrainer, Own, action).run(1, checkpoint=False)
    assert not behind


def test_a_module_with_logits_of_minus_infinity_is_left_to_autograd(behind: list[bool]) -> None:
    trainer = own(ppo.PPOTrainer, Illegal, "choice")
    trainer.run(2, checkpoint=False)
    assert behind == [False], "asked once"
    assert trainer.steps == 18


def test_a_number_that_is_not_finite_is_named_behind_another_module(behind: list[bool]) -> None:
    trainer = own(ppo.PPOTrainer, Own, "choice")
    trainer.run(1, checkpoint=False)
    batch = next(trainer.handle(trainer.buffer.pop()))
    batch["return"] = torch.full_like(batch["return"], torch.nan)
    assert trainer.gradients(batch, 0) is None
    with pytest.raises(ValueError, match=r"^target: expected finite numbers, got nan"):
        trainer.loss(batch, 0)


def test_gradients_lie_where_the_optimiser_wants_them() -> None:
    trainer = made(ppo.PPOTrainer, spaces_of(ACTIONS["reals"]), [8, 8], minibatch_size=8)
    assert isinstance(trainer.optimizer, FlatAdam)
    trainer.gradients(next(trainer.handle(trainer.buffer.pop())), 0)
    grads = [parameter.grad for parameter in trainer.module.parameters()]
    assert all(map(lambda one, other: one is other, grads, trainer.optimizer.gradient_views))
