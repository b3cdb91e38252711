"""Learnt values of tokens against the papers' formulas, in float64 loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from token_batches import B, Batch, T, batch, packed, padded

from bray_algo.tokens import rewards, values

seeds = st.integers(0, 1000)
COLUMNS = "token_reward", "value"


def written_out(columns: Batch, discount: float, lambda_: float) -> list[list[float]]:
    """Equation 16: the sum of (γλ)^l δ over the own tokens from each one on, forwards."""
    found = [[0.0] * T for _ in range(B)]
    for row in range(B):
        own = [t for t in range(T) if columns["mask"][row, t]]
        reward, value = (columns[name][row].tolist() for name in COLUMNS)
        errors = []
        for place, t in enumerate(own):
            then = value[own[place + 1]] if place + 1 < len(own) else 0.0
            errors.append(reward[t] + discount * then - value[t])
        for place, t in enumerate(own):
            later = enumerate(errors[place:])
            found[row][t] = sum((discount * lambda_) ** n * error for n, error in later)
    return found


@given(seeds, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_gae_is_equation_16_over_own_tokens(seed: int, discount: float, lambda_: float) -> None:
    columns = batch(seed, *COLUMNS)
    given_ = {**columns, "discount": discount, "lambda_": lambda_}
    advantage, target = values.gae(**given_)
    wanted = torch.tensor(written_out(columns, discount, lambda_), dtype=torch.float64)
    torch.testing.assert_close(advantage, wanted, atol=1e-12, rtol=1e-12)
    own = columns["value"].masked_fill(~columns["mask"], 0)
    torch.testing.assert_close(target, wanted + own, atol=1e-12, rtol=1e-12)


@given(seeds)
def test_without_values_and_discount_it_is_the_reward_to_go(seed: int) -> None:
    columns = batch(seed, "value")
    reward = torch.arange(float(B)) + 1
    token = rewards.at_end(reward, columns["mask"])
    advantage, _ = values.gae(token, columns["value"] * 0, columns["mask"], lambda_=1.0)
    assert torch.equal(advantage, (reward[:, None] * columns["mask"]).double())


@given(seeds)
def test_packed_rows_and_padded_ones_are_those_of_a_row_each(seed: int) -> None:
    columns = batch(seed, *COLUMNS)
    advantage, target = values.gae(**columns)
    rubbish, _ = values.gae(**padded(columns, float("nan")))
    assert torch.equal(rubbish[:, :T], advantage)
    together = packed({**columns, "advantage": advantage, "target": target})
    names = *COLUMNS, "mask", "sequence"
    found, wanted = values.gae(**{name: together[name] for name in names})
    torch.testing.assert_close(found, together["advantage"], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(wanted, together["target"], atol=1e-12, rtol=1e-12)


@given(seeds, st.sampled_from([None, 0.2]))
def test_the_loss_is_that_of_trl(seed: int, clip: float | None) -> None:
    columns = batch(seed, "value", "old_value", "target")
    errors = []
    for row in range(B):
        for t in range(T):
            if not columns["mask"][row, t]:
                continue
            value, old, target = (float(columns[n][row, t]) for n in columns if n != "mask")
            error = (value - target) ** 2
            if clip is not None:
                held = min(max(value, old - clip), old + clip)
                error = max(error, (held - target) ** 2)
            errors.append(error)
    got = values.loss(**columns, value_clip=clip)
    assert got.item() == pytest.approx(sum(errors) / len(errors), abs=1e-12)
    halves = [
        {name: column[part] for name, column in columns.items()} for part in (slice(2), slice(2, B))
    ]
    parts = [values.loss(**half, value_clip=clip, num_tokens=len(errors)) for half in halves]
    assert sum(parts).item() == pytest.approx(got.item(), abs=1e-12)


def test_nonsense_is_refused() -> None:
    columns = batch(1, *COLUMNS)
    with pytest.raises(ValueError, match="lambda_"):
        values.gae(**columns, lambda_=1.5)
    with pytest.raises(ValueError, match="value"):
        values.gae(**{**columns, "value": columns["value"][:, :3]})
    with pytest.raises(ValueError, match="value"):
        values.gae(**{**columns, "value": columns["value"] / 0})
    two = batch(1, "value", "old_value", "target")
    with pytest.raises(ValueError, match="value_clip"):
        values.loss(**two, value_clip=-1.0)
    with pytest.raises(ValueError, match="target"):
        values.loss(**{**two, "target": two["target"][:2]})
