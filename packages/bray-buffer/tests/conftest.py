from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bray_core import metrics, nested
from bray_core.layout import Layout, Packed

T = 4


def make(number: int, length: int = T) -> dict[str, Any]:
    """A segment that can be told from others by its number."""
    return {
        "observation": {"units": np.full((T, 3), number, np.float32)},
        "reward": np.arange(T, dtype=np.float32) + number,
        "terminated": np.zeros(T, bool),
        "number": np.array(number, np.int64),
        "length": np.array(length, np.int32),
    }


@pytest.fixture(scope="session")
def segment() -> Callable[..., dict[str, Any]]:
    return make


@pytest.fixture(scope="session")
def layout() -> Layout:
    return Layout(nested.spec(make(0)))


@pytest.fixture(scope="session")
def numbers() -> Callable[[Packed], list[int]]:
    """Packed → the numbers of its segments; checks that their other leaves belong to them."""

    def numbers(packed: Packed) -> list[int]:
        tree: Any = packed.tree
        for row, number in enumerate(tree["number"]):
            expected = make(number, tree["length"][row])
            assert all(map(np.array_equal, _leaves(expected), _leaves(_row(tree, row))))
        return [int(number) for number in tree["number"]]

    return numbers


def _row(tree: Any, row: int) -> Any:
    return nested.map(lambda leaf: leaf[row], tree)


def _leaves(tree: Any) -> list[Any]:
    return [leaf for _, leaf in nested.items(tree)]


@pytest.fixture
def recorded() -> Iterator[Callable[[], dict[str, float]]]:
    """What was recorded since the test began: name → sum, or the last value."""
    metrics.drain()
    yield lambda: {
        sample.name: sample.last if sample.kind == "last" else sample.total
        for sample in metrics.drain()
    }
    metrics.drain()
