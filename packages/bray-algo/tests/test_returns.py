"""Returns against the papers' recursions, written as plain loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo import gae, n_step, vtrace

T, B = 7, 5


def problem(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    length = rng.integers(1, T + 1, B)
    terminated = np.zeros((T, B), bool)
    for b in range(B):
        terminated[length[b] - 1, b] = rng.random() < 0.5
    arrays = {
        "reward": rng.normal(size=(T, B)),
        "value": rng.normal(size=(T, B)),
        "final_value": rng.normal(size=B),
        "terminated": terminated,
        "length": length,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def next_value(p: dict[str, torch.Tensor], values: Any, t: int, b: int) -> float:
    if bool(p["terminated"][t, b]):
        return 0.0
    if t == int(p["length"][b]) - 1:
        return float(p["final_value"][b])
    return float(values[t + 1][b])


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_papers_sum(seed: int, gamma: float, lambda_: float) -> None:
    p = problem(seed)
    got = gae(**p, gamma=gamma, lambda_=lambda_)
    for b in range(B):
        length = int(p["length"][b])
        deltas = [
            float(p["reward"][t, b])
            + gamma * next_value(p, p["value"], t, b)
            - float(p["value"][t, b])
            for t in range(length)
        ]
        for t in range(length):  # equation 16: the sum of (γλ)^l δ_{t+l}
            want = sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, length))
            assert float(got[t, b]) == pytest.approx(want, abs=1e-9)
        assert not got[length:, b].any()


@given(st.integers(0, 1000), st.floats(0, 1))
def test_lambda_one_is_the_discounted_return(seed: int, gamma: float) -> None:
    p = problem(seed)
    returns = n_step(**p, gamma=gamma)
    advantage = gae(**p, gamma=gamma, lambda_=1.0)
    for b in range(B):
        length = int(p["length"][b])
        want = 0.0 if bool(p["terminated"][length - 1, b]) else float(p["final_value"][b])
        for t in reversed(range(length)):
            want = float(p["reward"][t, b]) + gamma * want
            assert float(returns[t, b]) == pytest.approx(want, abs=1e-9)
            assert float(advantage[t, b]) == pytest.approx(want - float(p["value"][t, b]), abs=1e-9)


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0.5, 2), st.floats(0.5, 2))
def test_vtrace_is_the_papers_definition(
    seed: int, gamma: float, rho_bar: float, c_bar: float
) -> None:
    p = problem(seed)
    log_ratio = torch.from_numpy(np.random.default_rng(seed + 1).normal(size=(T, B)))
    got = vtrace(log_ratio, **p, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar)
    ratio = log_ratio.exp()
    for b in range(B):
        length = int(p["length"][b])

        def delta(t: int, b: int = b) -> float:
            rho = min(rho_bar, float(ratio[t, b]))
            following = next_value(p, p["value"], t, b)
            return rho * (float(p["reward"][t, b]) + gamma * following - float(p["value"][t, b]))

        targets = []
        for s in range(length):  # equation 1
            total = float(p["value"][s, b])
            for t in range(s, length):
                trace = float(np.prod([min(c_bar, float(ratio[i, b])) for i in range(s, t)]))
                total += gamma ** (t - s) * trace * delta(t)
            targets.append(total)
        for s in range(length):
            assert float(got.target[s, b]) == pytest.approx(targets[s], abs=1e-8)
            following = next_value(p, [[v] * B for v in targets] + [[0.0] * B], s, b)
            rho = min(rho_bar, float(ratio[s, b]))
            want = rho * (float(p["reward"][s, b]) + gamma * following - float(p["value"][s, b]))
            assert float(got.advantage[s, b]) == pytest.approx(want, abs=1e-8)
        assert not got.target[length:, b].any()
        assert not got.advantage[length:, b].any()


@given(st.integers(0, 1000), st.floats(0, 1))
def test_vtrace_on_policy_gives_n_step_returns(seed: int, gamma: float) -> None:
    p = problem(seed)  # Espeholt et al. 2018, remark 1
    got = vtrace(torch.zeros(T, B, dtype=torch.float64), **p, gamma=gamma)
    assert torch.allclose(got.target, n_step(**p, gamma=gamma), atol=1e-9)


@given(st.integers(0, 100), st.sampled_from([1e6, np.inf, np.nan]))
def test_padding_never_leaks(seed: int, rubbish: float) -> None:
    p = problem(seed)
    dirty = {name: tensor.clone() for name, tensor in p.items()}
    padding = torch.arange(T)[:, None] >= p["length"]
    for name in ("reward", "value"):
        dirty[name][padding] = rubbish
    dirty["terminated"][padding] = True
    log_ratio = torch.zeros(T, B, dtype=torch.float64)
    clean = vtrace(log_ratio, **p, gamma=0.9)
    log_ratio[padding] = rubbish
    assert torch.equal(gae(**dirty, gamma=0.9, lambda_=0.8), gae(**p, gamma=0.9, lambda_=0.8))
    assert torch.equal(n_step(**dirty, gamma=0.9), n_step(**p, gamma=0.9))
    for got, want in zip(vtrace(log_ratio, **dirty, gamma=0.9), clean, strict=True):
        assert torch.equal(got, want)


@given(st.integers(0, 100), st.integers(0, T - 2))
def test_a_termination_inside_cuts_the_past_from_the_future(seed: int, at: int) -> None:
    p = problem(seed)
    p["length"][:] = T
    p["terminated"][at] = True
    other = {name: tensor.clone() for name, tensor in p.items()}
    other["reward"][at + 1 :] += 5
    other["value"][at + 1 :] -= 3
    one, two = (gae(**q, gamma=0.9, lambda_=0.8)[: at + 1] for q in (p, other))
    assert torch.equal(one, two)


def test_the_final_value_of_a_terminated_segment_is_not_read() -> None:
    p = problem(0)
    p["length"][:] = T
    p["terminated"][T - 1] = True
    other = {**p, "final_value": torch.full((B,), np.nan, dtype=torch.float64)}
    assert torch.equal(n_step(**p, gamma=0.9), n_step(**other, gamma=0.9))


@given(st.integers(0, 100))
def test_equal_policies_let_impala_learn_as_a2c(seed: int) -> None:
    p = problem(seed)
    got = vtrace(torch.zeros(T, B, dtype=torch.float64), **p, gamma=0.9)
    want = gae(**p, gamma=0.9, lambda_=1.0)
    assert torch.allclose(got.advantage, want, atol=1e-9)


def test_truncation_goes_on_and_termination_does_not() -> None:
    p = problem(0)
    p["length"][:] = T
    p["terminated"][:] = False
    p["terminated"][T - 1, 0] = True
    p["final_value"][:] = 100.0
    returns = n_step(**p, gamma=1.0)
    rewards = p["reward"].sum(0)
    assert float(returns[0, 0]) == pytest.approx(float(rewards[0]))
    assert float(returns[0, 1]) == pytest.approx(float(rewards[1]) + 100)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("reward", (T,), r"reward: expected \[T, B\], not empty, got shape \(7,\)"),
        ("reward", (0, B), r"reward: expected \[T, B\], not empty, got shape \(0, 5\)"),
        ("value", (T + 1, B), r"value: expected shape \(7, 5\), got \(8, 5\)"),
        ("final_value", (B + 1,), r"final_value: expected shape \(5,\), got \(6,\)"),
        ("length", (1,), r"length: expected shape \(5,\), got \(1,\)"),
        ("terminated", (T, B), "terminated: expected bool .* got torch.float32"),
    ],
)
def test_shapes_are_checked(name: str, shape: tuple[int, ...], message: str) -> None:
    p = {**problem(0), name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=message):
        gae(**p, gamma=0.9, lambda_=0.9)


@pytest.mark.parametrize("length", [0, T + 1])
def test_lengths_are_within_the_segment(length: int) -> None:
    p = problem(0)
    p["length"][2] = length
    with pytest.raises(
        ValueError, match=r"length: expected 1 to T=7 valid steps, got \[.*leave out"
    ):
        gae(**p, gamma=0.9, lambda_=0.9)


def test_numbers_are_checked() -> None:
    p, log_ratio = problem(0), torch.zeros(T, B)
    with pytest.raises(ValueError, match=r"length: expected integers, got torch\.float32"):
        gae(**{**p, "length": p["length"].float()}, gamma=0.9, lambda_=0.9)
    with pytest.raises(ValueError, match=r"gamma: expected 0 to 1, got 1\.1"):
        gae(**p, gamma=1.1, lambda_=0.9)
    with pytest.raises(ValueError, match="lambda_: expected 0 to 1, got nan"):
        gae(**p, gamma=0.9, lambda_=float("nan"))
    with pytest.raises(ValueError, match=r"gamma: expected 0 to 1, got -0\.1"):
        vtrace(log_ratio, **p, gamma=-0.1)
    with pytest.raises(ValueError, match="rho_bar: expected a positive number, got 0"):
        vtrace(log_ratio, **p, gamma=0.9, rho_bar=0)
    with pytest.raises(ValueError, match=r"log_ratio: expected shape \(7, 5\), got \(5,\)"):
        vtrace(log_ratio[0], **p, gamma=0.9)
