"""Gymnasium's spaces as plain data, against what Gymnasium itself says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces.utils import flatdim
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_actor.spaces import of_gymnasium, spec_of, to_action, to_arrays
from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
NAMES = st.text("abz", min_size=1, max_size=2)
NOTHING = spaces.Discrete(1)


@st.composite
def boxes(draw: Any) -> spaces.Box:
    shape = draw(SHAPES)
    names = ["float16", "float32", "float64", "uint8", "int32", "int64"]
    dtype = np.dtype(draw(st.sampled_from(names)))
    count = int(np.prod(shape))
    is_whole = dtype.kind in "iu"
    each = st.integers(0, 100) if is_whole else st.floats(-50, 50, width=16)
    low = np.reshape(draw(st.lists(each, min_size=count, max_size=count)), shape).astype(dtype)
    span = np.reshape(draw(st.lists(each, min_size=count, max_size=count)), shape)
    high = (low + np.abs(span)).astype(dtype)
    if is_whole and dtype.name != "uint8" and draw(st.booleans()):
        return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)
    if not is_whole:
        open_low = np.reshape(draw(st.lists(st.booleans(), min_size=count, max_size=count)), shape)
        low = np.where(open_low, -np.inf, low).astype(dtype)
        if draw(st.booleans()):
            high = np.full(shape, np.inf, dtype)
    return spaces.Box(low, high, shape, dtype)


@st.composite
def multi_discretes(draw: Any) -> spaces.MultiDiscrete:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    count = int(np.prod(shape))

    def array(least: int) -> Any:
        numbers = draw(st.lists(st.integers(least, 6), min_size=count, max_size=count))
        return np.reshape(numbers, shape)

    dtype = draw(st.sampled_from([np.int64, np.int32, np.uint8]))
    return spaces.MultiDiscrete(array(1), dtype, start=array(0 if dtype == np.uint8 else -6))


LEAVES = st.one_of(
    boxes(),
    multi_discretes(),
    st.builds(spaces.Discrete, st.integers(1, 9), start=st.integers(-5, 5)),
    st.builds(spaces.MultiBinary, st.integers(1, 5) | SHAPES.filter(bool).map(list)),
)
SPACES = st.recursive(
    LEAVES,
    lambda child: (
        st.lists(child, min_size=1, max_size=3).map(spaces.Tuple)
        | st.dictionaries(NAMES, child, min_size=1, max_size=3).map(spaces.Dict)
    ),
    max_leaves=5,
)


def leaves(space: Any) -> dict[str, Any]:
    return nested.flatten(of_gymnasium("Random", space, NOTHING).observation)


@given(SPACES, st.integers(0, 99))
@settings(deadline=None)
def test_the_leaves_have_what_gymnasium_says(space: Any, seed: int) -> None:
    found = leaves(space)
    assert {path: leaf.spec for path, leaf in found.items()} == nested.flatten(spec_of(space))
    # Gymnasium's flattening: categories one-hot, all else as it is.
    sizes = [sum(leaf.sizes) or leaf.num_numbers for leaf in found.values()]
    assert sum(sizes) == flatdim(space)
    space.seed(seed)
    for path, value in nested.items(to_arrays(space, space.sample())):
        leaf = found[path]
        if leaf.kind == "category":
            assert (np.reshape(value, -1) < leaf.sizes).all()
            assert (value >= 0).all()
        elif leaf.kind == "binary":
            assert np.isin(value, (0, 1)).all()
        else:
            low, high = leaf.bounds()
            assert (value >= low).all()
            assert (value <= high).all()


@given(SPACES)
@settings(deadline=None)
def test_what_was_read_goes_over_the_wire(space: Any) -> None:
    known = of_gymnasium("Random", space, space)
    told = Spaces.parse("Random", known.described())
    assert known.difference(told) is None
    assert told.observation_spec == known.observation_spec


def numbers_of(actions: ActionVector, lead: tuple[int, ...], seed: int) -> Any:
    """Numbers as a policy draws them; reals of any size."""
    rng = np.random.default_rng(seed)
    choices = [rng.integers(0, size, lead) for size in actions.sizes]
    if actions.is_one:
        return choices[0]
    scale = rng.choice([0.1, 10.0, 1e3, 1e30])
    reals = [scale * rng.standard_normal(lead) for _ in range(actions.num_reals)]
    return np.stack([*choices, *reals], -1).astype(actions.spec.dtype)


@given(SPACES, st.integers(0, 9999))
@settings(deadline=None, max_examples=200)
def test_each_assembled_action_is_one_of_the_space(space: Any, seed: int) -> None:
    actions = ActionVector(of_gymnasium("Random", NOTHING, space).action)
    numbers = numbers_of(actions, (), seed)
    assert space.contains(actions.assemble(numbers, from_start=True))
    assert space.contains(to_action(space, actions.assemble(numbers))), "and over the wire"
    batch = actions.assemble(numbers_of(actions, (3,), seed), from_start=True)
    rows = list(iterate(batch_space(space, 3), batch))
    assert len(rows) == 3
    for row in rows:
        assert space.contains(nested.map(np.asarray, row))  # `iterate` gives numbers for []


@given(SPACES, st.integers(0, 99))
@settings(deadline=None)
def test_an_action_of_the_space_is_taken_apart_and_put_together(space: Any, seed: int) -> None:
    actions = ActionVector(of_gymnasium("Random", NOTHING, space).action)
    space.seed(seed)
    sent = to_arrays(space, space.sample())
    array = actions.flatten(sent)
    assert array.shape == actions.spec.shape
    again = nested.flatten(actions.assemble(array))
    for path, value in nested.items(sent):  # reals are recorded in float32
        np.testing.assert_allclose(again[path], value, rtol=1e-6)


class MissionSpace(spaces.Space[str]):
    """Named as MiniGrid's space of words is."""


