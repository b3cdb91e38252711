from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bray_algo.losses import rnd

T, B = 6, 3


@given(st.integers(0, 1000), st.floats(0, 1))
def test_discounted_sums_and_their_carry(seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    error, length = rng.random((T, B)), rng.integers(1, T + 1, B)
    tensors = torch.tensor(error), torch.tensor(length)
    start = rng.random(B)
    sums, carry = rnd.discounted_sums(*tensors, gamma=gamma, carry=torch.tensor(start))
    for b in range(B):
        last = start[b]
        for t in range(length[b]):
            last = gamma * last + error[t, b]
            assert sums[t, b].item() == pytest.approx(last)
        assert carry[b].item() == pytest.approx(last)


def curiosity(size: int = 2) -> rnd.RandomNetworkDistillation:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, 8))

    return rnd.RandomNetworkDistillation(make(), make(), (size,))


def test_the_error_is_that_of_normalised_clipped_observations() -> None:
    module = curiosity()
    module.observations.update(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))
    got = module(torch.tensor([[1.5, 1e9]]))
    normal = torch.tensor([[0.5, 5.0]])
    want = (module.predictor(normal) - module.target(normal)).square().mean()
    assert got.item() == pytest.approx(want.item())


def test_what_was_seen_gets_boring_and_the_rest_does_not() -> None:
    torch.manual_seed(0)
    module = curiosity()
    seen, new = torch.rand(64, 2), torch.rand(64, 2) - 3
    module.observations.update(torch.cat([seen, new]))
    before = module(seen).mean().item()
    frozen = [parameter.clone() for parameter in module.target.parameters()]
    optimizer = torch.optim.Adam(
        [parameter for parameter in module.parameters() if parameter.requires_grad], lr=3e-3
    )
    for _ in range(150):
        optimizer.zero_grad()
        rnd.loss(module(seen))[0].backward()
        optimizer.step()
    assert module(seen).mean().item() < 0.05 * before
    assert module(new).mean().item() > 5 * module(seen).mean().item()
    for parameter, old in zip(module.target.parameters(), frozen, strict=True):
        assert torch.equal(parameter, old)


def test_the_bonus_is_scaled_by_the_deviation_of_its_sums() -> None:
    module, length = curiosity(), torch.tensor([T, 2, 4])
    observation = torch.randn(T, B, 2)
    observation[2:, 1] = math.nan  # padding
    bonus, carry = module.bonus(observation, length, gamma=0.5)
    sums, error = [], np.zeros((T, B))
    for b in range(B):
        last = 0.0
        for t in range(int(length[b])):
            error[t, b] = module(observation[t, b][None]).item()
            last = 0.5 * last + error[t, b]
            sums.append(last)
        assert carry[b].item() == pytest.approx(last, rel=1e-5)
    assert bonus.numpy() == pytest.approx(error / np.std(sums), rel=1e-4, abs=1e-6)
    assert not bonus.requires_grad
    module.bonus(observation, length, carry=carry)
    assert module.sums.num_rows.item() == 2 * (T + 2 + 4)
    module.eval()
    module.bonus(observation, length)
    assert module.sums.num_rows.item() == 2 * (T + 2 + 4)


def test_the_loss_counts_the_kept_rows() -> None:
    error = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    keep = torch.tensor([True, False, True])
    loss, terms = rnd.loss(error, keep)
    assert loss.item() == 3.5
    assert terms["error"].item() == 3.0
    assert rnd.loss(error, ~keep & keep)[0].item() == 0.0
    assert rnd.loss(error)[0].item() == 3.0
    assert torch.autograd.gradcheck(
        lambda x: rnd.loss(x, keep)[0], (error.detach().double().requires_grad_(),)
    )


def test_nonsense_is_refused() -> None:
    module = curiosity()
    with pytest.raises(ValueError, match=r"x: expected shape .*2.*, got \(4, 3\)"):
        module(torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"mask: expected bool \(4,\)"):
        module.observations.update(torch.zeros(4, 2), torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"length: expected shape \(3,\), got \(2,\)"):
        module.bonus(torch.zeros(T, B, 2), torch.ones(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"carry: expected shape \(3,\), got \(1,\)"):
        module.bonus(torch.zeros(T, B, 2), torch.ones(3, dtype=torch.int64), carry=torch.zeros(1))
    with pytest.raises(ValueError, match="gamma: expected 0 to 1, got 2"):
        module.bonus(torch.zeros(T, B, 2), torch.ones(3, dtype=torch.int64), gamma=2)
    with pytest.raises(ValueError, match=r"keep: expected bool \(3,\), got torch.bool \(2,\)"):
        rnd.loss(torch.zeros(3), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"error: expected \[N\], not empty"):
        rnd.loss(torch.zeros(0))
    odd = rnd.RandomNetworkDistillation(nn.Linear(2, 8), nn.Linear(2, 4), (2,))
    with pytest.raises(ValueError, match=r"predictor's features: expected shape \(1, 8\)"):
        odd(torch.zeros(1, 2))
