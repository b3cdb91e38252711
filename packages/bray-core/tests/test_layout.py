from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec

DTYPES = st.sampled_from(["?", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"])
SPECS = st.dictionaries(
    st.text("abc", min_size=1),
    st.builds(
        lambda dtype, shape: ArraySpec(np.dtype(dtype), shape),
        DTYPES,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    min_size=1,
)


def filled(spec: Any, lead: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def fill(leaf: ArraySpec) -> Any:
        return rng.integers(0, 2, (*lead, *leaf.shape)).astype(leaf.dtype)

    return nested.map(fill, spec)


@given(SPECS, st.sampled_from([(), (3,), (2, 5)]), st.integers(0, 100))
def test_views_give_back_what_was_packed(spec: Any, lead: tuple[int, ...], seed: int) -> None:
    layout = Layout(spec)
    tree = filled(spec, lead, seed)
    first = layout.fields[0]
    block = layout.pack(tree)
    assert block.shape == (*lead, layout.nbytes)
    views = layout.views(block)
    for path, leaf in nested.flatten(tree).items():
        view = nested.flatten(views)[path]
        assert np.array_equal(view, leaf)
        assert view.dtype == leaf.dtype
        assert not leaf.size or np.shares_memory(view, block)
    assert first.offset == 0


@given(SPECS)
@example({"a": ArraySpec(np.dtype("c16"), (0,))})
def test_leaves_are_aligned_and_apart(spec: Any) -> None:
    layout = Layout(spec)
    end = 0
    for field in layout.fields:
        assert field.offset >= end
        assert field.offset % field.dtype.itemsize == layout.nbytes % field.dtype.itemsize == 0
        end = field.offset + field.nbytes
    assert layout.nbytes >= max(end, 8)
    assert layout.nbytes % 8 == 0


def test_joining_blocks_is_one_copy_and_leaves_stay_views() -> None:
    layout = Layout({"x": ArraySpec(np.dtype("f4"), (3,)), "y": ArraySpec(np.dtype("i8"), ())})
    blocks = [layout.pack({"x": np.full(3, i, "f4"), "y": np.array(i)}) for i in range(4)]
    batch = Packed(layout, np.stack(blocks))
    assert batch.tree["x"].shape == (4, 3)
    assert batch.tree["y"].tolist() == [0, 1, 2, 3]
    batch.tree["y"][2] = 7
    assert layout.views(batch.block)["y"][2] == 7


def test_equal_specs_have_equal_layouts_whatever_the_order() -> None:
    a, b = ArraySpec(np.dtype("f4"), (2,)), ArraySpec(np.dtype("i4"), ())
    one, other = Layout({"a": a, "b": b}), Layout({"b": b, "a": a})
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert Layout({"a": a, "b": a}) != one


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "at least one leaf"),
        ({"x": ArraySpec(np.dtype("O"), ())}, "x: expected a bool, integer"),
        ({"x": ArraySpec(np.dtype("U3"), ())}, "x: expected a bool, integer"),
        ({"x": np.zeros(3)}, "x: expected an ArraySpec, got ndarray"),
    ],
)
def test_specs_that_have_no_layout(spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Layout(spec)


def test_what_does_not_fit_is_named() -> None:
    layout = Layout({"x": ArraySpec(np.dtype("f4"), (3,))})
    with pytest.raises(SpecError, match=r"x: expected float32 \(3,\), got float64 \(3,\)"):
        layout.pack({"x": np.zeros(3)})
    with pytest.raises(SpecError, match="x: missing"):
        layout.pack({"y": np.zeros(3)})
    with pytest.raises(SpecError, match="leading dimensions"):
        layout.pack({"x": np.zeros((2, 3), "f4")}, layout.empty(3))
    with pytest.raises(SpecError, match=r"block: expected uint8 \(\.\.\., 16\)"):
        layout.views(np.zeros(15, np.uint8))


def test_leaves_may_be_placed() -> None:
    """A row of two steps, of which the second one's `x` is the first one's `next_x`."""
    spec = {"next_x": ArraySpec(np.dtype("f4"), (2,)), "x": ArraySpec(np.dtype("f4"), (2,))}
    layout = Layout(spec, offsets=[16, 0], nbytes=32)
    rows = np.arange(16, dtype=np.float32).reshape(2, 8)
    views: Any = layout.views(rows.view(np.uint8))
    assert views["x"].tolist() == [[0, 1], [8, 9]]
    assert views["next_x"].tolist() == [[4, 5], [12, 13]]
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert (again.nbytes, again.fields) == (32, layout.fields)
    assert layout not in (Layout(spec), Layout(spec, offsets=[16, 0], nbytes=40))


def test_places_that_cannot_be_are_refused() -> None:
    spec = {"x": ArraySpec(np.dtype("f4"), (2,))}
    assert Layout(spec, offsets=[0]) == Layout(spec)
    with pytest.raises(SpecError, match="offsets: expected one for each of 1 leaves"):
        Layout(spec, offsets=[0, 8])
    with pytest.raises(SpecError, match="x: expected an offset that is a multiple of 4, got 2"):
        Layout(spec, offsets=[2])
    for nbytes in (8, 20):
        with pytest.raises(SpecError, match="nbytes: expected a multiple of 8, 16 or more"):
            Layout(spec, offsets=[4], nbytes=nbytes)
