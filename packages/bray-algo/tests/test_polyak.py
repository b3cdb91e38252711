from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from bray_algo.networks.noisy import NoisyLinear
from bray_algo.networks.polyak import polyak_


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    pair = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    pair[1](torch.randn(8, 3))
    return pair[0], pair[1]


@pytest.mark.parametrize("tau", [1e-3, 0.5, 1.0])
def test_parameters_move_and_statistics_are_copied(tau: float) -> None:
    target, source = networks()
    before = copy.deepcopy(target)
    polyak_(target, source, tau)
    rows = zip(target.parameters(), before.parameters(), source.parameters(), strict=True)
    for got, old, new in rows:
        assert torch.allclose(got, (1 - tau) * old + tau * new)
    for got, new in zip(target.buffers(), source.buffers(), strict=True):
        assert torch.equal(got, new)


def test_many_steps_reach_the_source() -> None:
    target, source = networks()
    start = (target[0].weight - source[0].weight).abs().max().item()
    for _ in range(200):
        polyak_(target, source, 0.05)
    apart = (target[0].weight - source[0].weight).abs().max().item()
    assert apart == pytest.approx(start * 0.95**200, rel=0.2, abs=2e-6)


def test_a_full_copy_forgets_everything_even_nan() -> None:
    target, source = networks()
    with torch.no_grad():
        target[0].weight.fill_(math.nan)
    polyak_(target, source, 1.0)
    assert torch.equal(target[0].weight, source[0].weight)


def test_noise_that_is_not_saved_stays_the_targets_own() -> None:
    target, source = NoisyLinear(3, 2), NoisyLinear(3, 2)
    noise = target.input_noise.clone()
    polyak_(target, source, 0.5)
    assert torch.equal(target.input_noise, noise)


def test_tied_weights_move_once() -> None:
    target, source = (nn.ModuleList([nn.Linear(2, 2)] * 2) for _ in range(2))
    want = (target[0].weight + source[0].weight).detach() / 2  # type: ignore[operator]
    polyak_(target, source, 0.5)
    torch.testing.assert_close(target[0].weight, want, rtol=0, atol=1e-6)


def test_nonsense_is_refused() -> None:
    target, source = networks()
    for tau in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"tau: expected above 0 to 1, got {tau}"):
            polyak_(target, source, tau)
    with pytest.raises(ValueError, match=r"expected the same tensors, got \['1\.bias'"):
        polyak_(target, source[:1], 0.5)
    with pytest.raises(ValueError, match=r"weight: expected shape \(2, 4\) in the target"):
        polyak_(nn.Linear(3, 2), nn.Linear(4, 2), 0.5)
