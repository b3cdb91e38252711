from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bray_algo.distributions import categorical
from bray_algo.networks.heads import DuellingHead, PointerHead


def test_the_pointer_against_loops() -> None:
    head = PointerHead(4, 3, size=5).double()
    features = torch.randn(2, 4, dtype=torch.float64)
    entities = torch.randn(2, 6, 3, dtype=torch.float64)
    present = torch.tensor([[True] * 6, [False, True, False, True, False, False]])
    entities[~present] = torch.nan
    got = categorical.log_probs(head(features, entities, present))
    w_q, w_k = (part.weight.detach().numpy() for part in (head.query, head.key))
    b_q, b_k = (part.bias.detach().numpy() for part in (head.query, head.key))
    for b in range(2):
        query = w_q @ features[b].numpy() + b_q
        scores = {
            n: query @ (w_k @ entities[b, n].numpy() + b_k) / math.sqrt(5)
            for n in np.flatnonzero(present[b].numpy())
        }
        total = sum(math.exp(score) for score in scores.values())
        for n, score in scores.items():
            assert got[b, n].exp().item() == pytest.approx(math.exp(score) / total)
    assert (got.exp()[~present] == 0).all()
    gradients = torch.autograd.grad(categorical.entropy(got).sum(), list(head.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_a_pointer_needs_somebody_to_point_at() -> None:
    head = PointerHead(4, 3)
    with pytest.raises(ValueError, match="one legal action or more in each row"):
        head(torch.zeros(1, 4), torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"present: expected bool \(1, 2\)"):
        head(torch.zeros(1, 4), torch.zeros(1, 2, 3), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="size: expected positive numbers, got 4, 3, 0"):
        PointerHead(4, 3, 0)


@pytest.mark.parametrize(("atoms", "hidden"), [(1, ()), (5, (7,))])
def test_the_mean_of_duelling_values_is_the_value(atoms: int, hidden: tuple[int, ...]) -> None:
    head = DuellingHead(4, 3, atoms, hidden)
    features = torch.randn(6, 4)
    q = head(features)
    assert q.shape == ((6, 3) if atoms == 1 else (6, 3, atoms))
    value, advantage = head.value(features), head.advantage(features).view(6, 3, atoms)
    q = q.view(6, 3, atoms)
    assert torch.allclose(q.mean(1), value, atol=1e-6)
    assert torch.allclose(q[:, 2] - q[:, 0], advantage[:, 2] - advantage[:, 0], atol=1e-5)


def test_numbers_of_a_duelling_head_are_checked() -> None:
    with pytest.raises(ValueError, match=r"num_actions, num_atoms: expected positive .* got 0, 1"):
        DuellingHead(4, 0)
