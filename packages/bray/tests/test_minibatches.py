"""Minibatches: every row once an epoch, none larger than wanted."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from bray.training.minibatches import minibatches


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(1, 30), st.integers(0, 99))
def test_every_row_is_in_one_minibatch_of_no_more_steps_than_wanted(
    steps: list[int], size: int, seed: int
) -> None:
    order = torch.randperm(len(steps), generator=torch.Generator().manual_seed(seed))
    parts = [part.tolist() for part in minibatches(order, steps, size)]
    assert [row for part in parts for row in part] == order.tolist()
    for part in parts:
        assert part
        assert len(part) == 1 or sum(steps[row] for row in part) <= size
    for part, following in itertools.pairwise(parts):
        if max(steps) > 1:
            assert sum(steps[row] for row in part) + steps[following[0]] > size, "joined greedily"


@given(st.integers(1, 200), st.integers(1, 60))
def test_steps_alone_are_shared_out_evenly(count: int, size: int) -> None:
    sizes = [len(part) for part in minibatches(torch.arange(count), [1] * count, size)]
    assert len(sizes) == -(-count // size)
    assert max(sizes) - min(sizes) <= 1
