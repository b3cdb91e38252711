from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec

LEAVES = st.integers(0, 5).map(lambda n: np.arange(n, dtype=np.float32))
TREES = st.recursive(
    LEAVES,
    lambda children: (
        st.dictionaries(st.text("abc", min_size=1), children, min_size=1)
        | st.lists(children, min_size=1)
        | st.tuples(children, children)
    ),
    max_leaves=8,
)


def equal(one: Any, other: Any) -> bool:
    a, b = nested.flatten(one), nested.flatten(other)
    return list(a) == list(b) and all(np.array_equal(a[path], b[path]) for path in a)


@given(TREES)
def test_unflatten_inverts_flatten(tree: Any) -> None:
    again = nested.unflatten(tree, nested.flatten(tree).values())
    assert equal(tree, again)
    assert type(again) is type(tree)


@given(TREES, st.integers(1, 4))
def test_split_inverts_concat(tree: Any, count: int) -> None:
    trees = [nested.map(lambda leaf, i=i: leaf[None] + i, tree) for i in range(count)]
    parts = nested.split(nested.concat(trees), [1] * count)
    assert all(equal(a, b) for a, b in zip(trees, parts, strict=True))


def test_the_order_of_keys_does_not_matter() -> None:
    assert list(nested.flatten({"b": 1, "a": {"d": 2, "c": 3}})) == ["a/c", "a/d", "b"]


def test_stack_adds_an_axis() -> None:
    stacked = nested.stack([{"x": np.zeros(3)}, {"x": np.ones(3)}])
    assert stacked["x"].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_errors_name_the_leaf() -> None:
    spec = {"observation": {"units": [ArraySpec(np.dtype("float32"), (16,))] * 4}}
    good = {"observation": {"units": [np.zeros(16, np.float32)] * 4}}
    nested.check(good, spec)
    bad = {"observation": {"units": [*good["observation"]["units"][:3], np.zeros(15)]}}
    with pytest.raises(
        SpecError, match=r"observation/units\[3\]: expected float32 \(16,\), got float64 \(15,\)"
    ):
        nested.check(bad, spec)
    with pytest.raises(SpecError, match="segment/y: unexpected"):
        nested.check({"x": 1, "y": 2}, {"x": 1}, name="segment")
    with pytest.raises(SpecError, match="x: missing"):
        nested.check({}, {"x": ArraySpec(np.dtype("float32"), ())})


def test_big_endian_numbers_are_refused_with_the_cure() -> None:
    given = {"x": np.zeros(3, ">f4")}
    wanted = {"x": nested.ArraySpec(np.dtype(np.float32), (3,))}
    with pytest.raises(SpecError, match=r"got >f4 .*big-endian, \.astype\('float32'\) turns them"):
        nested.check(given, wanted)
    nested.check({"x": given["x"].astype("float32")}, wanted)


def test_a_tree_of_very_many_leaves_is_not_named_leaf_by_leaf() -> None:
    """Paths of 100,000 characters each would be 1 GB."""
    tree = {"k" * 100_000: [1] * 10_000, "x": np.zeros(3)}
    with pytest.raises(SpecError, match=r"tree: expected the leaves \['x'\], got more than 1001"):
        nested.check(tree, {"x": nested.ArraySpec(np.dtype(np.float64), (3,))})


def test_lead_dimensions_are_checked() -> None:
    spec = ArraySpec(np.dtype("float32"), (2,))
    nested.check(np.zeros((7, 2), np.float32), spec, (None,))
    with pytest.raises(SpecError, match=r"expected float32 \(any, 2\), got float32 \(2,\)"):
        nested.check(np.zeros(2, np.float32), spec, (None,))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nested.spec({"x": [1.0]}), r"x\[0\]: expected a numpy array, got float"),
        (lambda: nested.flatten({1: 2}), "keys must be str, got 1"),
        (lambda: nested.stack([]), "expected at least one tree"),
        (lambda: nested.concat([]), "expected at least one tree"),
        (lambda: nested.map(max, {"x": 1}, {"y": 1}), "x: missing"),
        (lambda: nested.unflatten([0, 0], [1]), "fewer leaves"),
        (lambda: nested.unflatten([0], [1, 2]), "more leaves"),
        (lambda: nested.split({"x": np.zeros(3)}, [1, 1]), "x: sizes add up to 2, got 3"),
    ],
)
def test_misuse_is_explained(call: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()
