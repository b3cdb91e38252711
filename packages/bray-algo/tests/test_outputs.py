"""Distributions by their outputs: one choice, several, reals, squashed reals, and choices and reals
at once, against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from bray_algo.distributions import outputs

HEADS = [(3,), (2, 4), (5, 1, 2)]
LEADS: list[tuple[int, ...]] = [(), (4,), (2, 3)]


def made(
    heads: tuple[int, ...],
    size: int,
    lead: tuple[int, ...],
    seed: int,
    *,
    is_squashed: bool = False,
) -> dict[str, Any]:
    """Outputs of a network, float64."""
    random = torch.Generator().manual_seed(seed)

    def normal(number: int) -> Tensor:
        return torch.randn(*lead, number, generator=random, dtype=torch.float64)

    found: dict[str, Any] = {}
    if heads:
        found["logits"] = [2 * normal(count) for count in heads]
    if size:
        found |= {"mean": normal(size), "log_std": 0.3 * normal(size) - 0.5}
    if is_squashed:
        low = normal(size)
        found |= {"low": low, "high": low + 0.5 + normal(size).abs()}
    return found


def reals_of(found: dict[str, Any]) -> Any:
    """The distribution of the reals by torch."""
    normal = Normal(found["mean"], found["log_std"].exp())
    if "low" not in found:
        return Independent(normal, 1)
    half = (found["high"] - found["low"]) / 2
    transforms = [TanhTransform(), AffineTransform(found["low"] + half, half)]
    return Independent(TransformedDistribution(normal, transforms), 1)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("is_squashed", [False, True])
def test_choices_and_reals_are_the_sum_of_both(
    heads: tuple[int, ...], lead: tuple[int, ...], is_squashed: bool
) -> None:
    found = made(heads, 2, lead, 1, is_squashed=is_squashed)
    torch.manual_seed(2)
    parts = [Categorical(logits=logits) for logits in found["logits"]]
    reals = reals_of(found)
    drawn = [part.sample() for part in parts]
    real = reals.sample()
    action = torch.cat([torch.stack(drawn, -1).double(), real], -1)
    wanted = sum(part.log_prob(one) for part, one in zip(parts, drawn, strict=True))
    wanted = wanted + reals.log_prob(real)
    torch.testing.assert_close(outputs.log_prob(found, action), wanted)
    together, entropy = outputs.log_prob_and_entropy(found, action)
    torch.testing.assert_close(together, wanted)
    of_parts = sum(part.entropy() for part in parts)
    of_reals = outputs.entropy({k: v for k, v in found.items() if k != "logits"})
    torch.testing.assert_close(entropy, of_parts + of_reals)
    torch.testing.assert_close(outputs.entropy(found), entropy)
    if not is_squashed:
        torch.testing.assert_close(of_reals, reals.entropy())


@given(st.integers(0, 1000), st.integers(1, 4))
def test_squashed_reals_against_torch(seed: int, size: int) -> None:
    found = made((), size, (5,), seed, is_squashed=True)
    reals = reals_of(found)
    torch.manual_seed(seed)
    action = reals.sample()
    torch.testing.assert_close(
        outputs.log_prob(found, action), reals.log_prob(action), rtol=1e-5, atol=1e-5
    )


def test_the_entropy_of_squashed_reals_is_that_of_many_draws() -> None:
    found = made((), 3, (2,), 3, is_squashed=True)
    reals = reals_of(found)
    torch.manual_seed(0)
    estimate = -reals.log_prob(reals.sample((200_000,))).mean(0)
    torch.testing.assert_close(outputs.entropy(found), estimate, atol=0.02, rtol=0)


@pytest.mark.parametrize("lead", LEADS)
def test_the_mode_of_each_part(lead: tuple[int, ...]) -> None:
    found = made((2, 4), 3, lead, 5)
    mode = outputs.mode(found)
    assert mode.shape == (*lead, 5)
    for k, logits in enumerate(found["logits"]):
        assert torch.equal(mode[..., k], logits.argmax(-1).float())
    torch.testing.assert_close(mode[..., 2:], found["mean"].float())
    choices = outputs.mode({"logits": found["logits"]})
    assert choices.dtype == torch.int64
    assert choices.shape == (*lead, 2)
    one = outputs.mode({"logits": found["logits"][1]})
    assert one.shape == lead


def test_the_mode_of_squashed_reals_lies_where_the_mean_is_squashed_to() -> None:
    found = made((3,), 2, (6,), 7, is_squashed=True)
    half = (found["high"] - found["low"]) / 2
    wanted = AffineTransform(found["low"] + half, half)(found["mean"].tanh())
    mode = outputs.mode(found)[..., 1:]
    torch.testing.assert_close(mode, wanted.float())
    assert (mode > found["low"]).all()
    assert (mode < found["high"]).all()


def test_gradients_reach_all_parts() -> None:
    found = made((2, 3), 2, (4,), 9, is_squashed=True)
    inputs = [*found["logits"], found["mean"], found["log_std"]]
    for leaf in inputs:
        leaf.requires_grad_()
    action = torch.cat([torch.ones(4, 2), (found["low"] + found["high"]) / 2], -1)
    log_prob, entropy = outputs.log_prob_and_entropy(found, action.double())
    (log_prob + entropy).sum().backward()
    for leaf in inputs:
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert leaf.grad.abs().sum() > 0
