"""One array for an action of any space: assembled, taken apart, clipped, in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import ArraySpec
from bray_core.spaces import parse

LEAVES = st.one_of(
    st.fixed_dictionaries({"discrete": st.integers(1, 5), "start": st.integers(-3, 3)}),
    st.builds(lambda sizes: {"multi_discrete": sizes}, st.lists(st.integers(1, 4), min_size=1)),
    st.builds(lambda shape: {"multi_binary": shape}, st.lists(st.integers(1, 3), max_size=2)),
    st.builds(
        lambda shape: {"shape": shape, "low": -2, "high": 2},
        st.lists(st.integers(1, 3), max_size=2),
    ),
)
ACTIONS = st.recursive(
    LEAVES,
    lambda child: (
        st.lists(child, min_size=1, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=2), child, min_size=1, max_size=3)
    ),
    max_leaves=5,
)


def drawn(actions: ActionVector, lead: tuple[int, ...], seed: int) -> Any:
    """Numbers as a policy draws them: choices from 0 on, then reals."""
    rng = np.random.default_rng(seed)
    choices = [rng.integers(0, size, lead) for size in actions.sizes]
    reals = [rng.uniform(-2, 2, lead) for _ in range(actions.num_reals)]
    if actions.is_one:
        return choices[0]
    return np.stack([*choices, *reals], -1).astype(actions.spec.dtype)


@given(ACTIONS, st.sampled_from([(), (3,), (2, 3)]), st.integers(0, 99))
@settings(deadline=None)
def test_what_is_assembled_is_taken_apart_again(
    description: Any, lead: tuple[int, ...], seed: int
) -> None:
    actions = ActionVector(parse(description))
    numbers = drawn(actions, lead, seed)
    assert numbers.shape == (*lead, *actions.spec.shape)
    action = actions.assemble(numbers)
    leaves = nested.flatten(actions.space)
    assert list(nested.flatten(action)) == list(leaves)
    for path, value in nested.items(action):
        assert np.shape(value) == (*lead, *leaves[path].shape)
        assert np.asarray(value).dtype == np.dtype(leaves[path].dtype)
    again = actions.flatten(action)
    assert again.dtype == actions.spec.dtype
    np.testing.assert_array_equal(again, numbers)


@given(ACTIONS, st.integers(0, 99))
@settings(deadline=None)
def test_a_batch_is_its_rows(description: Any, seed: int) -> None:
    actions = ActionVector(parse(description))
    numbers = drawn(actions, (4,), seed)
    for from_start in (False, True):
        together = nested.flatten(actions.assemble(numbers, from_start=from_start))
        for i, row in enumerate(numbers):
            for path, value in nested.items(actions.assemble(row, from_start=from_start)):
                np.testing.assert_array_equal(together[path][i], value)


SPACE = {
    "aim": {"shape": [2], "low": [-1, None], "high": [1, 0.5]},
    "go": {"discrete": 3, "start": 5},
    "keys": {"multi_binary": [2, 2]},
    "use": [{"multi_discrete": [[4, 3]], "start": [[-1, 7]]}, {"shape": []}],
    "volume": {"shape": [1], "dtype": "uint8", "low": 10, "high": 200},
}


def test_the_order_of_the_numbers_and_their_bounds() -> None:
    actions = ActionVector(parse(SPACE))
    assert actions.sizes == [3, 2, 2, 2, 2, 4, 3]
    assert actions.num_reals == 4
    assert actions.low.tolist() == [-1.0, -np.inf, -np.inf, 10.0]
    assert actions.high.tolist() == [1.0, 0.5, np.inf, 200.0]
    assert not actions.is_one
    assert not actions.is_plain
    assert actions.spec == ArraySpec(np.dtype(np.float32), (11,))
    numbers = np.array([2, 1, 0, 0, 1, 3, 2, -9.0, -9.0, 7.25, 10.6], np.float32)
    action = actions.assemble(numbers)
    assert action["go"] == 2
    assert action["keys"].tolist() == [[1, 0], [0, 1]]
    assert action["use"][0].tolist() == [[3, 2]]
    assert action["aim"].tolist() == [-1.0, -9.0], "clipped where there is a bound"
    assert action["use"][1] == 7.25
    assert action["volume"].tolist() == [11], "whole numbers are rounded"
    numbers[-4:] = [9.0, 9.0, 9.0, 900.0]
    clipped = actions.assemble(numbers)
    assert clipped["aim"].tolist() == [1.0, 0.5]
    assert clipped["volume"].tolist() == [200]
    counted = actions.assemble(numbers, from_start=True)
    assert counted["go"] == 7
    assert counted["use"][0].tolist() == [[2, 9]]
    assert counted["keys"].tolist() == [[1, 0], [0, 1]], "flags begin at 0"


@pytest.mark.parametrize(
    ("description", "is_one", "is_plain", "spec"),
    [
        ({"discrete": 4}, True, True, ArraySpec(np.dtype(np.int64), ())),
        ({"go": {"discrete": 4}}, True, False, ArraySpec(np.dtype(np.int64), ())),
        ({"multi_discrete": [4]}, False, True, ArraySpec(np.dtype(np.int64), (1,))),
        ({"multi_binary": 3}, False, True, ArraySpec(np.dtype(np.int64), (3,))),
        ({"multi_binary": [3, 2]}, False, False, ArraySpec(np.dtype(np.int64), (6,))),
        ({"shape": [3]}, False, True, ArraySpec(np.dtype(np.float32), (3,))),
        ({"shape": [3, 2]}, False, False, ArraySpec(np.dtype(np.float32), (6,))),
        (
            {"shape": [3], "dtype": "int32", "low": 0, "high": 3},
            False,
            False,
            ArraySpec(np.dtype(np.float32), (3,)),
        ),
        ([{"discrete": 2}] * 2, False, False, ArraySpec(np.dtype(np.int64), (2,))),
        ([{"discrete": 2}, {"shape": [2]}], False, False, ArraySpec(np.dtype(np.float32), (3,))),
    ],
)
def test_the_array_of_a_space(
    description: Any, is_one: bool, is_plain: bool, spec: ArraySpec
) -> None:
    actions = ActionVector(parse(description))
    assert (actions.is_one, actions.is_plain, actions.spec) == (is_one, is_plain, spec)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_real_drawn_for_a_bool_is_the_nearer_of_the_two(is_nested: bool) -> None:
    """Cast as it is, each number but 0 would be True."""
    box = {"shape": [4], "dtype": "bool", "low": 0, "high": 1}
    actions = ActionVector(parse({"flags": box} if is_nested else box))
    assembled: Any = actions.assemble(np.float32([-3, 0.2, 0.7, 9]))
    action = assembled["flags"] if is_nested else assembled
    assert action.dtype == np.bool_
    assert action.tolist() == [False, False, True, True]
    assert not actions.is_plain, "a simulator takes the bools, not what was drawn"


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16"]
)
def test_the_ends_of_a_type_are_not_passed(dtype: str) -> None:
    info = np.finfo(dtype) if dtype == "float16" else np.iinfo(dtype)
    low, high = info.min, info.max
    actions = ActionVector(
        parse({"shape": [2], "dtype": dtype, "low": float(low), "high": float(high)})
    )
    for numbers in ([-1e30, 1e30], [-np.inf, np.inf]):
        least, greatest = actions.assemble(np.array(numbers, np.float32)).tolist()
        assert low <= least <= low + 0.01 * abs(float(high))
        assert high - 0.01 * abs(float(high)) <= greatest <= high
    unbounded = ActionVector(parse({"shape": [2], "dtype": dtype}))
    least, greatest = unbounded.assemble(np.array([-1e30, 1e30], np.float32)).tolist()
    assert least == low
    assert high - 0.01 * float(high) <= greatest <= high


def test_what_cannot_be_chosen_or_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Odd: action units\[1\]: a set of up to 3 members of 2"):
        ActionVector(parse({"units": [{"discrete": 2}, {"most": 3, "features": 2}]}), "Odd")
    actions = ActionVector(parse({"aim": {"shape": [2]}, "go": {"discrete": 3}}))
    with pytest.raises(SpecError, match=r"action: expected leaves \['aim', 'go'\], got \['go'\]"):
        actions.flatten({"go": np.array(1)})
    with pytest.raises(SpecError, match=r"action aim: expected the shape \[…, 2\], got \[3\]"):
        actions.flatten({"aim": np.zeros(3), "go": np.array(1)})
    with pytest.raises(SpecError, match=r"action aim: expected .*, got \[\]"):
        actions.flatten({"aim": np.float32(0), "go": np.array(1)})
    with pytest.raises(SpecError, match=r"^action: expected the shape \[…, 2\], got \[4, 3\]"):
        ActionVector(parse({"shape": [2]})).flatten(np.zeros((4, 3)))


@pytest.mark.parametrize("wrong", [0.5, np.nan, np.inf])
def test_a_choice_is_a_whole_number(wrong: float) -> None:
    one = ActionVector(parse({"discrete": 3}))
    assert one.flatten(np.array([2.0, 0.0])).tolist() == [2, 0]
    several = ActionVector(parse({"aim": {"shape": [2]}, "go": {"discrete": 3}}))
    numbers = several.flatten({"aim": np.array([0.5, 0.25]), "go": np.array(1.0)})
    assert numbers.tolist() == [1, 0.5, 0.25]
    with pytest.raises(SpecError, match=f"action: expected whole numbers, got {wrong:g}"):
        one.flatten(np.array([1.0, wrong]))
    with pytest.raises(SpecError, match=f"action go: expected whole numbers, got {wrong:g}"):
        several.flatten({"aim": np.zeros(2), "go": np.array(wrong)})
