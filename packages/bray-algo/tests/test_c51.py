from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.losses import c51
from bray_algo.validation import validating

N, A, K = 5, 3, 7


def support(low: float, high: float, num_atoms: int) -> torch.Tensor:
    return torch.linspace(low, high, num_atoms, dtype=torch.float64)  # float32 would show


def algorithm_1(p: Any, reward: float, discount: float, z: Any) -> Any:
    """Bellemare et al. 2017, Algorithm 1, for one row; with their l = u case mended."""
    m, spacing = np.zeros(len(z)), z[1] - z[0]
    for j in range(len(z)):
        moved = min(max(reward + discount * z[j], z[0]), z[-1])
        b = min((moved - z[0]) / spacing, len(z) - 1)
        low, high = math.floor(b), math.ceil(b)
        if low == high:
            m[low] += p[j]
        else:
            m[low] += p[j] * (high - b)
            m[high] += p[j] * (b - low)
    return m


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_the_projection_is_the_papers(seed: int, discount: float) -> None:
    rng = np.random.default_rng(seed)
    z = support(-2, 4, K)  # whole numbers: atoms fall on atoms, too
    p, reward = rng.dirichlet(np.ones(K), N), rng.choice([-9.0, -1.0, 0.0, 0.3, 8.0], N)
    got = c51.project(
        torch.tensor(p), torch.tensor(reward), torch.full((N,), discount, dtype=torch.float64), z
    )
    for i in range(N):
        want = algorithm_1(p[i], reward[i], discount, z.numpy())
        assert got[i].numpy() == pytest.approx(want, abs=1e-12)
    assert got.sum(-1).numpy() == pytest.approx(np.ones(N))


@given(st.integers(0, 1000), st.floats(0, 0.9), st.floats(-1, 1))
def test_the_projection_keeps_the_mean_within_the_support(
    seed: int, discount: float, reward: float
) -> None:
    z = support(-10, 10, 51)
    p = torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(51), N))
    columns = (
        torch.full((N,), reward, dtype=torch.float64),
        torch.full((N,), discount, dtype=torch.float64),
    )
    got = c51.project(p, *columns, z)
    assert torch.allclose(got @ z, reward + discount * (p @ z))
    assert (got >= 0).all()


@pytest.mark.parametrize("reward", [-math.inf, -1e30, 1e30, math.inf])
def test_extreme_rewards_go_to_the_ends(reward: float) -> None:
    z, p = c51.atoms(-1, 1, K), torch.full((1, K), 1 / K)
    with validating(math.isfinite(reward)):
        got = c51.project(p, torch.tensor([reward]), torch.ones(1), z)
    assert got[0, 0 if reward < 0 else -1].item() == pytest.approx(1)
    assert got.sum().item() == pytest.approx(1)


def test_a_terminal_row_may_hold_anything_and_nan_rewards_show() -> None:
    z, p = c51.atoms(-1, 1, 3), torch.tensor([[math.nan] * 3, [0.0, 0.0, 1.0]])
    with validating(False):
        got = c51.project(p, torch.tensor([0.5, math.nan]), torch.tensor([0.0, 1.0]), z)
    assert got[0].tolist() == pytest.approx([0, 0.5, 0.5])
    assert got[1].isnan().any()


@given(st.integers(0, 1000), st.booleans())
def test_targets_and_losses_row_by_row(seed: int, double: bool) -> None:
    rng = np.random.default_rng(seed)
    z = support(-2, 2, K)
    logits, target_logits, online = (rng.normal(size=(N, A, K)) for _ in range(3))
    reward, discount = rng.normal(size=N), rng.choice([0.0, 0.9], N)
    action, weight = rng.integers(0, A, N), rng.random(N)
    target = c51.target(
        *map(torch.tensor, (target_logits, reward, discount)),
        z,
        next_online_logits=torch.tensor(online) if double else None,
    )
    tensors = torch.tensor(logits), torch.tensor(action), target
    loss, terms = c51.loss(*tensors, weight=torch.tensor(weight))

    def softmax(row: Any) -> Any:
        return np.exp(row) / np.exp(row).sum()

    want, kl = 0.0, []
    for i in range(N):
        chooser = online if double else target_logits
        best = max(range(A), key=lambda a: softmax(chooser[i, a]) @ z.numpy())
        m = algorithm_1(softmax(target_logits[i, best]), reward[i], discount[i], z.numpy())
        log_p = np.log(softmax(logits[i, action[i]]))
        assert target[i].numpy() == pytest.approx(m, abs=1e-12)
        want -= weight[i] * (m @ log_p) / N
        kl.append(sum(x * (math.log(x) - y) for x, y in zip(m, log_p, strict=True) if x > 0))
    assert loss.item() == pytest.approx(want)
    assert c51.divergence(*tensors).tolist() == pytest.approx(kl)
    assert terms["kl"].item() == pytest.approx(np.mean(kl))


