"""Descriptions of spaces: written and read again, refused in words, compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.spaces import LeafSpace, Spaces, described, parse

KINDS = ["discrete", "multi_discrete", "multi_binary", "shape", "most"]
KEYS = [*KINDS, "features", "low", "high", "start", "dtype"]
NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(KEYS)
SHAPES = st.lists(st.integers(1, 7), max_size=4)
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-100, 100) | st.none()


@st.composite
def reals(draw: Any) -> dict[str, Any]:
    shape = draw(SHAPES)
    leaf = {
        "shape": shape,
        "dtype": draw(st.sampled_from(["float32", "float64", "uint8", "int16"])),
    }
    count = int(np.prod(shape))
    bound = draw(NUMBERS | st.lists(NUMBERS, min_size=count, max_size=count))
    if bound is not None:
        leaf[draw(st.sampled_from(["low", "high"]))] = bound
    return leaf


@st.composite
def multi_discretes(draw: Any) -> dict[str, Any]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    count = int(np.prod(shape))

    def array(least: int) -> Any:
        each = st.integers(least, 9)
        return np.reshape(draw(st.lists(each, min_size=count, max_size=count)), shape).tolist()

    return {"multi_discrete": array(1), "start": array(-9)}


LEAVES = st.one_of(
    reals(),
    multi_discretes(),
    st.fixed_dictionaries({"discrete": st.integers(1, 50), "start": st.integers(-9, 9)}),
    st.fixed_dictionaries({"multi_binary": st.integers(1, 9) | SHAPES}),
    st.fixed_dictionaries({"most": st.integers(1, 9), "features": st.integers(1, 9)}),
)
DESCRIPTIONS = st.recursive(
    LEAVES,
    lambda child: (
        st.lists(child, min_size=1, max_size=3)
        | st.dictionaries(NAMES, child, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


def is_leaf(value: Any) -> bool:
    """Whether a description that was generated is one of a leaf."""
    return any(key in value and not holds_spaces(value[key]) for key in KINDS)


def holds_spaces(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, dict)


def paths(value: Any, path: str = "") -> list[str]:
    """The paths of a description's leaves, in the order of `nested.items`."""
    if isinstance(value, list):
        return [p for i, child in enumerate(value) for p in paths(child, f"{path}[{i}]")]
    if is_leaf(value):
        return [path]
    join = f"{path}/" if path else ""
    return [p for name in sorted(value) for p in paths(value[name], f"{join}{name}")]


@given(DESCRIPTIONS)
@settings(deadline=None)
def test_what_is_described_is_read_again(description: Any) -> None:
    space = parse(description)
    assert list(nested.flatten(space)) == paths(description)
    written = described(space)
    assert parse(json.loads(json.dumps(written))) == space
    assert parse(yaml.safe_load(yaml.safe_dump(written))) == space
    one = Spaces("here", space, space)
    assert Spaces.parse("here", one.described()) == one
    assert one.difference(Spaces.parse("there", one.described())) is None


@given(DESCRIPTIONS)
@settings(deadline=None)
def test_an_example_has_the_types_and_shapes(description: Any) -> None:
    spaces = Spaces("here", parse(description), parse({"discrete": 2}))
    leaves = nested.flatten(spaces.observation)
    for path, value in nested.items(spaces.example):
        assert value.dtype == np.dtype(leaves[path].dtype)
        assert value.shape == (1, *leaves[path].shape)
    for path, spec in nested.items(spaces.recorded):
        narrowed = "float32" if leaves[path].dtype == "float64" else leaves[path].dtype
        assert (spec.dtype.name, spec.shape) == (narrowed, leaves[path].shape)


@pytest.mark.parametrize(
    ("description", "leaf"),
    [
        ({"discrete": 4}, LeafSpace("category", "int64", (), (4,))),
        ({"discrete": 3, "start": -1}, LeafSpace("category", "int64", (), (3,), start=-1)),
        ({"multi_discrete": 3}, LeafSpace("category", "int64", (1,), (3,))),
        ({"multi_discrete": [3, 2]}, LeafSpace("category", "int64", (2,), (3, 2))),
        (
            {"multi_discrete": [[3, 2]], "start": 1},
            LeafSpace("category", "int64", (1, 2), (3, 2), start=(1, 1)),
        ),
        ({"multi_binary": 5}, LeafSpace("binary", "int8", (5,))),
        ({"multi_binary": [2, 2]}, LeafSpace("binary", "int8", (2, 2))),
        ({"shape": 3}, LeafSpace("real", "float32", (3,))),
        ({"shape": [2], "low": [0, None]}, LeafSpace("real", "float32", (2,), low=(0.0, None))),
        ({"shape": [2], "high": float("inf")}, LeafSpace("real", "float32", (2,))),
        ({"shape": [3, 96, 96]}, LeafSpace("image", "float32", (3, 96, 96))),
        ({"shape": [5, 5]}, LeafSpace("real", "float32", (5, 5))),
        ({"shape": [5, 5], "dtype": "uint8"}, LeafSpace("image", "uint8", (5, 5))),
        ({"shape": [4, 4], "dtype": "uint8"}, LeafSpace("real", "uint8", (4, 4))),
        ({"shape": [2, 9, 9, 3], "dtype": "uint8"}, LeafSpace("image", "uint8", (2, 9, 9, 3))),
        ({"most": 16, "features": 3}, LeafSpace("set", "float32", (16, 4))),
    ],
)
def test_leaves(description: Any, leaf: LeafSpace) -> None:
    assert parse(description) == leaf