@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (spaces.Text(3), "got Text: turn the text into numbers"),
        (spaces.Graph(spaces.Discrete(2), None), "got Graph: turn it in a wrapper"),
        (MissionSpace(dtype=str), "got MissionSpace: leave MiniGrid's words out by wrappers="),
        (spaces.Sequence(spaces.Discrete(2)), "got Sequence: give it a fixed size"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "got OneOf: turn it in a wrapper"),
    ],
)
def test_spaces_without_arrays_are_refused_with_a_remedy(space: Any, remedy: str) -> None:
    nest = spaces.Dict({"x": spaces.Tuple([spaces.Discrete(2), space])})
    with pytest.raises(
        ConfigError, match=rf"environment: Odd: observation/x\[1\]: .*{remedy}"
    ) as seen:
        of_gymnasium("Odd", nest, NOTHING)
    with pytest.raises(ConfigError, match=rf"environment: Odd: action: .*{remedy}") as done:
        of_gymnasium("Odd", NOTHING, space)
    assert "ActionWrapper" not in str(seen.value)
    assert "ObservationWrapper" not in str(done.value)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({}), "expected one number or more, got Dict.*, such as Discrete"),
        (spaces.Tuple(()), "expected one number or more, got Tuple"),
        (spaces.Dict({0: spaces.Discrete(2)}), r"expected a Dict whose names are words, got \[0\]"),
        (
            spaces.Box(-1, 1, (2, 0)),
            r"expected a shape of numbers of 1 or more, got \(2, 0\)",
        ),
    ],
)
def test_spaces_that_hold_nothing_or_have_no_names_are_refused(space: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"environment: Void: observation: {words}"):
        of_gymnasium("Void", space, NOTHING)
    with pytest.raises(ConfigError, match=f"environment: Void: action: {words}"):
        of_gymnasium("Void", NOTHING, space)


def test_an_empty_part_beside_others_is_named() -> None:
    nest = spaces.Dict({"x": spaces.Discrete(2), "none": spaces.Box(-1, 1, (0,))})
    with pytest.raises(ConfigError, match=r"environment: Void: observation/none: expected a shape"):
        of_gymnasium("Void", nest, NOTHING)


def test_parts_whose_joined_names_are_the_same_are_refused() -> None:
    line = spaces.Box(-1, 1, (2,))
    both = spaces.Dict({"a/b": line, "a": spaces.Dict({"b": line})})
    with pytest.raises(ConfigError, match=r"observation: two parts are named 'a/b'.*rename one"):
        of_gymnasium("here", both, spaces.Discrete(2))
    alone = spaces.Dict({"a/b": line, "a": line})
    assert len(list(nested.items(of_gymnasium("here", alone, spaces.Discrete(2)).observation))) == 2