def test_logits_of_half_precision_give_whole_targets() -> None:
    z, logits = c51.atoms(-10, 10), torch.randn(N, A, 51).bfloat16()
    columns = torch.full((N,), 0.3), torch.full((N,), 0.99), z
    target = c51.target(logits, *columns)
    assert target.dtype == torch.float32
    assert torch.allclose(target, c51.target(logits.float(), *columns))
    assert torch.isfinite(c51.loss(logits, torch.zeros(N, dtype=torch.int64), target)[0])


def test_atoms_are_evenly_spaced() -> None:
    assert c51.atoms(-1, 2, 4).tolist() == pytest.approx([-1, 0, 1, 2])
    assert len(c51.atoms(-10, 10)) == 51


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=(N, A, K)), requires_grad=True)
    target = torch.tensor(rng.dirichlet(np.ones(K), N), requires_grad=True)
    action = torch.tensor(rng.integers(0, A, N))
    assert torch.autograd.gradcheck(lambda x: c51.loss(x, action, target)[0], (logits,))
    c51.loss(logits, action, target)[0].backward()
    assert target.grad is None


def test_sure_distributions_stay_finite() -> None:
    logits = torch.zeros(1, 1, 2)
    logits[0, 0, 0] = 1e4
    logits.requires_grad_()
    target = torch.tensor([[0.0, 1.0]])
    loss, terms = c51.loss(logits, torch.zeros(1, dtype=torch.int64), target)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert terms["kl"].item() == pytest.approx(1e4)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_legal_actions_alone_are_chosen() -> None:
    z = c51.atoms(0, 1, 2)
    logits = torch.tensor([[[0.0, 50.0], [50.0, 0.0]]])
    legal = torch.tensor([[False, True]])
    columns = torch.zeros(1), torch.ones(1), z
    assert c51.target(logits, *columns)[0].tolist() == pytest.approx([0, 1])
    assert c51.target(logits, *columns, next_legal=legal)[0].tolist() == pytest.approx([1, 0])


def test_nonsense_is_refused() -> None:
    z, p, column = c51.atoms(0, 1, K), torch.zeros(N, K), torch.zeros(N)
    with pytest.raises(ValueError, match=r"expected two atoms or more .* got 1, 0, 1"):
        c51.atoms(0, 1, 1)
    with pytest.raises(ValueError, match="from low to a higher value, got 5, 1, 1"):
        c51.atoms(1, 1, 5)
    with pytest.raises(ValueError, match=r"probability: expected \[N, K\], not empty"):
        c51.project(column, column, column, z)
    with pytest.raises(ValueError, match=r"support: expected shape \(7,\), got \(6,\)"):
        c51.project(p, column, column, z[1:])
    with pytest.raises(ValueError, match=r"reward: expected shape \(5,\), got \(1,\)"):
        c51.project(p, column[:1], column, z)
    logits = torch.zeros(N, A, K)
    with pytest.raises(ValueError, match=r"next_online_logits: expected shape \(5, 3, 7\)"):
        c51.target(logits, column, column, z, next_online_logits=logits[:, :1])
    with pytest.raises(ValueError, match=r"target: expected shape \(5, 7\), got \(5, 1\)"):
        c51.loss(torch.zeros(N, A, K), column.long(), p[:, :1])
    with pytest.raises(ValueError, match=r"logits: expected \[N, A, K\], not empty"):
        c51.loss(p, column.long(), p)


def h(z: float, epsilon: float) -> float:
    """Pohlen et al. 2018, proposition A.2."""
    return math.copysign(1, z) * (math.sqrt(abs(z) + 1) - 1) + epsilon * z


def h_inverse(x: float, epsilon: float) -> float:
    root = (math.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon)) - 1) / (2 * epsilon)
    return math.copysign(1, x) * (root**2 - 1)


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.99]), st.sampled_from([1e-2, 1e-1]))
def test_atoms_of_rescaled_returns_move_by_the_return(
    seed: int, discount: float, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    z, p, reward = support(-3, 3, K), rng.dirichlet(np.ones(K)), float(rng.normal(scale=5))
    column = torch.tensor([reward], dtype=torch.float64)
    got = c51.project(
        torch.tensor(p)[None], column, torch.full_like(column, discount), z, rescaling=epsilon
    )
    wanted = np.zeros(K)
    for j in range(K):
        moved = h(reward + discount * h_inverse(float(z[j]), epsilon), epsilon)
        wanted += p[j] * one_atom(moved, z)
    np.testing.assert_allclose(got[0], wanted, atol=1e-9)


def one_atom(value: float, z: torch.Tensor) -> Any:
    """Put a mass of 1 at a value onto the support."""
    near = np.zeros(len(z))
    place = np.interp(value, z.numpy(), np.arange(len(z)))
    low = min(math.floor(place), len(z) - 2)
    near[low], near[low + 1] = 1 - (place - low), place - low
    return near
