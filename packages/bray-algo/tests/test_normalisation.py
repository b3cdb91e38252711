from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.networks.normalisation import Moments, RunningNorm, merge, moments


@given(st.integers(0, 1000))
def test_batches_give_the_statistics_of_all_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(rng.normal() * 1e4, np.exp(rng.normal()), size=(50, 3))  # far from zero
    cuts = np.sort(rng.integers(0, 51, size=4))
    norm = RunningNorm([3])
    for part in np.split(rows, cuts):  # some empty
        norm.update(torch.tensor(part))
    assert norm.num_rows.item() == 50
    assert np.allclose(norm.mean.numpy(), rows.mean(0), rtol=1e-12)
    assert np.allclose(norm.variance.numpy(), rows.var(0), rtol=1e-8)


@given(st.integers(0, 1000))
def test_merging_is_associative_and_commutative(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (moments(torch.tensor(rng.normal(size=(n, 2)) * 9)) for n in rng.integers(0, 9, 3))
    for left, right in ((merge(merge(a, b), c), merge(a, merge(b, c))), (merge(a, b), merge(b, a))):
        assert left.num_rows == right.num_rows
        assert torch.allclose(left.mean, right.mean)
        assert torch.allclose(left.variance, right.variance)


def test_welfords_recursion_row_by_row() -> None:
    rows = np.random.default_rng(0).normal(size=200) + 1e6
    mean = sum_of_squares = 0.0
    norm = RunningNorm([])
    for count, row in enumerate(rows, 1):
        before = row - mean
        mean += before / count
        sum_of_squares += before * (row - mean)
        norm.update(torch.tensor([row]))
    assert norm.mean.item() == pytest.approx(mean, rel=1e-13)
    assert norm.variance.item() == pytest.approx(sum_of_squares / 200, rel=1e-6)


def test_masked_rows_do_not_count() -> None:
    x = torch.randn(4, 5, 2, 3)
    mask = torch.rand(4, 5) < 0.5
    mask[0, 0], mask[0, 1] = True, False
    want = x[mask].double()
    x[~mask] = torch.nan
    seen = moments(x, 2, mask)
    assert seen.num_rows == len(want)
    assert torch.allclose(seen.mean, want.mean(0))
    assert torch.allclose(seen.variance, want.var(0, correction=0))
    norm = RunningNorm([2, 3])
    norm.update(x, mask)
    assert torch.equal(norm.mean, seen.mean)


def test_it_normalises_and_clips() -> None:
    norm = RunningNorm([2], clip=5.0)
    x = torch.tensor([1.0, 100.0]) + torch.randn(1000, 2) * torch.tensor([3.0, 0.0])
    assert torch.equal(norm(x[:, :1].expand(-1, 2)), x[:, :1].expand(-1, 2).clamp(-5, 5))
    norm.update(x)
    normed = norm(x)
    assert normed[:, 0].mean().item() == pytest.approx(0, abs=1e-4)
    assert normed[:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert not normed[:, 1].any()  # no variance
    assert norm(torch.tensor([[0.0, 101.0]]))[0, 1] == 5
    assert norm(torch.tensor([[1, 100]], dtype=torch.uint8)).dtype == torch.float32


def test_what_is_denormalised_has_its_scale_again() -> None:
    norm = RunningNorm([2])
    norm.update(torch.tensor([[1.0, -5.0], [4.0, 300.0], [2.0, 7.0]]))
    x = torch.tensor([[3.0, -40.0], [1.5, 60.0]])
    torch.testing.assert_close(norm.denormalise(norm(x)), x)
    mean, std = norm.mean.tolist(), norm.variance.sqrt().tolist()
    one = norm.denormalise(torch.ones(2)).tolist()
    assert one == pytest.approx([mean[0] + std[0], mean[1] + std[1]], rel=1e-5)
    with pytest.raises(ValueError, match=r"x: expected shape \[\.\.\., \(2,\)\], got \(3,\)"):
        norm.denormalise(torch.zeros(3))


def test_statistics_are_frozen_in_eval_and_untouched_by_forward() -> None:
    norm, rows = RunningNorm([1]), torch.randn(5, 1)
    norm.update(torch.tensor([[1.0], [3.0]]))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm(torch.randn(5, 1))
    norm.eval()
    for update in (lambda: norm.update(rows), lambda: norm.update_with(moments(rows))):
        with pytest.raises(
            ValueError, match=r"expected a module in training mode, got one in eval"
        ):
            update()
    assert before.keys() == {"num_rows", "mean", "variance"}
    assert all(torch.equal(norm.state_dict()[name], value) for name, value in before.items())
    other = RunningNorm([1])
    other.load_state_dict(before)
    assert torch.equal(other(torch.ones(1, 1)), norm(torch.ones(1, 1)))


def test_statistics_of_workers_come_together() -> None:
    rows = torch.randn(90, 2, dtype=torch.float64)
    norm = RunningNorm([2])
    for part in rows.split(30):
        norm.update_with(moments(part))
    assert torch.allclose(norm.variance, rows.var(0, correction=0))
    assert isinstance(norm.moments, Moments)


def test_bad_input_is_refused() -> None:
    norm = RunningNorm([2])
    with pytest.raises(ValueError, match=r"x: expected shape \[..., \(2,\)\], got \(5, 3\)"):
        norm(torch.zeros(5, 3))
    with pytest.raises(ValueError, match=r"x: expected finite numbers, .* \(1 of 4\)"):
        norm.update(torch.tensor([[0.0, math.inf], [1.0, 2.0]]))
    assert norm.num_rows == 0
    with pytest.raises(ValueError, match=r"mask: expected bool \(5,\), got torch.float32 \(5,\)"):
        norm.update(torch.zeros(5, 2), torch.ones(5))
    with pytest.raises(ValueError, match=r"b: expected features \(2,\), got \(3,\)"):
        norm.update_with(moments(torch.zeros(5, 3)))
    with pytest.raises(ValueError, match="num_axes: expected 0 to 2, got 3"):
        moments(torch.zeros(5, 3), 3)
    with pytest.raises(ValueError, match="clip: expected a positive number, got 0"):
        RunningNorm([2], clip=0)


@pytest.mark.parametrize(
    ("kind", "base", "spread"),
    [(torch.int64, 1_700_000_000, 60), (torch.float64, 1.7e9, 0.5), (torch.float32, 1e6, 4.0)],
)
def test_the_mean_is_taken_off_before_digits_are_lost(
    kind: torch.dtype, base: float, spread: float
) -> None:
    rows = (base + spread * torch.randn(200, 2, dtype=torch.float64)).to(kind)
    norm = RunningNorm([2])
    norm.update(rows)
    exact = rows.double().numpy()
    want = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + 1e-8)
    got = norm(rows)
    assert got.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-4)
    np.testing.assert_allclose(norm.denormalise(got.double()).numpy(), exact, atol=1e-2)


@pytest.mark.parametrize("move", ["bfloat16", "half", "to", "float"])
def test_statistics_stay_float64_when_a_module_goes_to_half_precision(move: str) -> None:
    norm, rows = RunningNorm([3]), 1e4 + torch.randn(100, 3)
    norm.update(rows)
    want = {name: value.clone() for name, value in norm.state_dict().items()}
    module = torch.nn.Sequential(norm, torch.nn.Linear(3, 2))
    module = module.to(torch.bfloat16) if move == "to" else getattr(module, move)()
    for name, value in norm.state_dict().items():
        assert torch.equal(value, want[name])
        assert value.dtype == want[name].dtype
    np.testing.assert_allclose(norm(rows.double()).mean(0), 0, atol=1e-6)
    norm.update(rows)
    assert norm.num_rows == 200
    assert module.to("meta").get_buffer("0.mean").device.type == "meta"
