"""Losses over tokens against the papers', TRL's and verl's formulas, in float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_batches import B, Batch, T, batch, packed, padded
from torch import Tensor

from bray_algo.tokens import cispo, divergence, dpo, grpo, gspo, prediction, reductions, sft

CLIPPED = ("log_prob", "old_log_prob", "advantage", "weight")
KL = ("log_prob", "reference_log_prob", "weight")
seeds = st.integers(0, 1000)
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


def penalty(**arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
    return divergence.penalty(**arguments, kl_coefficient=0.3)


LOSSES: dict[str, tuple[Loss, tuple[str, ...]]] = {
    "grpo": (grpo.loss, CLIPPED),
    "gspo": (gspo.loss, CLIPPED),
    "cispo": (cispo.loss, CLIPPED),
    "sft": (sft.loss, ("log_prob", "weight")),
    "kl": (penalty, KL),
}


def count(name: str, number: float | Tensor) -> dict[str, float | Tensor]:
    return {"num_sequences" if name == "gspo" else "num_tokens": number}


def total(name: str, columns: Batch) -> int:
    mask = columns["mask"]
    return int(mask.any(-1).sum() if name == "gspo" else mask.sum())


def owned(mask: Tensor) -> list[tuple[int, int]]:
    return [(int(b), int(t)) for b, t in mask.nonzero()]


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


@given(seeds, st.none() | st.floats(1.5, 4))
def test_dapo_is_equation_8_and_verls_token_mean(seed: int, dual_clip: float | None) -> None:
    b = batch(seed, *CLIPPED)
    clips = {"clip_low": 0.2, "clip_high": 0.28}
    loss, terms = grpo.loss(**b, **clips, dual_clip=dual_clip)
    want = kl = low = high = 0.0
    own = owned(b["mask"])
    for i in own:
        ratio = math.exp(b["log_prob"][i] - b["old_log_prob"][i])
        a = float(b["advantage"][i])
        # verl: max(−A r, −A clip(r)), and for A < 0 at most −c A.
        row = max(-a * ratio, -a * clip(ratio, 0.8, 1.28))
        if dual_clip is not None and a < 0:
            row = min(row, -dual_clip * a)
        want += float(b["weight"][i]) * row / len(own)
        kl += (ratio - 1 - math.log(ratio)) / len(own)
        low += (ratio < 0.8 and a < 0) / len(own)
        high += (ratio > 1.28 and a > 0) / len(own)
    assert loss.item() == pytest.approx(want)
    assert terms["policy_loss"].item() == pytest.approx(want)
    assert terms["approx_kl"].item() == pytest.approx(kl)
    assert terms["clip_fraction_low"].item() == pytest.approx(low)
    assert terms["clip_fraction_high"].item() == pytest.approx(high)


@given(seeds)
def test_grpos_own_mean_is_a_mean_over_answers_of_means_over_their_tokens(seed: int) -> None:
    b = batch(seed, *CLIPPED[:3])
    share, answers = reductions.sequence_weight(b["mask"]), reductions.count_sequences(b["mask"])
    loss, _ = grpo.loss(**b, weight=share, num_tokens=answers)
    want = 0.0
    for row in range(B):  # TRL's loss_type "grpo", DeepSeekMath's equation 3
        own = [t for t in range(T) if b["mask"][row, t]]
        for t in own:
            ratio = math.exp(b["log_prob"][row, t] - b["old_log_prob"][row, t])
            a = float(b["advantage"][row, t])
            want -= min(ratio * a, clip(ratio, 0.8, 1.2) * a) / len(own) / B
    assert loss.item() == pytest.approx(want)


@given(seeds)
def test_dr_grpo_divides_by_a_constant(seed: int) -> None:
    b = batch(seed, *CLIPPED[:3])
    loss, _ = grpo.loss(**b, num_tokens=B * T)
    want = 0.0
    for i in owned(b["mask"]):  # TRL's loss_type "dr_grpo"
        ratio = math.exp(b["log_prob"][i] - b["old_log_prob"][i])
        a = float(b["advantage"][i])
        want -= min(ratio * a, clip(ratio, 0.8, 1.2) * a) / (B * T)
    assert loss.item() == pytest.approx(want)


@given(seeds, st.sampled_from([(3e-4, 4e-4), (0.2, 0.3)]))
def test_gspo_is_equations_5_and_7(seed: int, clips: tuple[float, float]) -> None:
    b = batch(seed, *CLIPPED[:3])
    b["advantage"] = b["advantage"][:, :1].expand(B, T)
    loss, _ = gspo.loss(**b, clip_low=clips[0], clip_high=clips[1])
    want = 0.0
    for row in range(B):
        own = [t for t in range(T) if b["mask"][row, t]]
        logs = [float(b["log_prob"][row, t] - b["old_log_prob"][row, t]) for t in own]
        ratio, a = math.exp(sum(logs) / len(own)), float(b["advantage"][row, 0])
        want -= min(ratio * a, clip(ratio, 1 - clips[0], 1 + clips[1]) * a) / B
    assert loss.item() == pytest.approx(want)


@given(seeds, st.sampled_from([(0.0, 5.0), (0.5, 1.5)]))
def test_cispo_is_equation_4_and_its_gradient_is_the_bounded_ratio(
    seed: int, bounds: tuple[float, float]
) -> None:
    b = batch(seed, *CLIPPED[:3])
    b["log_prob"].requires_grad_()
    loss, _ = cispo.loss(**b, min_ratio=bounds[0], max_ratio=bounds[1])
    loss.backward()
    own, new, want = owned(b["mask"]), b["log_prob"].detach(), 0.0
    grad = torch.zeros(B, T, dtype=torch.float64)
    for i in own:
        ratio = clip(math.exp(new[i] - b["old_log_prob"][i]), *bounds)
        slope = -ratio * float(b["advantage"][i]) / len(own)
        want += slope * float(new[i])
        grad[i] = slope
    assert loss.item() == pytest.approx(want)
    torch.testing.assert_close(b["log_prob"].grad, grad)


@given(seeds)
def test_supervised_tuning_is_the_mean_cross_entropy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(B, T, 5)))
    token = torch.from_numpy(rng.integers(0, 5, (B, T)))
    mask = batch(seed)["mask"]
    mask[:, 0] = False
    loss, terms = sft.loss(prediction.token_log_prob(logits, token, temperature=0.7), mask)
    want, own = 0.0, owned(mask)
    for b, t in own:
        scores = logits[b, t - 1] / 0.7
        want -= float(scores[token[b, t]] - torch.log(torch.exp(scores).sum())) / len(own)
    assert loss.item() == pytest.approx(want)
    assert terms["log_prob"].item() == pytest.approx(-want)


@given(seeds, st.sampled_from([0.05, 0.5]))
def test_dpo_is_equation_7(seed: int, beta: float) -> None:
    rng = np.random.default_rng(seed)
    columns = [torch.from_numpy(rng.normal(size=B) * 10) for _ in range(4)]
    loss, terms = dpo.loss(*columns, beta=beta)
    want = right = 0.0
    for win, lose, base_win, base_lose in zip(*(c.tolist() for c in columns), strict=True):
        margin = beta * ((win - base_win) - (lose - base_lose))
        want -= math.log(1 / (1 + math.exp(-margin))) / B
        right += (margin > 0) / B
    assert loss.item() == pytest.approx(want)
    assert terms["accuracy"].item() == pytest.approx(right)
    halves = [dpo.loss(*(c[i::2] for c in columns), beta=beta, num_pairs=B)[0] for i in (0, 1)]
    assert float(halves[0] + halves[1]) == pytest.approx(want)


@given(seeds)
def test_estimates_of_the_kl_are_schulmans(seed: int) -> None:
    b = batch(seed, "log_prob", "reference_log_prob")
    got = {name: divergence.kl(**b, estimator=name) for name in ("k1", "k2", "k3")}
    for i in owned(b["mask"]):
        d = float(b["log_prob"][i] - b["reference_log_prob"][i])
        want = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}
        for name, estimate in got.items():
            assert estimate[i].item() == pytest.approx(want[name])
    assert not any(estimate[~b["mask"]].any() for estimate in got.values())


def test_the_gradients_of_the_estimates_are_what_the_docstring_says() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(5, dtype=torch.float64), -1)
    log_prob = torch.log_softmax(logits, -1)
    chance, mask = log_prob.detach().exp()[None], torch.ones(1, 5, dtype=torch.bool)

    def gradient(value: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(value, logits, retain_graph=True)
        return grad

    def mean(estimator: Any) -> Tensor:  # the expectation over tokens drawn from π, exactly
        rows = divergence.kl(log_prob[None], reference[None], mask, estimator=estimator)
        return (chance * rows).sum()

    kl = (log_prob.exp() * (log_prob - reference)).sum()
    other_way = (reference.exp() * (reference - log_prob)).sum()
    assert mean("k1").item() == pytest.approx(kl.item())
    assert mean("k3").item() == pytest.approx(kl.item())
    torch.testing.assert_close(gradient(mean("k1")), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(gradient(mean("k2")), gradient(kl))
    torch.testing.assert_close(gradient(mean("k3")), gradient(other_way))


@pytest.mark.parametrize("name", LOSSES)
@given(seed=seeds)
def test_packed_rows_give_the_same_loss_and_terms(name: str, seed: int) -> None:
    function, columns = LOSSES[name]
    rows = batch(seed, *columns)
    joined = packed(rows)
    sequence = joined.pop("sequence")
    more = {"sequence": sequence} if name == "gspo" else {}
    loss, terms = function(**rows)
    other, others = function(**joined, **more)
    assert other.item() == pytest.approx(loss.item())
    for term, value in terms.items():
        assert others[term].item() == pytest.approx(value.item()), term


@pytest.mark.parametrize("name", LOSSES)
@given(seed=seeds, rubbish=st.sampled_from([math.nan, math.inf, 1e30]))
def test_what_the_policy_did_not_say_counts_nowhere(name: str, seed: int, rubbish: float) -> None:
    function, columns = LOSSES[name]
    rows = batch(seed, *columns)
    want, _ = function(**rows)
    wider = padded(rows, rubbish)
    wider["log_prob"].requires_grad_()
    loss, _ = function(**wider)
    loss.backward()
    assert loss.item() == pytest.approx(want.item())
    grad = wider["log_prob"].grad
    assert grad is not None
    assert torch.isfinite(grad).all()
    assert not grad[~wider["mask"]].any()


@pytest.mark.parametrize("name", LOSSES)
@given(seed=seeds, cut=st.integers(1, B - 1))
def test_parts_of_a_step_add_up_to_the_whole(name: str, seed: int, cut: int) -> None:
    function, columns = LOSSES[name]
    rows = batch(seed, *columns)
    rows["log_prob"].requires_grad_()
    whole, _ = function(**rows)
    (want,) = torch.autograd.grad(whole, rows["log_prob"])
    number = torch.tensor(float(total(name, rows)))
    losses = [
        function(**{k: v[part] for k, v in rows.items()}, **count(name, number))[0]
        for part in (slice(0, cut), slice(cut, B))
    ]
    got = losses[0] + losses[1]
    assert got.item() == pytest.approx(whole.item())
    torch.testing.assert_close(torch.autograd.grad(got, rows["log_prob"])[0], want)
    # Ranks whose gradients are averaged take their share of the number.
    ranks = [
        function(**{k: v[part] for k, v in rows.items()}, **count(name, total(name, rows) / 2))[0]
        for part in (slice(0, cut), slice(cut, B))
    ]
    assert (ranks[0] + ranks[1]).item() / 2 == pytest.approx(whole.item())


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cispo"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    function, columns = LOSSES[name]
    rows = batch(3, *columns)
    log_prob = rows.pop("log_prob").requires_grad_()
    wide = {"clip_low": 0.5, "clip_high": 0.5} if name in ("grpo", "gspo") else {}
    assert torch.autograd.gradcheck(lambda x: function(log_prob=x, **rows, **wide)[0], (log_prob,))


def test_gradients_of_pairs_and_of_logits_are_those_of_finite_differences() -> None:
    torch.manual_seed(1)
    pairs = [torch.randn(B, dtype=torch.float64) for _ in range(4)]
    answers = (pairs[0].requires_grad_(), pairs[1].requires_grad_())
    assert torch.autograd.gradcheck(lambda x, y: dpo.loss(x, y, *pairs[2:])[0], answers)
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    token = torch.tensor([[0, 3, 1], [2, 2, 0]])
    assert torch.autograd.gradcheck(lambda x: prediction.token_log_prob(x, token), (logits,))


def test_logits_of_unwanted_tokens_may_be_nan() -> None:
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    logits[0, 1] = torch.nan
    logits.requires_grad_()
    token, mask = torch.tensor([[0, 3, 1], [2, 2, 0]]), torch.ones(2, 3, dtype=torch.bool)
    mask[0, 2] = mask[0, 0] = False
    got = prediction.token_log_prob(logits, token, mask)
    got.sum().backward()
    assert got[0, 2] == 0
    assert got[0, 1].item() == pytest.approx(torch.log_softmax(logits[0, 0], -1)[3].item())
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_a_batch_without_own_tokens_has_a_loss_of_zero() -> None:
    for name, (function, columns) in LOSSES.items():
        rows = batch(0, *columns)
        rows["mask"] = torch.zeros(B, T, dtype=torch.bool)
        loss, terms = function(**rows)
        assert loss == 0, name
        assert not any(terms.values())


ROWS = batch(0, *CLIPPED)
PAIR = batch(0, *KL)
BEYOND = torch.tensor([0] * (B * T - 1) + [B * T]).view(B, T)
REFUSED: list[tuple[str, Callable[[], Any]]] = [
    (r"clip_low: expected a positive number, got -1", lambda: grpo.loss(**ROWS, clip_low=-1)),
    (r"clip_high: expected a positive", lambda: gspo.loss(**ROWS, clip_high=0)),
    (r"dual_clip: expected more than 1, got 1", lambda: grpo.loss(**ROWS, dual_clip=1.0)),
    (r"num_tokens: expected a positive number, got 0", lambda: grpo.loss(**ROWS, num_tokens=0)),
    (
        r"num_tokens: expected a positive number, got nan",
        lambda: sft.loss(ROWS["log_prob"], ROWS["mask"], num_tokens=torch.tensor(math.nan)),
    ),
    (
        r"num_tokens: expected shape \(\), got \(4,\): expected the number of the whole step",
        lambda: grpo.loss(**ROWS, num_tokens=ROWS["mask"].sum(-1)),
    ),
    (r"num_sequences: expected a positive", lambda: gspo.loss(**ROWS, num_sequences=-2)),
    (r"min_ratio: expected 0 or more, got -0.1", lambda: cispo.loss(**ROWS, min_ratio=-0.1)),
    (
        r"min_ratio: expected max_ratio=2 or less, got 3",
        lambda: cispo.loss(**ROWS, min_ratio=3, max_ratio=2),
    ),
    (r"max_ratio: expected a positive", lambda: cispo.loss(**ROWS, max_ratio=math.nan)),
    (
        r"mask: expected bool \(4, 6\), got torch.int64",
        lambda: grpo.loss(**{**ROWS, "mask": ROWS["mask"].long()}),
    ),
    (r"mask: expected \[B, T\]", lambda: grpo.loss(**{k: v[0] for k, v in ROWS.items()})),
    (
        r"advantage: expected shape \(4, 6\), got \(4,\)",
        lambda: grpo.loss(**{**ROWS, "advantage": ROWS["advantage"][:, 0]}),
    ),
    (
        r"sequence: expected 0 to 23, got 0 to 24",
        lambda: gspo.loss(**ROWS, sequence=BEYOND),
    ),
    (
        r"estimator: expected 'k2' or 'k3', got 'k1', whose gradient in a loss is noise",
        lambda: divergence.penalty(**PAIR, kl_coefficient=1, estimator="k1"),
    ),
    (
        r"estimator: expected 'k1', 'k2' or 'k3', got 'k4'",
        lambda: divergence.penalty(**PAIR, kl_coefficient=1, estimator="k4"),  # type: ignore[arg-type]
    ),
    (
        r"kl_coefficient: expected 0 or more",
        lambda: divergence.penalty(**PAIR, kl_coefficient=-1),
    ),
    (r"beta: expected a positive", lambda: dpo.loss(*[torch.zeros(2)] * 4, beta=0)),
    (r"num_pairs: expected a positive", lambda: dpo.loss(*[torch.zeros(2)] * 4, num_pairs=0)),
    (
        r"token: expected 0 to 2, got 0 to 3",
        lambda: prediction.token_log_prob(torch.zeros(1, 2, 3), torch.tensor([[0, 3]])),
    ),
    (
        r"temperature: expected a positive",
        lambda: prediction.token_log_prob(
            torch.zeros(1, 2, 3), torch.tensor([[0, 2]]), temperature=0
        ),
    ),
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_bad_input_is_refused_in_words(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call()
