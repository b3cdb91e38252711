from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bray_algo.networks.spatial import scatter

B, N, D, H, W = 2, 6, 3, 2, 3


@given(st.integers(0, 1000), st.sampled_from(["sum", "mean"]))
def test_against_loops(seed: int, reduce: Literal["sum", "mean"]) -> None:
    rng = np.random.default_rng(seed)
    entities, present = rng.normal(size=(B, N, D)), rng.random((B, N)) < 0.7
    position = rng.integers(-1, 4, size=(B, N, 2))  # some stand off the map
    want, count = np.zeros((B, D, H, W)), np.zeros((B, 1, H, W))
    for b in range(B):
        for n in range(N):
            row, column = position[b, n]
            if present[b, n] and 0 <= row < H and 0 <= column < W:
                want[b, :, row, column] += entities[b, n]
                count[b, :, row, column] += 1
    entities[~present] = np.nan
    got = scatter(*(torch.tensor(a) for a in (entities, position, present)), H, W, reduce)
    assert np.allclose(got.numpy(), want / np.maximum(count, 1) if reduce == "mean" else want)


def test_gradients_reach_whoever_is_on_the_map() -> None:
    entities = torch.randn(1, 3, 2, requires_grad=True)
    position = torch.tensor([[[0, 0], [0, 0], [9, 9]]])
    present = torch.tensor([[True, True, True]])
    scatter(entities, position, present, H, W).sum().backward()
    assert entities.grad is not None
    assert entities.grad.tolist() == [[[1, 1], [1, 1], [0, 0]]]


def test_bad_input_is_refused() -> None:
    entities, present = torch.zeros(B, N, D), torch.ones(B, N, dtype=torch.bool)
    position = torch.zeros(B, N, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"entities: expected \[B, N, D\], got shape \(2, 6\)"):
        scatter(torch.zeros(B, N), position, present, H, W)
    with pytest.raises(ValueError, match=r"position: expected integers \(2, 6, 2\), got torch.flo"):
        scatter(entities, position.float(), present, H, W)
    with pytest.raises(ValueError, match="present: expected bool"):
        scatter(entities, position, present.float(), H, W)
    with pytest.raises(ValueError, match="height, width: expected positive numbers, got 0, 3"):
        scatter(entities, position, present, 0, W)
    with pytest.raises(ValueError, match="reduce: expected 'sum' or 'mean', got 'max'"):
        scatter(entities, position, present, H, W, "max")  # type: ignore[arg-type]
