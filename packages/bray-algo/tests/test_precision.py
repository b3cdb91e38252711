"""Half precision and integers are computed in float32: against the same numbers in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loss_cases import CASES
from torch import Tensor
from torch.utils import _pytree as pytree

from bray_algo import gae, n_step, vtrace
from bray_algo.distributions import (
    beta,
    categorical,
    discretised,
    gaussian,
    multi_categorical,
    squashed_gaussian,
)
from bray_algo.losses import (
    a2c,
    appo,
    impala,
    mappo,
    ppo,
)
from bray_algo.losses.reductions import standardised
from bray_algo.precision import MAX_LOG_RATIO
from bray_algo.returns.advantages import retrace, td_lambda, upgo

HALVES = [torch.float16, torch.bfloat16]


def cast(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    def one(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: one(value) for name, value in arguments.items()}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_losses_and_returns_of_halves_are_those_of_the_same_numbers(
    case: str, dtype: torch.dtype
) -> None:
    function, arguments = CASES[case]
    half = cast(arguments, dtype)
    got = pytree.tree_leaves(function(**half))
    want = pytree.tree_leaves(function(**cast(half, torch.float64)))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == torch.float32, case
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_gamma_is_not_rounded(dtype: torch.dtype) -> None:
    steps = 400
    ones, end = torch.ones(steps, 1, dtype=dtype), torch.zeros(1, dtype=dtype)
    columns = (ones, 0 * ones, end, torch.zeros(steps, 1, dtype=torch.bool), torch.tensor([steps]))
    wanted = (1 - 0.999**steps) / (1 - 0.999)
    for total in (
        n_step(*columns, gamma=0.999),
        gae(*columns, gamma=0.999, lambda_=1.0),
        td_lambda(*columns, gamma=0.999, lambda_=1.0),
        vtrace(0 * ones, *columns, gamma=0.999).target,
        retrace(0 * ones, ones, 0 * ones, *columns[1:], gamma=0.999, lambda_=1.0),
        upgo(*columns, gamma=0.999),
    ):
        assert total.dtype == torch.float32
        assert total[0, 0].item() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.int64, torch.int8, torch.bool])
def test_rewards_may_be_counted(kind: torch.dtype) -> None:
    reward, value = torch.tensor([[1], [0], [1]]), torch.full((3, 1), 0.5)
    rest = (value, torch.ones(1), torch.zeros(3, 1, dtype=torch.bool), torch.tensor([3]))
    want = gae(reward.float(), *rest, gamma=0.9, lambda_=0.8)
    assert torch.equal(gae(reward.to(kind), *rest, gamma=0.9, lambda_=0.8), want)


@pytest.mark.parametrize("dtype", HALVES)
def test_distributions_of_halves_are_those_of_the_same_numbers(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    logits = (torch.randn(6, 4, generator=random) * 30).to(dtype)
    mean, log_std = (torch.randn(6, 2, generator=random) * 50).to(dtype), torch.full((6, 2), -9.0)
    log_std, near, wide = log_std.to(dtype), mean / 100, torch.zeros(6, 2, dtype=dtype)
    unit = torch.linspace(0.05, 0.95, 12).reshape(6, 2).to(dtype)
    action, index = mean + 1, torch.arange(6) % 4
    a, b = (1 + torch.rand(2, 6, 2, generator=random)).to(dtype)

    def everything(to: torch.dtype) -> list[Tensor]:
        x, m, s, u, c = (t.to(to) for t in (logits, mean, log_std, unit, action))
        p, q, n, w = (t.to(to) for t in (a, b, near, wide))
        return [
            categorical.log_prob(x, index),
            categorical.entropy(x),
            categorical.kl(x, -x),
            multi_categorical.entropy([x, -x]),
            gaussian.log_prob(m, s, c),  # (1 / e^-9)² is beyond 65504
            gaussian.entropy(m, s),
            gaussian.kl(m, s, c, s),
            squashed_gaussian.log_prob(n, w, u),
            squashed_gaussian.entropy(n, w),
            beta.log_prob(p, q, u),
            beta.entropy(p, q),
            discretised.log_prob(discretised.ordinal(x).unsqueeze(1).expand(6, 2, 4), u),
        ]

    for got, want in zip(everything(dtype), everything(torch.float64), strict=True):
        assert got.dtype == torch.float32
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_ratios_do_not_overflow() -> None:
    far = torch.tensor([100.0, -100.0], dtype=torch.float16)
    zero, one = torch.zeros(2), torch.ones(2)
    for advantage in (one, -one):
        loss, terms = ppo.loss(far, one, zero, zero, advantage, zero)
        assert all(torch.isfinite(x) for x in (loss, *terms.values()))
        loss, _ = mappo.loss(*(x[:, None] for x in (far, one, zero, zero, advantage, zero)))
        assert torch.isfinite(loss)
    assert torch.isfinite(a2c.loss(far, one, zero, one, zero)[0])


@pytest.mark.parametrize("log_ratio", [100.0, 1e30, -100.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [1.0, 7.5, float("inf")])
def test_vtrace_of_far_policies_is_finite(
    log_ratio: float, dtype: torch.dtype, clip: float
) -> None:
    far = torch.tensor([[0.0, 0.0], [log_ratio, log_ratio], [0.5, log_ratio]]).clamp(-6e4, 6e4)
    reward, value = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 1.0]]), torch.zeros(3, 2)
    terminated = torch.tensor([[False, False], [True, False], [False, True]])
    columns = [x.to(dtype) for x in (far, reward, value, torch.ones(2))]
    ends = (terminated, torch.tensor([3, 3]))
    got = vtrace(*columns, *ends, gamma=0.9, rho_bar=clip)
    # equation 1 in numpy, with the ratio held where it is said to be
    r, v = reward.double().numpy(), np.zeros((3, 2))
    held = np.exp(np.minimum(columns[0].double().numpy(), MAX_LOG_RATIO))
    rho, trace = np.minimum(held, clip), np.minimum(held, 1.0)
    discount = 0.9 * ~terminated.numpy()
    following = np.concatenate([v[1:], np.ones((1, 2))])
    target, carried = np.zeros((3, 2)), np.zeros(2)
    for t in (2, 1, 0):
        delta = rho[t] * (r[t] + discount[t] * following[t] - v[t])
        carried = delta + discount[t] * trace[t] * carried
        target[t] = v[t] + carried
    assert torch.isfinite(got.target).all()
    assert torch.isfinite(got.advantage).all()
    np.testing.assert_allclose(got.target.numpy(), target, rtol=1e-5, atol=1e-30)


def test_losses_of_far_policies_are_finite() -> None:
    far, zero = torch.full((3, 2), 100.0), torch.zeros(3, 2)
    ends = (torch.zeros(2), torch.zeros(3, 2, dtype=torch.bool), torch.tensor([3, 2]))
    for loss in (impala.loss, appo.loss):
        total, terms = loss(far, zero, zero, zero, zero, *ends, gamma=0.9, rho_bar=float("inf"))
        assert all(torch.isfinite(x) for x in (total, *terms.values()))


@pytest.mark.parametrize(
    ("rows", "valid"),
    [
        ([1.0, 2.0, 4.0], None),
        ([5.0], None),
        ([7.0] * 6, None),
        ([1e6] * 7, None),
        ([0.1] * 1000, None),
        ([1e6 + 0.5, 1e6 - 0.5], None),
        ([3.0, torch.nan, 5.0, torch.inf], [True, False, True, False]),
        ([3.0, torch.nan], [True, False]),
        ([torch.nan, torch.inf], [False, False]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_standardised_against_numpy(
    rows: list[float], valid: list[bool] | None, dtype: torch.dtype
) -> None:
    column = torch.tensor(rows, dtype=dtype)
    mask = None if valid is None else torch.tensor(valid)
    counted = column.double().numpy()[np.ones(len(rows), bool) if valid is None else valid]
    wanted = np.zeros(len(rows))
    if len(counted):
        shifted = counted - counted[0]  # exact for equal rows
        normal = (shifted - shifted.mean()) / (shifted.std() + 1e-8)
        wanted[np.ones(len(rows), bool) if valid is None else valid] = normal
    got = standardised(column, mask)
    assert got.dtype == torch.promote_types(dtype, torch.float32)
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-5)
    if mask is not None:  # the same over time and batch, with what is padding
        assert torch.equal(standardised(column[:, None], mask[:, None])[:, 0], got)