def deep(levels: int) -> Any:
    made: Any = {"discrete": 2}
    for _ in range(levels):
        made = {"in": made}
    return made


def endless() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


HOSTILE: list[tuple[Any, str]] = [
    (None, r"space: expected a mapping such as"),
    (7, r"space: expected a mapping such as .* got 7"),
    ("discrete", r"space: expected a mapping such as"),
    ({1: {"discrete": 2}}, r"space: expected a mapping such as"),
    ({}, r"space: expected 1 to 1024 leaves, got 0"),
    ([], r"space: expected 1 to 1024 leaves, got 0"),
    ([{"discrete": 2}] * 1025, r"space: expected 1 to 1024 leaves, got more than 1024"),
    ({"a": [{"discrete": 2}, 3]}, r"space/a\[1\]: expected a mapping"),
    (deep(17), r"in: expected at most 16 levels"),
    (endless(), r"expected at most 16 levels"),
    ({"discrete": 0}, r"space: discrete: expected 1 or more, got 0"),
    ({"discrete": True}, r"space: discrete: expected a whole number, got True"),
    ({"discrete": 2.5}, r"space: discrete: expected a whole number, got 2.5"),
    ({"discrete": 1 << 70}, r"space: discrete: expected a whole number"),
    ({"discrete": "4"}, r"space: discrete: expected a whole number, got '4'"),
    ({"discrete": 4, "start": None}, r"space: start: expected a whole number, got None"),
    ({"discrete": 4, "low": 1}, r"space: expected of \['discrete', 'start'\] only, got \['low'\]"),
    ({"multi_discrete": []}, r"space: multi_discrete: expected whole numbers, got \[\]"),
    ({"multi_discrete": [3, 0]}, r"multi_discrete\[1\]: expected 1 or more, got 0"),
    ({"multi_discrete": [[3, 2], [3]]}, r"multi_discrete: expected lists of one length"),
    ({"multi_discrete": [3, True]}, r"multi_discrete\[1\]: expected a whole number"),
    ({"multi_discrete": [3], "dtype": "float32"}, r"space: dtype: expected one of .*int64"),
    ({"multi_discrete": [3, 2], "start": [1, 2, 3]}, r"space: start: expected"),
    ({"multi_binary": 0}, r"space: multi_binary: expected 1 or more, got 0"),
    ({"multi_binary": "5"}, r"space: multi_binary: expected a list of sizes"),
    ({"shape": [-1]}, r"space: shape: expected 1 or more, got -1"),
    ({"shape": [2.0]}, r"space: shape: expected a whole number, got 2.0"),
    ({"shape": [1] * 9}, r"space: shape: expected a list of sizes"),
    ({"shape": [1 << 30, 1 << 30]}, r"space: shape: expected at most 67,108,864 numbers"),
    ([{"shape": [1 << 26]}] * 2, r"space: expected at most 67,108,864 numbers, got 134,217,728"),
    ({"shape": [2], "dtype": "object"}, r"space: dtype: expected one of .*float32"),
    ({"shape": [2], "dtype": "complex64"}, r"space: dtype: expected one of"),
    ({"shape": [2], "dtype": ["float32"]}, r"space: dtype: expected one of"),
    ({"shape": [2], "low": "0"}, r"space: low: expected a number, got '0'"),
    ({"shape": [2], "low": float("nan")}, r"space: low: expected a number, got nan"),
    ({"shape": [2], "low": True}, r"space: low: expected a number, got True"),
    ({"shape": [2], "low": 10**400}, r"space: low: expected a number, got 1000"),
    ({"shape": [2], "low": 16**5000}, r"space: low: expected a number, got a long int"),
    ({"shape": [2], "low": [0, 1, 2]}, r"space: low: expected 2 numbers, got 3"),
    ({"shape": [2], "low": 1, "high": 0}, r"space: expected low at most high"),
    ({"shape": [2], "low": endless()}, r"space: low: expected 2 numbers, got more or deeper lists"),
    ({"multi_discrete": endless()}, r"multi_discrete.*: expected whole numbers"),
    ({"discrete": 16**5000}, r"space: discrete: expected a whole number, got a long int"),
    ({"k" * 257: {"discrete": 2}}, r"space: expected names of at most 256 characters, got 'kkk"),
    ({"a": {"k" * 10**6: {}, "b": {}}}, r"space/a: expected names of at most 256 .* of 1000000"),
    ([{"discrete": 2}] * 60_000, r"space: expected 1 to 1024 leaves, got more than 1024"),
    ({"multi_discrete": [1, 1 << 62]}, r"multi_discrete\[1\]: expected a whole number, got 46"),
    ({"multi_discrete": [3, 0]}, r"multi_discrete\[1\]: expected 1 or more, got 0"),
    ({"most": 0}, r"space: most: expected 1 or more, got 0"),
    ({"most": 3, "features": 0}, r"space: features: expected 1 or more, got 0"),
    ({"most": 1 << 40, "features": 9}, r"space: expected at most 67,108,864 numbers"),
]


