"""TD(λ), n steps, UPGO and Retrace against their papers, in float64 loops; long ragged segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bray_algo import gae, n_step, vtrace
from bray_algo.returns.advantages import retrace, td_lambda, upgo

Problem = dict[str, Any]


def problem(seed: int, num_steps: int = 9, batch: int = 4) -> Problem:
    """Segments of any length, with terminations inside and at the end, as float64 arrays."""
    rng = np.random.default_rng(seed)
    return {
        "reward": rng.normal(size=(num_steps, batch)),
        "value": rng.normal(size=(num_steps, batch)),
        "final_value": rng.normal(size=batch),
        "terminated": rng.random((num_steps, batch)) < 0.15,
        "length": rng.integers(1, num_steps + 1, batch),
    }


def tensors(p: Problem, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    whole = {name: torch.from_numpy(array) for name, array in p.items()}
    return {n: x.to(dtype) if x.dtype == torch.float64 else x for n, x in whole.items()}


def next_value(p: Problem, t: int, b: int) -> float:
    if p["terminated"][t, b]:
        return 0.0
    return float(p["final_value"][b] if t == p["length"][b] - 1 else p["value"][t + 1, b])


def ends(p: Problem, t: int, b: int) -> int:
    """The last step that a return from t reaches."""
    while not p["terminated"][t, b] and t < p["length"][b] - 1:
        t += 1
    return t


def return_of(p: Problem, t: int, b: int, n: int, gamma: float) -> float:
    """G_{t:t+n}: n rewards, fewer at the end, then the value."""
    last = min(t + n - 1, ends(p, t, b))
    rewards = sum(gamma ** (k - t) * p["reward"][k, b] for k in range(t, last + 1))
    return float(rewards) + gamma ** (last - t + 1) * next_value(p, last, b)


def check(got: Tensor, p: Problem, want: Any, tolerance: float = 1e-9) -> None:
    for b, length in enumerate(p["length"]):
        for t in range(length):
            assert got[t, b].item() == pytest.approx(want(t, b), rel=tolerance, abs=tolerance)
        assert not got[length:, b].any()


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_td_lambda_is_the_mean_of_n_step_returns(seed: int, gamma: float, lambda_: float) -> None:
    p = problem(seed)

    def want(t: int, b: int) -> float:  # equation 12.3
        steps = ends(p, t, b) - t + 1
        returns = [return_of(p, t, b, n, gamma) for n in range(1, steps + 1)]
        weights = [(1 - lambda_) * lambda_**n for n in range(steps - 1)] + [lambda_ ** (steps - 1)]
        return sum(w * r for w, r in zip(weights, returns, strict=True))

    check(td_lambda(**tensors(p), gamma=gamma, lambda_=lambda_), p, want)


@given(st.integers(0, 1000), st.floats(0, 1), st.integers(1, 12))
def test_n_step_returns(seed: int, gamma: float, n: int) -> None:
    p = problem(seed)
    got = n_step(**tensors(p), gamma=gamma, num_steps=n)
    check(got, p, lambda t, b: return_of(p, t, b, n, gamma))
    whole = n_step(**tensors(p), gamma=gamma)
    check(whole, p, lambda t, b: return_of(p, t, b, 99, gamma))


@given(st.integers(0, 1000), st.sampled_from([1.0, 0.5]))
def test_upgo_follows_what_is_not_worse_than_the_value(seed: int, gamma: float) -> None:
    p = problem(seed)
    for name in ("reward", "value", "final_value"):  # eighths: equal values are equal exactly
        p[name] = np.round(p[name] * 2) / 8

    def want(t: int, b: int) -> float:
        if p["terminated"][t, b] or t == p["length"][b] - 1:
            return float(p["reward"][t, b]) + gamma * next_value(p, t, b)
        better = p["reward"][t + 1, b] + gamma * next_value(p, t + 1, b) >= p["value"][t + 1, b]
        following = want(t + 1, b) if better else p["value"][t + 1, b]
        return float(p["reward"][t, b] + gamma * following)

    check(upgo(**tensors(p), gamma=gamma), p, want)


@given(st.integers(0, 1000))
def test_upgo_is_no_less_than_one_step(seed: int) -> None:
    p = tensors(problem(seed))
    one = n_step(**p, gamma=0.9, num_steps=1)
    assert (upgo(**p, gamma=0.9) >= one - 1e-12).all()


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_retrace_is_the_papers_sum(seed: int, gamma: float, lambda_: float) -> None:
    p = problem(seed)
    rng = np.random.default_rng(seed + 1)
    q, log_ratio = rng.normal(size=(2, *p["reward"].shape))
    trace = lambda_ * np.minimum(1, np.exp(log_ratio))

    def want(t: int, b: int) -> float:  # equation 3
        total, product = float(q[t, b]), 1.0
        for k in range(t, ends(p, t, b) + 1):
            product *= gamma * trace[k, b] if k > t else 1.0
            total += product * (p["reward"][k, b] + gamma * next_value(p, k, b) - q[k, b])
        return total

    columns = {"action_value": torch.from_numpy(q), "log_ratio": torch.from_numpy(log_ratio)}
    got = retrace(**columns, **tensors(p), gamma=gamma, lambda_=lambda_)
    check(got, p, want)


@given(st.integers(0, 1000), st.floats(0, 1), st.floats(0, 1))
def test_retrace_on_policy_with_q_of_v_is_td_lambda(
    seed: int, gamma: float, lambda_: float
) -> None:
    p = tensors(problem(seed))
    zeros = torch.zeros_like(p["reward"])
    got = retrace(zeros, action_value=p["value"], **p, gamma=gamma, lambda_=lambda_)
    assert torch.allclose(got, td_lambda(**p, gamma=gamma, lambda_=lambda_), atol=1e-9)


def test_retrace_where_the_policy_never_acts_so_is_one_step() -> None:
    p = tensors(problem(3))
    never = torch.full_like(p["reward"], -torch.inf)
    got = retrace(never, action_value=p["value"], **p, gamma=0.9, lambda_=1.0)
    assert torch.allclose(got, n_step(**p, gamma=0.9, num_steps=1))


@given(st.integers(0, 100), st.sampled_from([1e6, np.inf, np.nan]))
def test_padding_never_leaks(seed: int, rubbish: float) -> None:
    clean = tensors(problem(seed))
    clean["log_ratio"] = torch.sin(clean["reward"])
    clean["action_value"] = torch.cos(clean["reward"])
    dirty = {name: tensor.clone() for name, tensor in clean.items()}
    padding = torch.arange(len(clean["reward"]))[:, None] >= clean["length"]
    for name in ("reward", "value", "log_ratio", "action_value"):
        dirty[name][padding] = rubbish
    dirty["terminated"][padding] = True
    for one, other in zip(everything(clean), everything(dirty), strict=True):
        assert torch.equal(one, other)


def everything(p: dict[str, Tensor]) -> list[Tensor]:
    """All returns of a problem with `log_ratio` and `action_value`."""
    plain = {n: x for n, x in p.items() if n not in ("log_ratio", "action_value")}
    return [
        gae(**plain, gamma=0.99, lambda_=0.95),
        td_lambda(**plain, gamma=0.99, lambda_=0.9),
        n_step(**plain, gamma=0.99),
        n_step(**plain, gamma=0.99, num_steps=3),
        upgo(**plain, gamma=0.99),
        *vtrace(p["log_ratio"], **plain, gamma=0.99),
        retrace(**p, gamma=0.99, lambda_=0.9),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_long_ragged_segments_in_float32_are_those_of_float64_loops(seed: int) -> None:
    p = problem(seed, num_steps=128 + seed, batch=16)
    if seed == 0:  # no padding at all
        p["length"][:] = 128
    rng = np.random.default_rng(seed + 1)
    p["terminated"] &= rng.random(p["terminated"].shape) < 0.2
    for name in ("reward", "value", "final_value"):
        p[name] = p[name].astype(np.float32).astype(np.float64)
    p["log_ratio"] = (0.3 * rng.normal(size=p["reward"].shape)).astype(np.float32).astype(float)
    p["action_value"] = rng.normal(size=p["reward"].shape).astype(np.float32).astype(float)
    got = everything(tensors(p, torch.float32))
    for returns, want in zip(got, loops(p, 0.99), strict=True):
        assert returns.dtype == torch.float32
        check(returns, p, lambda t, b, want=want: want[t, b], tolerance=1e-5)


def loops(p: Problem, gamma: float) -> list[np.ndarray]:
    """`everything` by recursion from the end of each segment, a step after the other."""
    names = ("gae", "td_lambda", "n_step", "three", "upgo", "target", "advantage", "retrace")
    out = {name: np.zeros(p["reward"].shape) for name in names}
    ratio = np.exp(p["log_ratio"])
    for b, length in enumerate(p["length"]):
        for t in reversed(range(length)):
            v, q, r = p["value"][t, b], p["action_value"][t, b], p["reward"][t, b]
            v_next, last = next_value(p, t, b), ends(p, t, b) == t
            ahead = {n: v_next if last else x[t + 1, b] for n, x in out.items()}
            more = 0.0 if last else gamma
            rho, delta = min(1.0, ratio[t, b]), r + gamma * v_next - v
            out["gae"][t, b] = delta + (0.0 if last else gamma * 0.95 * ahead["gae"])
            out["td_lambda"][t, b] = r + gamma * (0.1 * v_next + 0.9 * ahead["td_lambda"])
            out["n_step"][t, b] = r + gamma * ahead["n_step"]
            out["three"][t, b] = return_of(p, t, b, 3, gamma)
            up = not last and p["reward"][t + 1, b] + gamma * next_value(p, t + 1, b) >= v_next
            out["upgo"][t, b] = r + gamma * (ahead["upgo"] if up else v_next)
            out["target"][t, b] = v + rho * delta + more * rho * (ahead["target"] - v_next)
            out["advantage"][t, b] = rho * (r + gamma * ahead["target"] - v)
            trace = 0.0 if last else 0.9 * min(1.0, ratio[t + 1, b])
            q_next = 0.0 if last else p["action_value"][t + 1, b]
            step = r + gamma * v_next - q
            out["retrace"][t, b] = q + step + more * trace * (ahead["retrace"] - q_next)
    return list(out.values())


def test_rewards_may_be_integers_and_dtypes_may_differ() -> None:
    p = tensors(problem(0), torch.float32)
    p["log_ratio"] = p["action_value"] = torch.zeros_like(p["value"])
    want = everything({**p, "reward": p["reward"].round()})
    whole = everything({**p, "reward": p["reward"].round().long()})
    mixed = everything({**p, "reward": p["reward"].round().double(), "length": p["length"].int()})
    for one, two, three in zip(want, whole, mixed, strict=True):
        assert torch.equal(one, two)
        assert torch.allclose(one.double(), three.double(), atol=1e-5)


def test_gradients_pass_through_to_rewards_and_values() -> None:
    p = tensors(problem(0, num_steps=20, batch=2))
    rest = {n: x for n, x in p.items() if n not in ("reward", "value")}

    def function(reward: Tensor, value: Tensor) -> Tensor:
        return td_lambda(reward, value, **rest, gamma=0.9, lambda_=0.8)

    inputs = (p["reward"].requires_grad_(), p["value"].requires_grad_())
    assert torch.autograd.gradcheck(function, inputs)


def test_nonsense_is_refused() -> None:
    p = tensors(problem(0))
    with pytest.raises(ValueError, match="num_steps: expected 1 or more, got 0"):
        n_step(**p, gamma=0.9, num_steps=0)
    with pytest.raises(ValueError, match=r"gamma: expected 0 to 1, got 1\.5"):
        n_step(**p, gamma=1.5, num_steps=2)
    with pytest.raises(ValueError, match="gamma: expected 0 to 1, got nan"):
        upgo(**p, gamma=float("nan"))
    with pytest.raises(ValueError, match=r"lambda_: expected 0 to 1, got -0\.1"):
        td_lambda(**p, gamma=0.9, lambda_=-0.1)
    with pytest.raises(ValueError, match=r"value: expected shape \(9, 4\), got \(4, 9\)"):
        upgo(**{**p, "value": p["value"].T}, gamma=0.9)
    columns = {"log_ratio": p["reward"], "action_value": p["reward"][0], **p}
    with pytest.raises(ValueError, match=r"action_value: expected shape \(9, 4\), got \(4,\)"):
        retrace(**columns, gamma=0.9, lambda_=1.0)
    columns["action_value"] = p["reward"]
    with pytest.raises(ValueError, match="lambda_: expected 0 to 1, got 2"):
        retrace(**columns, gamma=0.9, lambda_=2)
    with pytest.raises(ValueError, match=r"terminated: expected bool \(9, 4\), got torch\.int64"):
        retrace(**{**columns, "terminated": p["terminated"].long()}, gamma=0.9, lambda_=1)
