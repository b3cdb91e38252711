"""The sum tree against plain cumulative sums over all items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_buffer.replay.sum_tree import SumTree


def shares(tree, values):
    """Find the two ends of every item's share and check that the shares are the values.

    The order of the items is the tree's own, so that a share begins where another one ends.
    """
    begin = 0.0
    for item in order(tree, np.flatnonzero(values)):
        for point in (begin, begin + 0.5 * values[item], begin + values[item] * (1 - 1e-9)):
            assert tree.find(np.array([point])).tolist() == [item]
        begin += values[item]
    assert tree.total == pytest.approx(begin)


def order(tree, items):
    """Return the items in the order of their shares: from a search with very many points."""
    points = np.linspace(0, tree.total, 4001, endpoint=False)
    found = tree.find(points)
    assert set(found.tolist()) <= set(items.tolist())
    return list(dict.fromkeys(found.tolist()))


@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n, max_size=n)))
def test_each_item_has_the_share_of_its_value(values):
    values = np.array(values, np.float64)
    tree = SumTree(len(values))
    tree.write(0, len(values), values)
    tree.add_up(0, len(values))
    if values.any():
        shares(tree, values)


@pytest.mark.parametrize("capacity", [1, 7, 2048, 2049, 20_000, 140_000])
def test_shares_of_random_values_at_every_depth(capacity):
    """A search of evenly spaced points meets each item as often as its value says, ±1."""
    random = np.random.default_rng(capacity)
    values = random.random(capacity) * (random.random(capacity) < 0.5)
    values[-1] = 1.0
    tree = SumTree(capacity)
    items = random.permutation(capacity)
    for part in np.array_split(items, 3):
        tree.set(part, values[part])
    assert tree.total == pytest.approx(values.sum())
    points = np.linspace(0, tree.total, 500_000, endpoint=False)
    met = np.bincount(tree.find(points), minlength=capacity)
    assert np.all(np.abs(met - values / values.sum() * len(points)) <= 1 + 1e-6)
    assert not met[values == 0].any()


def test_points_at_the_edges_find_items_that_have_a_value():
    values = np.zeros(3000)
    values[[5, 6, 2999]] = 1e-18, 1.0, 1e-18
    tree = SumTree(3000)
    tree.set(np.arange(3000), values)
    points = np.array([0.0, 1e-18, 0.5, tree.total, np.nextafter(tree.total, 0), 2.0])
    assert set(tree.find(points).tolist()) <= {5, 6, 2999}


def test_sums_do_not_drift():
    """Values of very different size come and go; a running sum would keep their rounding."""
    tree = SumTree(5000)
    random = np.random.default_rng(0)
    for _ in range(300):
        items = random.integers(5000, size=64)
        tree.set(items, 10.0 ** random.integers(-12, 12, size=64))
    tree.write(0, 5000, 0.0)
    tree.add_up(0, 5000)
    assert tree.total == 0
    tree.set(np.array([17, 17]), np.array([1.0, 0.25]))  # the last one counts
    assert tree.total == 0.25


def test_ranges_equal_single_items():
    random = np.random.default_rng(1)
    one, other = SumTree(4000), SumTree(4000)
    for _ in range(100):
        start = int(random.integers(4000))
        stop = int(min(4000, start + random.integers(1, 3000)))
        values = random.random(stop - start)
        one.write(start, stop, values)
        one.add_up(start, stop)
        other.set(np.arange(start, stop), values)
        points = random.random(50) * one.total
        assert one.total == other.total
        assert one.find(points).tolist() == other.find(points).tolist()