@pytest.mark.parametrize(("description", "message"), HOSTILE)
def test_what_is_no_description_is_refused_in_words(description: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse(description)
    assert len(str(refused.value)) < 500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda child: (
        st.lists(child, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS) | st.text(max_size=3),
            child,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
@settings(deadline=None, max_examples=200)
def test_anything_is_read_or_refused(value: Any) -> None:
    try:
        space = parse(value)
    except ConfigError:
        return
    assert parse(described(space)) == space


@pytest.mark.parametrize("told", [None, [], {"observation": {"discrete": 2}}, {"x": 2}])
def test_both_spaces_are_wanted(told: Any) -> None:
    with pytest.raises(ConfigError, match="session 7: spaces: expected observation and action"):
        Spaces.parse("session 7", told)


def test_a_refusal_names_whose_leaf_it_is() -> None:
    told = {"observation": {"hand": [{"discrete": 2}, {"shape": ["x"]}]}, "action": {"discrete": 2}}
    with pytest.raises(
        ConfigError, match=r"session 7: observation/hand\[1\]: shape: expected a who"
    ):
        Spaces.parse("session 7", told)


BASE: dict[str, Any] = {
    "observation": {"camera": {"shape": [3, 8, 8], "dtype": "uint8"}, "hand": [{"discrete": 5}]},
    "action": {"go": {"discrete": 3}, "aim": {"shape": [2], "low": -1, "high": 1}},
}


@pytest.mark.parametrize(
    ("place", "leaf", "named"),
    [
        (("observation", "camera"), {"shape": [3, 8, 9], "dtype": "uint8"}, "observation/camera"),
        (("observation", "camera"), {"shape": [3, 8, 8]}, "observation/camera"),
        (("observation", "hand"), [{"discrete": 6}], r"observation/hand\[0\]"),
        (("observation", "hand"), [{"discrete": 5}] * 2, r"observation/hand\[1\]"),
        (("observation", "more"), {"shape": [1]}, "observation/more"),
        (("action", "go"), {"discrete": 4}, "action/go"),
        (("action", "aim"), {"shape": [2], "low": -1, "high": 2}, "action/aim"),
        (("action", "aim"), {"shape": [2]}, "action/aim"),
    ],
)
def test_a_difference_names_the_leaf_and_both_sides(
    place: tuple[str, str], leaf: Any, named: str
) -> None:
    one = Spaces.parse("the trial", BASE)
    changed = {**BASE, place[0]: {**BASE[place[0]], place[1]: leaf}}
    another = Spaces.parse("session 7", changed)
    for mine, theirs in ((one, another), (another, one)):
        found = mine.difference(theirs)
        assert found is not None
        pattern = f"^{named}: {mine.origin} has .+, {theirs.origin} has .+$"
        assert re.search(pattern, found), found


def test_no_difference_lies_in_bounds_of_what_is_seen_nor_in_their_spelling() -> None:
    one = Spaces.parse("one", BASE)
    bounded = {"shape": [3, 8, 8], "dtype": "uint8", "low": 0, "high": 255}
    seen = {**BASE["observation"], "camera": bounded}
    assert one.difference(Spaces.parse("two", {**BASE, "observation": seen})) is None
    aim = {"shape": [2], "low": [-1, -1], "high": [1.0, 1.0]}
    acts = {**BASE["action"], "aim": aim}
    assert one.difference(Spaces.parse("two", {**BASE, "action": acts})) is None


def test_bounds_of_each_element() -> None:
    leaf = replace(LeafSpace("real", "float32", (2, 2)), low=(0.0, None, -1.0, 2.0), high=3.0)
    low, high = leaf.bounds()
    assert low.tolist() == [[0.0, -np.inf], [-1.0, 2.0]]
    assert high.tolist() == [[3.0, 3.0], [3.0, 3.0]]
