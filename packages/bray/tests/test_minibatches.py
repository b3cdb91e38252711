"""Minibatches: every row once an epoch, none larger than wanted."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from bray.training.minibatches import epochs_at_once, even_sizes, minibatches, shuffled


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


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_each_epoch_has_every_row_once_in_its_own_order(
    count: int, size: int, epochs: int, is_nested: bool
) -> None:
    generator = torch.Generator().manual_seed(count)
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    number = torch.arange(count)
    rows = {"number": number, "seen": {"double": 2 * number} if is_nested else 2 * number}
    batches = list(shuffled(rows, orders, size))
    assert torch.equal(torch.cat([batch["number"] for batch in batches]), torch.cat(orders))
    sizes = [len(batch["number"]) for batch in batches]
    assert sizes == even_sizes(count, size) * epochs
    assert max(sizes) <= size
    for batch in batches:
        seen = batch["seen"]["double"] if is_nested else batch["seen"]
        assert torch.equal(seen, 2 * batch["number"])


def test_large_rows_are_copied_an_epoch_at_a_time_or_a_minibatch() -> None:
    assert epochs_at_once({"small": torch.zeros(100)}, 10) == 10
    assert epochs_at_once({"some": torch.zeros(2**20)}, 10) == 3
    large = {"large": torch.zeros(2**22)}
    assert epochs_at_once(large, 10) == 1
    (first, *_) = shuffled(large, [torch.arange(2**22)], 1024)
    assert first["large"].untyped_storage().nbytes() == 4096
