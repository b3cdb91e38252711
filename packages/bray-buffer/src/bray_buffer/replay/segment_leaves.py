"""Which leaves of a segment are of each step, and the quick way to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bray_buffer.segment_rows import as_rows
from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec, Nested

Leaf = npt.NDArray[Any]

NEEDED = ("observation", "action", "reward", "terminated", "final_observation")
_FIT = attrgetter("dtype", "shape")
_MADE = ("next_observation", "discount", "key", "weight", "mask")
"""Leaves that batches have and segments must not."""


class SegmentSteps(NamedTuple):
    """One segment, checked, its leaves sorted by what they are."""

    steps: tuple[Leaf, ...]
    """`[T, …]` by `step_paths`; rows from `length` on are padding."""
    finals: tuple[Leaf, ...]
    """The final observation, by `observation_paths`."""
    once: tuple[Leaf, ...]
    """What the segment has once, by `once_paths`."""
    length: int
    """Valid steps, 1 to T."""


class SegmentLeaves:
    """Sorts the leaves of segments of one layout.

    A top-level name is of each step if all its leaves have the leading dimension T, that of
    `reward`; `final_observation` and `length` never are. All else the segment has once.

    Args:
        layout: Packed layout of a dict with observation, action, reward `[T]`, terminated `[T]` and
            final_observation (as one observation); maybe truncated `[T]` and length (an integer).

    Raises:
        ConfigError: a leaf is missing, does not fit the others, or has a name that batches use.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        spec = layout.spec
        missing = [name for name in NEEDED if not isinstance(spec, dict) or name not in spec]
        if missing:
            raise ConfigError(f"layout: steps need segments with leaves {missing}: add them")
        taken = sorted(set(_MADE) & set(spec))
        if taken:
            raise ConfigError(f"layout: {taken} are leaves of batches: choose other names")
        shape = getattr(spec["reward"], "shape", None)
        if shape is None or len(shape) != 1 or shape[0] < 1:
            raise ConfigError(f"layout: expected reward [T], T of 1 or more, got {spec['reward']}")
        self.length: int = shape[0]
        """T: the steps of a full segment."""
        self._sort()
        self._check_sorts()

    def _sort(self) -> None:
        paths = [field.path for field in self.layout.fields]
        self.step_names = [name for name in sorted(self.layout.spec) if self._is_of_steps(name)]
        self.once_names = [
            name
            for name in sorted(self.layout.spec)
            if name not in (*self.step_names, "final_observation", "length")
        ]
        self.step_paths = [path for path in paths if top(path) in self.step_names]
        self.observation_paths = [path for path in paths if top(path) == "observation"]
        self.once_paths = [path for path in paths if top(path) in self.once_names]
        index = {path: at for at, path in enumerate(paths)}
        self._steps = _getter([index[path] for path in self.step_paths])
        finals = [at for path, at in index.items() if top(path) == "final_observation"]
        self._finals = _getter(finals)
        self._once = _getter([index[path] for path in self.once_paths])
        self._count = index.get("length")
        self._truncated = index.get("truncated") if "truncated" in self.step_names else None
        self._is_plain = self._count is None and self._truncated is None and not self.once_paths
        self._paths = paths
        self._is_flat = paths == sorted(self.layout.spec)
        self._named: Callable[[Nested], tuple[Leaf, ...]] = itemgetter(*paths)
        # numpy's own dtypes compare faster than equal ones
        self._fits = [(np.dtype(f.dtype.str), f.shape) for f in self.layout.fields]

    def _is_of_steps(self, name: str) -> bool:
        if name in ("final_observation", "length", "initial_state"):  # a state may have T numbers
            return False
        leaves = nested.flatten(self.layout.spec[name]).values()
        return all(leaf.shape[:1] == (self.length,) for leaf in leaves)

    def _check_sorts(self) -> None:
        for name in ("observation", "action", "terminated"):
            if name not in self.step_names:
                raise ConfigError(
                    f"layout: expected every leaf of {name} to begin with T={self.length}, "
                    f"got {nested.map(str, self.layout.spec[name])}"
                )
        flag = ArraySpec(np.dtype(bool), (self.length,))
        for name in ("terminated", "truncated"):
            leaf = self.layout.spec[name] if name in self.step_names else flag
            if leaf != flag:
                raise ConfigError(f"layout: expected {name} {flag}, got {leaf}")
        one = nested.flatten(self.step_spec(["observation"])["observation"])
        final = nested.flatten(self.layout.spec["final_observation"])
        if one != final:
            raise ConfigError(
                "layout: expected final_observation to be one observation, "
                f"{_worded(one)}, got {_worded(final)}"
            )
        count = self.layout.spec.get("length")
        if count is not None and (count.shape or count.dtype.kind not in "iu"):
            raise ConfigError(f"layout: expected length to be one integer, got {count}")

    def step_spec(self, names: Iterable[str], lead: tuple[int, ...] = ()) -> dict[str, Nested]:
        """Return the specs of the leaves of one step, each with `lead` before its shape."""

        def one(leaf: ArraySpec) -> ArraySpec:
            return ArraySpec(leaf.dtype, (*lead, *leaf.shape[1:]))

        return {name: nested.map(one, self.layout.spec[name]) for name in names}

    def read(self, segment: Packed | Nested) -> list[SegmentSteps]:
        """Return one segment, or the several of a packed `[B, nbytes]`, as views.

        Raises:
            SpecError: a segment does not fit; the message names the leaf, expected and got.
        """
        if not isinstance(segment, Packed):
            leaves = self._leaves(segment)
            if self._is_plain:  # the quick way, as `SegmentSteps(…)` in half the time
                parts = (self._steps(leaves), self._finals(leaves), (), self.length)
                return [tuple.__new__(SegmentSteps, parts)]
            return [self._steps_of(leaves)]
        columns = self.layout.columns(as_rows(self.layout, segment))
        rows = range(len(columns[0]))
        return [self._steps_of(tuple(column[row] for column in columns)) for row in rows]

    def _leaves(self, tree: Nested) -> tuple[Leaf, ...]:
        """Return the leaves in the layout's order; `nested.check` words what is wrong."""
        try:
            leaves: tuple[Leaf, ...]
            if self._is_flat and len(tree) == len(self._paths):
                leaves = self._named(tree)
            else:
                flat = nested.flatten(tree)
                leaves = tuple(flat.values()) if list(flat) == self._paths else ()
            # One comparison of lists is quicker than a check of each leaf.
            if list(map(_FIT, leaves)) == self._fits:
                return leaves
        except (KeyError, TypeError, AttributeError):
            pass  # worded below
        nested.check(tree, self.layout.spec, (), "segment")
        return tuple(nested.flatten(tree).values())

    def _steps_of(self, leaves: tuple[Leaf, ...]) -> SegmentSteps:
        count = self.length
        if self._count is not None:
            count = int(leaves[self._count])
            if not 1 <= count <= self.length:
                raise SpecError(f"segment/length: expected 1 to {self.length} steps, got {count}")
        if self._truncated is not None and leaves[self._truncated][: count - 1].any():
            at = int(leaves[self._truncated].argmax()) + 1
            raise SpecError(
                f"segment/truncated: step {at} of {count} ends an episode whose next observation "
                "the segment does not have: cut segments where episodes end"
            )
        return SegmentSteps(self._steps(leaves), self._finals(leaves), self._once(leaves), count)


def _worded(leaves: dict[str, ArraySpec]) -> str:
    return ", ".join(f"{path} {leaf}".strip() for path, leaf in leaves.items())


def _getter(places: list[int]) -> Callable[[tuple[Leaf, ...]], tuple[Leaf, ...]]:
    """Return what picks some of a tuple's leaves; a slice does not give a bare one."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        return itemgetter(slice(places[0], places[0] + 1))
    return lambda leaves: ()


def top(path: str) -> str:
    """Return the top-level name of a leaf's path: `observation/units[3]` → `observation`."""
    return re.split(r"[/\[]", path, maxsplit=1)[0]


def rebuild(names: Iterable[str], spec: dict[str, Nested], leaves: Iterator[Any]) -> Nested:
    """Return the tree of some names of a spec from their leaves."""
    return nested.unflatten({name: spec[name] for name in names}, leaves)
