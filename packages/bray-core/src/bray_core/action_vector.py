"""One array for an action of any space: what is drawn, recorded and trained on.

A policy draws numbers; a simulator wants the nested action that its space describes. All numbers of
an action lie in one array, those of the leaves one after the other in the order of `nested.items`,
choices before reals:

- a single choice: `int64 []`;
- several choices, flags among them: `int64 [K]`;
- reals alone: `float32 [D]`;
- both: `float32 [K + D]`, the choices as whole numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.spaces import LeafSpace, Spaces

Numbers = npt.NDArray[Any]


class ActionVector:
    """Turns arrays of drawn numbers into actions of a space, and back.

    Args:
        space: nested `LeafSpace`s of an action.
        origin: where it was read, for messages.

    Raises:
        ConfigError: an action holds sets, whose size nothing could choose.
    """

    def __init__(self, space: Nested, origin: str = "action") -> None:
        self.space = space
        leaves = nested.flatten(space)
        for path, leaf in leaves.items():
            if leaf.kind == "set":
                raise ConfigError(
                    f"{origin}: action {path}: a set of {leaf} cannot be chosen: describe it as "
                    "choices (multi_discrete) of a fixed number"
                )
        choices = [leaf for leaf in leaves.values() if leaf.kind in ("category", "binary")]
        reals = [leaf for leaf in leaves.values() if leaf.kind in ("real", "image")]
        self.sizes = [size for leaf in choices for size in sizes_of(leaf)]
        """Number of values of each choice."""
        self.num_reals = sum(leaf.num_numbers for leaf in reals)
        """Number of reals D."""
        self.is_one = len(leaves) == 1 and bool(choices) and choices[0].shape == ()
        """Whether an action is one choice alone."""
        bounds = [leaf.bounds() for leaf in reals]
        self.low = _joined([low for low, _ in bounds])
        """Least value of each real `[D]`, −inf where there is none."""
        self.high = _joined([high for _, high in bounds])
        """Greatest value of each real `[D]`."""
        ends = [_ends(leaf) for leaf in reals]
        self._least = _joined([low for low, _ in ends])
        self._greatest = _joined([high for _, high in ends])
        self._leaves = list(leaves.values())
        self._is_bare = isinstance(space, LeafSpace)
        is_whole = bool(reals) and np.dtype(reals[0].dtype).kind in "iub"
        is_shaped = self._is_bare and self._leaves[0].shape == self.spec.shape
        self.is_plain = is_shaped and not is_whole
        """Whether the array is the action already, but for its type and bounds."""

    @property
    def spec(self) -> ArraySpec:
        """Type and shape of the array."""
        if self.is_one:
            return ArraySpec(np.dtype(np.int64), ())
        dtype = np.float32 if self.num_reals else np.int64
        return ArraySpec(np.dtype(dtype), (len(self.sizes) + self.num_reals,))

    def assemble(self, numbers: Numbers, *, from_start: bool = False) -> Nested:
        """Return actions of the space: leaves `[…, *shape]` in their own types, reals clipped.

        Args:
            numbers: arrays `[…]` of `spec`.
            from_start: whether choices are numbered as the environment counts, or from 0 on as on
                the wire.
        """
        if self.is_one:
            choice = np.asarray(numbers, self._leaves[0].dtype)
            made = [choice + self._leaves[0].start if from_start else choice]
            return made[0] if self._is_bare else nested.unflatten(self.space, made)
        if self.is_plain and not self.sizes and self._is_bare:  # the quick way
            clipped = np.clip(numbers, self._least, self._greatest)
            action: Nested = clipped.astype(self._leaves[0].dtype)
            return action
        choices, reals = 0, len(self.sizes)
        lead = np.shape(numbers)[:-1]
        made = []
        for leaf in self._leaves:
            count = leaf.num_numbers
            if leaf.kind in ("category", "binary"):
                part, choices = numbers[..., choices : choices + count], choices + count
                if from_start and leaf.start:
                    part = part + np.asarray(leaf.start)
            else:
                part, reals = numbers[..., reals : reals + count], reals + count
                first = reals - count - len(self.sizes)
                part = np.clip(part, self._least[first:][:count], self._greatest[first:][:count])
                part = np.rint(part) if np.dtype(leaf.dtype).kind in "iub" else part
            made.append(part.astype(leaf.dtype).reshape((*lead, *leaf.shape)))
        return made[0] if self._is_bare else nested.unflatten(self.space, made)

    def flatten(self, action: Nested) -> Numbers:
        """Return the array of actions of the space.

        Args:
            action: nested arrays `[…, *shape]`, choices from 0 on.

        Raises:
            SpecError: its leaves or their shapes are others, or a choice is no whole number.
        """
        leaves = nested.flatten(action)
        if list(leaves) != list(nested.flatten(self.space)):
            raise SpecError(
                f"action: expected leaves {list(nested.flatten(self.space))}, got {list(leaves)}"
            )
        if self.is_one:
            return _whole("action", np.asarray(next(iter(leaves.values())))).astype(np.int64)
        parts: tuple[list[Numbers], list[Numbers]] = ([], [])
        for (path, value), leaf in zip(leaves.items(), self._leaves, strict=True):
            array = np.asarray(value)
            name = f"action {path}".rstrip()
            rank = len(leaf.shape)
            lead = array.shape[: array.ndim - rank]
            if array.shape[array.ndim - rank :] != leaf.shape or array.ndim < rank:
                wanted = ", ".join(["…", *map(str, leaf.shape)])
                raise SpecError(f"{name}: expected the shape [{wanted}], got {list(array.shape)}")
            is_choice = leaf.kind in ("category", "binary")
            if is_choice:
                array = _whole(name, array)
            parts[not is_choice].append(array.reshape(*lead, leaf.num_numbers))
        return np.concatenate([*parts[0], *parts[1]], -1).astype(self.spec.dtype)


def step_specs(spaces: Spaces) -> tuple[Nested, ArraySpec]:
    """Return what of a step is recorded: the leaves of its observation, and its action's array."""
    return spaces.recorded, ActionVector(spaces.action, spaces.origin).spec


def sizes_of(leaf: LeafSpace) -> tuple[int, ...]:
    """Return the number of values of each element of a category or of flags."""
    return leaf.sizes if leaf.kind == "category" else (2,) * leaf.num_numbers


def _ends(leaf: LeafSpace) -> tuple[Numbers, Numbers]:
    """Return the least and greatest value of each real that its type can hold, too."""
    low, high = leaf.bounds()
    dtype = np.dtype(leaf.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # As a float 2⁶³ − 1 is 2⁶³, which is none of int64.
        most = float(info.max) if info.bits < 64 else np.nextafter(float(info.max), 0)
        return np.maximum(np.ceil(low), float(info.min)), np.minimum(np.floor(high), most)
    if dtype.kind == "f" and dtype.itemsize < 4:
        most = float(np.finfo(dtype).max)
        return np.maximum(low, -most), np.minimum(high, most)
    return low, high


def _whole(name: str, choices: Numbers) -> Numbers:
    """Return choices; those that came as floating-point numbers must be whole ones.

    Raises:
        SpecError: one is not: cut off, it would be another choice.
    """
    if choices.dtype.kind == "f":
        is_whole = np.isfinite(choices) & (choices == np.floor(choices))
        if not is_whole.all():
            raise SpecError(f"{name}: expected whole numbers, got {choices[~is_whole].flat[0]:g}")
    return choices


def _joined(bounds: list[Numbers]) -> Numbers:
    empty = np.zeros(0)
    return np.concatenate([empty, *(np.reshape(bound, -1) for bound in bounds)])
