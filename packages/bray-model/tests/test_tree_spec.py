from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec
from bray_model.tree_spec import TreeSpec, unbatched

F32 = np.dtype(np.float32)
SPEC = {"b": [ArraySpec(F32, (2,)), ArraySpec(np.dtype(np.int64), ())], "a": ArraySpec(F32, (3,))}


def tree(rows=None):
    lead = () if rows is None else (rows,)
    return {
        "a": np.zeros((*lead, 3), np.float32),
        "b": [np.zeros((*lead, 2), np.float32), np.zeros(lead, np.int64)],
    }


def test_row_gives_the_leaves_in_the_fixed_order():
    spec = TreeSpec(SPEC, "inputs")
    assert spec.paths == ("inputs/a", "inputs/b[0]", "inputs/b[1]")
    assert [leaf.shape for leaf in spec.row(tree())] == [(3,), (2,), ()]


def test_row_takes_numpy_scalars_and_tuples_for_lists():
    given_tree = tree()
    given_tree["b"] = (given_tree["b"][0], np.int64(7))
    assert TreeSpec(SPEC, "inputs").row(given_tree)[2].item() == 7


def test_batch_gives_the_number_of_rows():
    leaves, rows = TreeSpec(SPEC, "inputs").batch(tree(5))
    assert rows == 5
    assert leaves[0].shape == (5, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("a"), "inputs/a: missing"),
        (lambda t: t.update(c=t["a"]), "inputs/c: unexpected"),
        (
            lambda t: t.update(a=t["a"].astype(np.float64)),
            r"inputs/a: expected float32 \(3,\), got float64 \(3,\)",
        ),
        (lambda t: t.update(a=t["a"].astype(">f4")), r"inputs/a: expected float32 \(3,\), got >f4"),
        (
            lambda t: t.update(a=np.zeros(4, np.float32)),
            r"inputs/a: expected float32 \(3,\), got float32 \(4,\)",
        ),
        (lambda t: t.update(a=[0.0, 0.0, 0.0]), r"inputs/a: missing"),
        (lambda t: t.update(b=np.zeros(2)), r"inputs/b\[0\]: missing"),
        (lambda t: t["b"].__setitem__(1, 3), r"inputs/b\[1\]: expected int64 \(\), got int"),
    ],
)
def test_row_names_the_leaf_that_does_not_fit(change, message):
    wrong = tree()
    change(wrong)
    with pytest.raises(SpecError, match=message):
        TreeSpec(SPEC, "inputs").row(wrong)


def test_a_batch_given_as_a_row_is_told_the_cure():
    with pytest.raises(SpecError, match=r"got float32 \(5, 3\); for rows \[B, ...\] pass batch"):
        TreeSpec(SPEC, "inputs").row(tree(5))


def test_a_row_given_as_a_batch_is_told_the_cure():
    with pytest.raises(
        SpecError, match=r"\(any, 3\), got float32 \(3,\); for one row .* batch=Fal"
    ):
        TreeSpec(SPEC, "inputs").batch(tree())


def test_batch_sizes_must_agree():
    wrong = tree(5)
    wrong["b"][1] = wrong["b"][1][:4]
    with pytest.raises(SpecError, match=r"inputs/b\[1\]: expected 5 rows as in inputs/a, got 4"):
        TreeSpec(SPEC, "inputs").batch(wrong)


def test_an_empty_batch_is_refused():
    with pytest.raises(SpecError, match=r"inputs/a: expected at least one row, got a batch of 0"):
        TreeSpec(SPEC, "inputs").batch(tree(0))


def test_a_spec_needs_leaves_of_numbers():
    with pytest.raises(SpecError, match=r"inputs: expected at least one array, got an empty tree"):
        TreeSpec((), "inputs")
    with pytest.raises(SpecError, match=r"inputs/x: expected a bool or number dtype, got object"):
        TreeSpec({"x": ArraySpec(np.dtype(object), ())}, "inputs")


Pair = namedtuple("Pair", ["x", "y"])
leaf_specs = st.builds(ArraySpec, st.just(F32), st.sampled_from([(), (2,), (1, 3)]))
specs = st.recursive(
    leaf_specs,
    lambda inner: (
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1)
        | st.lists(inner, min_size=1, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=6,
)


@given(specs)
def test_build_undoes_row(spec):
    made = nested.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
    compiled = TreeSpec(spec, "x")
    built = compiled.build(compiled.row(made))
    assert type(built) is type(made)
    assert nested.spec(built) == nested.spec(made)
    assert nested.flatten(built).keys() == nested.flatten(made).keys()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            np.float32(3),
            r"x: expected a leading batch dimension \[B, ...\], got float32 \(\): add one",
        ),
        (
            [np.zeros((2, 3)), np.zeros(3)],
            r"x\[1\]: expected 2 rows as in x\[0\], got float64 \(3,\)",
        ),
        (np.zeros((0, 3)), "x: expected arrays with at least one row, got none"),
        ({}, "x: expected arrays with at least one row, got none"),
        ({"a": 3.0}, "x/a: expected a numpy array, got float"),
    ],
)
def test_unbatched_refuses(wrong, message):
    with pytest.raises(SpecError, match=message):
        unbatched(wrong, "x")
