"""Advantages, groups and rewards of tokens against the papers' formulas, in float64 loops."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_batches import B, T, batch, packed
from torch import Tensor

from bray_algo.tokens import advantages, groups, reductions, rewards, sampler, sequences

seeds = st.integers(0, 1000)
N = 9


def samples(seed: int) -> tuple[Tensor, Tensor]:
    """Rewards and groups of different sizes, mixed; some groups have equal rewards."""
    rng = np.random.default_rng(seed)
    reward = torch.from_numpy(rng.integers(0, 3, N) / 3)
    return reward, torch.from_numpy(rng.integers(0, 4, N))


def others(reward: Tensor, group: Tensor, i: int) -> list[float]:
    return [float(reward[j]) for j in range(N) if group[j] == group[i]]


@given(seeds)
def test_grpo_and_dr_grpo_are_trls_and_verls(seed: int) -> None:
    reward, group = samples(seed)
    got = {scale: advantages.grpo(reward, group, scale=scale) for scale in ("group", "none")}
    batch_scale = advantages.grpo(reward, group, scale="batch", epsilon=1e-4)
    for i in range(N):
        same = others(reward, group, i)
        centred = float(reward[i]) - statistics.fmean(same)
        deviation = statistics.stdev(same) if len(same) > 1 else 0.0
        assert got["none"][i].item() == pytest.approx(centred, abs=1e-12)
        assert got["group"][i].item() == pytest.approx(centred / (deviation + 1e-6), abs=1e-9)
        whole = statistics.stdev(reward.tolist())
        assert batch_scale[i].item() == pytest.approx(centred / (whole + 1e-4), abs=1e-12)


@given(seeds)
def test_rloo_leaves_one_out(seed: int) -> None:
    reward, group = samples(seed)
    got = advantages.rloo(reward, group)
    for i in range(N):
        same = others(reward, group, i)
        rest = (sum(same) - float(reward[i])) / max(len(same) - 1, 1)
        want = float(reward[i]) - rest if len(same) > 1 else 0.0
        assert got[i].item() == pytest.approx(want, abs=1e-12)


@given(seeds, st.integers(2, 50))
def test_equal_rewards_have_no_advantage(seed: int, size: int) -> None:
    value = np.random.default_rng(seed).random()
    reward, group = torch.full((size,), value), torch.zeros(size, dtype=torch.int64)
    for scale in ("group", "batch", "none"):
        assert advantages.grpo(reward, group, scale=scale).abs().max() < 1e-9
    assert not groups.informative(reward, group).any()
    assert groups.informative_fraction(reward, group) == 0


@given(seeds)
def test_groups_that_differ_are_those_that_teach(seed: int) -> None:
    reward, group = samples(seed)
    keep = groups.informative(reward, group)
    for i in range(N):
        assert bool(keep[i]) == (len(set(others(reward, group, i))) > 1)
    names = set(group.tolist())
    differ = sum(len(set(reward[group == g].tolist())) > 1 for g in names)
    assert groups.informative_fraction(reward, group).item() == pytest.approx(differ / len(names))


@given(seeds)
def test_reinforce_plus_plus_normalises_the_reward_to_go_over_all_tokens(seed: int) -> None:
    b = batch(seed, "log_prob", "reference_log_prob")
    outcome = torch.arange(B, dtype=torch.float64)
    token_reward = rewards.kl_penalised(outcome, **b, kl_coefficient=0.2)
    got = advantages.reinforce_plus_plus(token_reward, b["mask"])
    gap, want = b["log_prob"] - b["reference_log_prob"], {}
    for row in range(B):
        running = float(outcome[row])
        for t in reversed(range(T)):
            if b["mask"][row, t]:
                running -= 0.2 * float(gap[row, t])
                want[row, t] = running
    mean, deviation = statistics.fmean(want.values()), statistics.pstdev(want.values())
    for i, value in want.items():
        assert got[i].item() == pytest.approx((value - mean) / deviation, abs=1e-6)
    assert not got[~b["mask"]].any()
    whole = sequences.to_go(token_reward, b["mask"])
    parts = [advantages.token_moments(whole[i::2], b["mask"][i::2]) for i in (0, 1)]
    total = parts[0] + parts[1]
    for i in (0, 1):
        part = advantages.whitened(whole[i::2], b["mask"][i::2], moments=total)
        torch.testing.assert_close(part, got[i::2], rtol=1e-6, atol=1e-6)


@given(seeds, st.integers(0, 30))
def test_the_penalty_of_long_answers_is_equation_13(seed: int, length: int) -> None:
    limit, buffer = 20, 1 + seed % 20
    got = rewards.overlong_penalty(torch.tensor([length]), max_length=limit, buffer=buffer)
    want = -1.0
    if length <= limit - buffer:
        want = 0.0
    elif length <= limit:
        want = ((limit - buffer) - length) / buffer
    assert got.item() == pytest.approx(want)


@given(seeds)
def test_an_outcome_is_paid_at_the_last_own_token(seed: int) -> None:
    mask = batch(seed)["mask"]
    reward = torch.arange(1.0, B + 1)
    got = rewards.at_end(reward, mask)
    for row in range(B):
        last = max(t for t in range(T) if mask[row, t])
        assert got[row, last] == reward[row]
    assert int((got != 0).sum()) == B


@given(seeds)
def test_packing_changes_no_sum_over_a_sequence(seed: int) -> None:
    rows = batch(seed, "column")
    joined = packed(rows)
    sequence, mask = joined["sequence"], joined["mask"]
    one = sequences.sums(rows["column"], rows["mask"])
    other = sequences.sums(joined["column"], mask, sequence, num_sequences=B)
    torch.testing.assert_close(other, one)
    for name, function in (("to go", sequences.to_go), ("mean", reductions.sequence_mean)):
        flat = function(rows["column"], rows["mask"])
        packed_ = function(joined["column"], mask, sequence)
        if flat.ndim:
            flat, packed_ = flat[rows["mask"]], packed_[mask]
        torch.testing.assert_close(packed_, flat, msg=name)
    reward = torch.arange(1.0, B + 1)
    want = rewards.at_end(reward, rows["mask"])[rows["mask"]]
    assert torch.equal(rewards.at_end(reward, mask, sequence)[mask], want)
    share = reductions.sequence_weight(rows["mask"])[rows["mask"]]
    assert torch.equal(reductions.sequence_weight(mask, sequence)[mask], share)
    assert reductions.count_sequences(mask, sequence) == B


@given(seeds, st.sampled_from([1.5, 2.0, math.inf]))
def test_weights_against_the_sampler_are_truncated(seed: int, bound: float) -> None:
    b = batch(seed, "old_log_prob", "sampler_log_prob")
    single = sampler.truncated_weight(**b, max_weight=bound)
    whole = sampler.truncated_weight(**b, max_weight=bound, level="sequence")
    for row in range(B):
        own = [t for t in range(T) if b["mask"][row, t]]
        gaps = [float(b["old_log_prob"][row, t] - b["sampler_log_prob"][row, t]) for t in own]
        for t, gap in zip(own, gaps, strict=True):
            assert single[row, t].item() == pytest.approx(min(math.exp(gap), bound))
            assert whole[row, t].item() == pytest.approx(min(math.exp(sum(gaps)), bound))
    assert not single[~b["mask"]].any()
    assert not whole[~b["mask"]].any()


@given(seeds)
def test_the_gap_is_measured_over_own_tokens(seed: int) -> None:
    b = batch(seed, "old_log_prob", "sampler_log_prob")
    gap = (b["old_log_prob"] - b["sampler_log_prob"])[b["mask"]]
    terms = sampler.gap(**b)
    assert terms["sampler_gap"].item() == pytest.approx(gap.abs().mean().item())
    assert terms["sampler_gap_max"].item() == pytest.approx(gap.abs().max().item())
    assert terms["sampler_kl"].item() == pytest.approx((gap.exp() - 1 - gap).mean().item())
    same = sampler.gap(b["old_log_prob"], b["old_log_prob"], b["mask"])
    assert not any(same.values())


REWARD, GROUP = samples(0)
MASK = batch(0)["mask"]
ROWS = batch(0, "old_log_prob", "sampler_log_prob")
REFUSED: list[tuple[str, Callable[[], Any]]] = [
    (
        r"scale: expected 'group', 'batch' or 'none', got 'std'",
        lambda: advantages.grpo(REWARD, GROUP, scale="std"),  # type: ignore[arg-type]
    ),
    (r"epsilon: expected a positive", lambda: advantages.grpo(REWARD, GROUP, epsilon=0)),
    (r"group: expected 0 to 8, got -1", lambda: advantages.rloo(REWARD, GROUP - 1 - GROUP.min())),
    (r"group: expected integers, got torch.float", lambda: advantages.rloo(REWARD, REWARD)),
    (
        r"group: expected shape \(9,\), got \(2,\): give each sample the number of its group",
        lambda: groups.informative(REWARD, GROUP[:2]),
    ),
    (
        r"reward: expected finite numbers, got nan at \[0\]",
        lambda: advantages.grpo(REWARD * torch.nan, GROUP),
    ),
    (r"reward: expected \[N\]", lambda: advantages.grpo(REWARD[None], GROUP[None])),
    (
        r"values: expected shape \(4,\), got \(9,\): give one a row, or `sequence`",
        lambda: sequences.spread(REWARD, MASK),
    ),
    (
        r"sequence: expected 0 to 1, got",
        lambda: sequences.sums(MASK.float(), MASK, MASK.long() * 2, num_sequences=2),
    ),
    (
        r"num_sequences: expected 1 or more, got 0",
        lambda: sequences.sums(MASK.float(), MASK, MASK.long(), num_sequences=0),
    ),
    (
        r"buffer: expected max_length=4 or less, got 5",
        lambda: rewards.overlong_penalty(REWARD, max_length=4, buffer=5),
    ),
    (
        r"max_length: expected a positive",
        lambda: rewards.overlong_penalty(REWARD, max_length=0, buffer=5),
    ),
    (r"max_weight: expected a positive", lambda: sampler.truncated_weight(**ROWS, max_weight=0)),
    (
        r"level: expected 'token' or 'sequence', got 'row'",
        lambda: sampler.truncated_weight(**ROWS, level="row"),  # type: ignore[arg-type]
    ),
    (
        r"moments: expected shape \(3,\), got \(2,\)",
        lambda: advantages.whitened(MASK.float(), MASK, moments=torch.ones(2)),
    ),
    (
        r"sampler_log_prob: expected shape \(4, 6\)",
        lambda: sampler.gap(ROWS["old_log_prob"], ROWS["sampler_log_prob"][:2], MASK),
    ),
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_bad_input_is_refused_in_words(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=message):
        call()
