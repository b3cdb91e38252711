"""Choices that depend on earlier ones, beside an enumeration of all actions in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bray_algo.distributions import autoregressive, categorical, outputs

SIZES = (3, 2, 4)
ORDERS = [(0, 1, 2), (2, 0, 1), (1, 2, 0)]


def made(
    order: tuple[int, ...],
    sizes: tuple[int, ...] = SIZES,
    num_reals: int = 0,
    lead: tuple[int, ...] = (),
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(len(order) + num_reals)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=generator, dtype=torch.float64)

    part = np.repeat(np.arange(len(sizes)), sizes)  # of each value
    rank = np.argsort(order)
    later = rank[part][:, None] < np.concatenate([rank[part], np.full(num_reals, len(sizes))])
    all_outputs: dict[str, Any] = {
        "logits": [randn(size) for size in sizes],
        "conditional": 2.0 * randn(sum(sizes), sum(sizes) + num_reals) * torch.from_numpy(later),
        "order": torch.tensor(order, dtype=torch.float64).expand(*lead, len(sizes)),
    }
    if num_reals:
        all_outputs |= {"mean": randn(num_reals), "log_std": 0.3 * randn(num_reals)}
    return all_outputs


def enumerated(row: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Each action of one row and its probability, drawn part by part in their order."""
    logits = [part.numpy() for part in row["logits"]]
    table = row["conditional"].numpy()
    sizes = [len(part) for part in logits]
    starts = np.cumsum([0, *sizes])
    for action in itertools.product(*map(range, sizes)):
        p, chosen = 1.0, list[int]()
        for k in row["order"].int().tolist():
            numbers = logits[k] + sum(
                (table[i, starts[k] : starts[k + 1]] for i in chosen), np.zeros(sizes[k])
            )
            weights = np.exp(numbers - numbers.max())
            p *= weights[action[k]] / weights.sum()
            chosen.append(starts[k] + action[k])
        yield action, p


@pytest.mark.parametrize("order", ORDERS)
def test_probabilities_are_those_of_drawing_part_by_part(order: tuple[int, ...]) -> None:
    row = made(order)
    want = dict(enumerated(row))
    assert sum(want.values()) == pytest.approx(1.0, abs=1e-12)
    for action, p in want.items():
        got = outputs.log_prob(row, torch.tensor(action))
        assert math.exp(got.item()) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("sizes", [(3, 4), SIZES])
def test_the_entropy_is_exact_and_so_is_the_estimates_mean(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = made((1, 0, 2)[: len(sizes)], sizes)
    want = dict(enumerated(row))
    entropy = -sum(p * math.log(p) for p in want.values())
    assert outputs.entropy(row).item() == pytest.approx(entropy, rel=1e-9)
    monkeypatch.setattr(autoregressive, "MAX_JOINT", 1)
    estimates = [p * outputs.entropy(row, torch.tensor(a)).item() for a, p in want.items()]
    assert sum(estimates) == pytest.approx(entropy, rel=1e-9)
    with pytest.raises(ValueError, match="action: expected the action that was drawn"):
        outputs.entropy(row)


def test_rows_of_a_batch_are_those_alone() -> None:
    rows = made((2, 0, 1), lead=(5, 2), num_reals=2)
    choices = torch.stack([torch.arange(10).reshape(5, 2) % size for size in SIZES], -1)
    reals = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 2, 2)
    action = torch.cat([choices.double(), reals], -1)
    log_prob, entropy = outputs.log_prob_and_entropy(rows, action)
    mode = outputs.mode(rows)
    for i, j in itertools.product(range(5), range(2)):
        row = {
            name: [part[i, j] for part in leaf] if name == "logits" else leaf[i, j]
            for name, leaf in rows.items()
        }
        torch.testing.assert_close(outputs.log_prob(row, action[i, j]), log_prob[i, j])
        torch.testing.assert_close(outputs.entropy(row), entropy[i, j])
        torch.testing.assert_close(outputs.mode(row), mode[i, j])


def test_reals_have_means_that_follow_the_choices() -> None:
    row = made((0, 1), (2, 3), num_reals=2)
    for action, p in enumerated(row):
        mean = (
            row["mean"] + row["conditional"][action[0], 5:] + row["conditional"][2 + action[1], 5:]
        )
        x = torch.tensor([0.3, -0.7], dtype=torch.float64)
        std = row["log_std"].exp()
        density = -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)
        got = outputs.log_prob(row, torch.cat([torch.tensor(action), x]))
        assert got.item() == pytest.approx(math.log(p) + density.sum().item(), rel=1e-9)
    of_choices = -sum(p * math.log(p) for _, p in enumerated(row))
    of_reals = (row["log_std"] + 0.5 * math.log(2 * math.pi * math.e)).sum().item()
    assert outputs.entropy(row).item() == pytest.approx(of_choices + of_reals, rel=1e-9)


def test_squashed_reals_have_the_mean_entropy_over_all_choices() -> None:
    row = made((0, 1), (2, 3), num_reals=1)
    row |= {"low": torch.full((1,), -2.0), "high": torch.full((1,), 4.0)}
    row = {**row, "low": row["low"].double(), "high": row["high"].double()}
    want = 0.0
    for action, p in enumerated(row):
        mean = (
            row["mean"] + row["conditional"][action[0], 5:] + row["conditional"][2 + action[1], 5:]
        )
        alone = {name: row[name] for name in ("log_std", "low", "high")}
        want += p * (outputs.entropy({**alone, "mean": mean}).item() - math.log(p))
    assert outputs.entropy(row).item() == pytest.approx(want, rel=1e-9)


def test_gradients_are_finite_differences() -> None:
    row = made((1, 0), (2, 3), num_reals=1)
    action = torch.tensor([1.0, 2.0, 0.4], dtype=torch.float64)
    names = ("conditional", "mean", "log_std")
    leaves = [*row["logits"], *(row[name] for name in names)]

    def both(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        changed = {"logits": list(tensors[:2]), **dict(zip(names, tensors[2:], strict=True))}
        return outputs.log_prob_and_entropy({**row, **changed}, action)

    assert torch.autograd.gradcheck(both, [leaf.clone().requires_grad_() for leaf in leaves])


def test_values_that_are_not_allowed_stay_so() -> None:
    row = made((0, 1, 2))
    legal = torch.tensor([True, False, True, True])
    row["logits"][2] = categorical.mask(row["logits"][2].float(), legal).double()
    p = torch.stack(
        [outputs.log_prob(row, torch.tensor([0, 1, value])) for value in range(4)]
    ).exp()
    assert p[1] == 0.0
    assert outputs.entropy(row).isfinite()
    assert outputs.mode(row)[2] != 1


def test_the_mode_takes_each_part_given_those_before() -> None:
    row = made((2, 0, 1))
    table, mode = row["conditional"], outputs.mode(row)
    last = row["logits"][2].argmax()
    first = (row["logits"][0] + table[5 + last, :3]).argmax()
    middle = (row["logits"][1] + table[5 + last, 3:5] + table[first, 3:5]).argmax()
    assert mode.tolist() == [first, middle, last]


def test_an_action_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"action.*expected 0 to 1"):
        outputs.log_prob(made((0, 1, 2)), torch.tensor([0, 2, 0]))
