"""PPO's gradients by hand, beside those that autograd finds of `ppo.loss`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bray_algo.gradients import ppo as ppo_gradients
from bray_algo.losses import ppo
from bray_algo.validation.switch import validating

SETTINGS: list[dict[str, Any]] = [
    {},
    {"clip": 0.05},
    {"entropy_coefficient": 0.01},
    {"value_coefficient": 2.0, "entropy_coefficient": 0.3, "clip": 0.4},
    {"value_clip": 0.2},
    {"value_clip": 5.0},
]


def columns(count: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ("log_prob", "entropy", "value", "old_log_prob", "advantage", "target")
    drawn = torch.randn(len(names), count, generator=generator, dtype=torch.float64)
    return dict(zip(names, drawn, strict=True))


def settings_of(given: dict[str, Any], count: int) -> dict[str, Any]:
    if "value_clip" not in given:
        return given
    return {**given, "old_value": torch.linspace(-1, 1, count, dtype=torch.float64)}


def differentiated(loss: Any, made: dict[str, Tensor], **settings: Any) -> Any:
    """Return a loss, its terms, and its gradients by the policy's columns."""
    leaves = {
        n: c.clone().requires_grad_(n in ("log_prob", "entropy", "value")) for n, c in made.items()
    }
    found, terms = loss(**leaves, **settings)
    found.backward()
    grads = [leaves[n].grad for n in ("log_prob", "entropy", "value")]
    zero = torch.zeros_like(made["value"])
    return found.detach(), terms, [zero if g is None else g for g in grads]


@pytest.mark.parametrize("given", SETTINGS)
@pytest.mark.parametrize("count", [1, 7, 128])
def test_the_gradients_are_those_of_autograd(given: dict[str, Any], count: int) -> None:
    made, settings = columns(count), settings_of(given, count)
    loss, terms, grads = differentiated(ppo.loss, made, **settings)
    ours, our_terms, our_grads = differentiated(ppo_gradients.loss, made, **settings)
    torch.testing.assert_close(ours, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_terms, terms, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_grads, grads, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", SETTINGS)
def test_the_gradients_are_those_of_small_differences(given: dict[str, Any]) -> None:
    made, settings = columns(9, seed=3), settings_of(given, 9)
    names = ("log_prob", "entropy", "value")
    rest = {name: column for name, column in made.items() if name not in names}

    def loss(*leaves: Tensor) -> Tensor:
        return ppo_gradients.loss(**dict(zip(names, leaves, strict=True)), **rest, **settings)[0]

    leaves = [made[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(loss, leaves)


def test_there_is_no_gradient_beyond_the_greatest_ratio_nor_at_a_tie() -> None:
    made = columns(4)
    made["log_prob"] = torch.tensor([30.0, 0.0, 0.0, -1.0], dtype=torch.float64)
    made["old_log_prob"] = torch.zeros(4, dtype=torch.float64)
    made["advantage"] = torch.tensor([-1.0, 1.0, -1.0, 0.0], dtype=torch.float64)
    _, _, grads = differentiated(ppo.loss, made)
    _, _, ours = differentiated(ppo_gradients.loss, made)
    torch.testing.assert_close(ours, grads, rtol=1e-12, atol=1e-12)
    assert ours[0][0] == 0


@pytest.mark.parametrize(
    "name", ["log_prob", "entropy", "value", "old_log_prob", "advantage", "target"]
)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_not_finite_is_named(name: str, bad: float) -> None:
    made = columns(5)
    made[name][2] = bad
    with pytest.raises(ValueError, match=rf"^{name}: expected finite numbers, got .* at \[2\]"):
        ppo_gradients.loss(**made)
    with validating(False):
        ppo_gradients.loss(**made)


def test_other_arguments_are_refused_as_by_the_loss() -> None:
    made = columns(5)
    with pytest.raises(ValueError, match=r"^clip: "):
        ppo_gradients.loss(**made, clip=0.0)
    with pytest.raises(ValueError, match=r"^value_coefficient: "):
        ppo_gradients.loss(**made, value_coefficient=-1.0)
    with pytest.raises(
        ValueError, match=r"^expected value_clip and old_value, got value_clip alone"
    ):
        ppo_gradients.loss(**made, value_clip=1.0)
    with pytest.raises(ValueError, match=r"^target: expected shape"):
        ppo_gradients.loss(**{**made, "target": made["target"][:3]})
