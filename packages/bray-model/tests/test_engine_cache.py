import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bray_core import metrics
from bray_model.engines.engine import EngineCache
from bray_model.versions.weights import VersionWeights

NBYTES = 80


class Engine:
    """Holds a number; counts how many were made."""

    def __init__(self, made):
        self.made = made
        self.value = 0
        made.append(self)

    def load(self, weights):
        self.value = int(weights["w"][0])

    def copy(self):
        return Engine(self.made)


def version(number):
    return VersionWeights(number, {"w": np.full(NBYTES // 8, number, np.int64)})


def cache(capacity, made=None):
    made = [] if made is None else made
    current = version(0)
    return EngineCache(Engine(made), current, capacity * NBYTES), current


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=60),
)
@example(2, [(u, n, False) for u, n in ((0, 0), (1, 1), (2, 2), (1, 0), (2, 1), (1, 2))])
def test_every_engine_holds_what_was_asked_for_within_the_bound(capacity, steps):
    """User 0 is the root; the others are clones, which may also leave."""
    made = []
    engines, _ = cache(capacity, made)
    versions = [version(number) for number in range(10)]
    left = 0
    for user, number, leaves in steps:
        if user == 0:
            assert engines.root_engine(versions[number]).value == number
        elif leaves:
            engines.leave(user)  # which frees memory: an engine may be made again for the next
            left += 1
        else:
            assert engines.engine(user, versions[number]).value == number
        assert engines.num_engines <= capacity
        assert len(made) <= 1 + capacity + left, "engines are reused, not copied"


@given(st.lists(st.integers(1, 6), max_size=50))
def test_the_least_recently_used_gives_way(asked):
    engines, _ = cache(3)
    versions = [version(number) for number in range(7)]
    recent: list[int] = []  # an LRU written down plainly
    misses = 0
    metrics.drain()
    for number in asked:
        misses += number not in recent
        recent = [*(n for n in recent if n != number), number][-3:]
        engines.engine(number, versions[number])
    counted = {sample.name: sample.value for sample in metrics.drain()}
    assert counted.get("model/version_loads", 0) == misses


def test_clones_of_the_roots_version_use_the_roots_engine():
    engines, current = cache(3)
    root = engines.root_engine(current)
    assert engines.engine("a", current) is root
    assert engines.num_engines == 0
    engines.root_engine(version(1))
    assert engines.engine("a", current) is not root
    assert engines.engine("a", current).value == 0


def test_two_clones_of_one_version_share_an_engine_until_both_left():
    engines, _ = cache(3)
    shared = version(5)
    assert engines.engine("a", shared) is engines.engine("b", shared)
    engines.engine("a", version(6))
    assert engines.engine("b", shared).value == 5
    assert engines.num_engines == 2


def test_a_clone_that_publishes_reuses_its_engine():
    made = []
    engines, _ = cache(10, made)
    for number in range(1, 20):
        assert engines.engine("a", version(number)).value == number
    assert len(made) == 2


def test_one_engine_is_held_even_without_room():
    engines, _ = cache(0)
    assert [engines.engine(n, version(n)).value for n in (1, 2, 1)] == [1, 2, 1]
    assert engines.num_engines == 1


def test_weights_that_cannot_be_read_disturb_nobody():
    engines, _ = cache(1)
    kept = version(1)
    held = engines.engine("a", kept)

    def broken():
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        engines.engine("b", VersionWeights(2, None, broken))
    assert engines.engine("a", kept) is held
    assert held.value == 1


def test_a_root_whose_load_failed_loads_again():
    engines, before = cache(1)
    root = engines.root_engine(before)
    load, root.load = root.load, None  # any failure half-way
    after = version(3)
    with pytest.raises(TypeError):
        engines.root_engine(after)
    root.load = load
    assert engines.engine("a", before) is not root, "it may hold parts of both"
    assert engines.root_engine(after).value == 3
