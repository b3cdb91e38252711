from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bray_core import metrics, nested
from bray_core.layout import Layout, Packed

T = 4
FINAL = 1_000_000
"""Added to the number of a last step: its final observation."""


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


def make_steps(first: int, length: int = 5, ends: tuple[int, ...] = ()) -> dict[str, Any]:
    """A segment of up to 5 steps `first`, `first + 1`, …; those at `ends` terminate."""
    steps = np.arange(first, first + 5, dtype=np.float64)
    steps[length:] = -1
    terminated = np.zeros(5, bool)
    terminated[list(ends)] = True
    return {
        "observation": {"x": np.stack([steps, -steps], 1), "y": [steps.astype(np.int32)]},
        "action": steps.astype(np.int64),
        "reward": np.sqrt(np.abs(steps)).astype(np.float32),
        "terminated": terminated,
        "final_observation": {
            "x": np.array([FINAL + first + length - 1, -1.0]),
            "y": [np.array(FINAL + first + length - 1, np.int32)],
        },
        "length": np.array(length, np.int32),
        "episode_return": np.array(0.0, np.float32),
    }


def make_stacks(
    first: int, axis: int, shape: tuple[int, ...] = (4, 2), steps: int = 6
) -> dict[str, Any]:
    """A segment with stacks of 3 random frames on `axis`, seeded by `first`."""
    frames = np.random.default_rng(first).integers(0, 256, (steps + 3, *shape), np.uint8)
    stacks = np.stack([frames[at : at + 3] for at in range(steps + 1)])
    stacks = np.moveaxis(stacks, 1, axis + 1 if axis >= 0 else axis)
    return {
        "observation": {"image": stacks[:-1], "speed": np.arange(first, first + steps)},
        "action": np.arange(first, first + steps),
        "reward": np.ones(steps, np.float32),
        "terminated": np.zeros(steps, bool),
        "final_observation": {"image": stacks[-1], "speed": np.array(first + steps)},
    }


@pytest.fixture(scope="session")
def steps() -> Callable[..., dict[str, Any]]:
    return make_steps


@pytest.fixture(scope="session")
def stacks() -> Callable[..., dict[str, Any]]:
    return make_stacks
