"""What a policy sees and may do, as plain data: neither gymnasium nor torch is needed.

A description is nested like the values that it describes, with a `LeafSpace` for each array. It is
read from an environment (`bray_actor.spaces`), declared in a template, told by a simulator, and
kept with an exported model. As plain mappings, for YAML and JSON, the leaves are written

    {discrete: 4}                  one of 4 numbers; `start: 1` where the first is not 0
    {multi_discrete: [3, 2]}       several such numbers at once
    {multi_binary: 5}              5 flags; a list is a shape
    {shape: [8], low: -1, high: 1} real numbers; `dtype: uint8`; bounds where there are any
    {most: 16, features: 3}        a set of up to 16 members of 3 numbers each

and a mapping of other names, or a list, holds further ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import ArraySpec, Nested

LeafKind: TypeAlias = Literal["real", "image", "category", "binary", "set"]
Bound: TypeAlias = float | tuple[float | None, ...] | None
"""One number for all elements, one for each (None: none), or None: there is none."""

_KEYS = {
    "discrete": {"discrete", "start"},
    "multi_discrete": {"multi_discrete", "start", "dtype"},
    "multi_binary": {"multi_binary", "dtype"},
    "shape": {"shape", "dtype", "low", "high"},
    "most": {"most", "features"},
}
"""The key that says the kind of a leaf → the keys that it may have."""
_MOST_NUMBERS = 1 << 26
"""Numbers of one value at most: a description from a network must not claim a machine's memory."""
_MOST_LEAVES = 1024
_DEEPEST = 16
_LONGEST_NAME = 256
_MOST_DIMS = 4
"""Dimensions of several choices at most."""
_LEAST_SIDE = 5
"""Least height and width of an image."""


@dataclass(frozen=True, slots=True)
class LeafSpace:
    """One array of an observation or an action, and what its numbers mean."""

    kind: LeafKind
    """`real`: numbers. `image`: pixels, of two to four dimensions. `category`: each element is one
    of `sizes` values, from 0 on. `binary`: flags. `set`: members in rows, of which the last column
    says whether there is one."""
    dtype: str
    """numpy's name of the type in which values come."""
    shape: tuple[int, ...]
    """Shape of one value; of a set `(most members, features + 1)`."""
    sizes: tuple[int, ...] = ()
    """The number of values of each element of a category, in the array's order."""
    low: Bound = None
    high: Bound = None
    start: int | tuple[int, ...] = 0
    """The first value of a category as the environment counts; elsewhere numbers begin at 0."""

    @property
    def spec(self) -> ArraySpec:
        """Type and shape of one value."""
        return ArraySpec(np.dtype(self.dtype), self.shape)

    @property
    def num_numbers(self) -> int:
        """Number of elements of one value."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return least and greatest value of each element, float64 of `shape`; inf where none."""
        return self._bound(self.low, -math.inf), self._bound(self.high, math.inf)

    def _bound(self, bound: Bound, none: float) -> np.ndarray[Any, Any]:
        if isinstance(bound, tuple):
            return np.reshape([none if one is None else one for one in bound], self.shape)
        return np.full(self.shape, none if bound is None else bound, np.float64)

    def described(self) -> dict[str, Any]:
        """Return it as a plain mapping; `parse` reads it."""
        if self.kind == "category":
            if not self.shape:
                first = {"start": self.start} if self.start else {}
                return {"discrete": self.sizes[0], **first}
            sizes = np.reshape(self.sizes, self.shape).tolist()
            start = {"start": np.reshape(self.start, self.shape).tolist()} if self.start else {}
            return {"multi_discrete": sizes, **start, **_unless("dtype", self.dtype, "int64")}
        if self.kind == "binary":
            return {"multi_binary": list(self.shape), **_unless("dtype", self.dtype, "int8")}
        if self.kind == "set":
            return {"most": self.shape[0], "features": self.shape[1] - 1}
        bounds = {
            name: list(bound) if isinstance(bound, tuple) else bound
            for name, bound in (("low", self.low), ("high", self.high))
            if bound is not None
        }
        return {"shape": list(self.shape), **_unless("dtype", self.dtype, "float32"), **bounds}

    def __str__(self) -> str:
        """Say it in words, for messages."""
        if self.kind == "category":
            if not self.shape:
                return f"one of {self.sizes[0]} values"
            return f"{len(self.sizes)} choices, of {_some(self.sizes)} values"
        if self.kind == "binary":
            return f"{self.num_numbers} flags"
        if self.kind == "set":
            return f"up to {self.shape[0]} members of {self.shape[1] - 1} numbers"
        what = "an image of" if self.kind == "image" else "numbers of"
        size = " × ".join(map(str, self.shape)) or "1"
        return f"{what} {size} ({self.dtype})"


def _unless(name: str, value: str, usual: str) -> dict[str, str]:
    return {} if value == usual else {name: value}


def _some(sizes: Sequence[int]) -> str:
    shown = ", ".join(map(str, sizes[:8]))
    return f"{shown}, …" if len(sizes) > 8 else shown


@dataclass(frozen=True, slots=True)
class Spaces:
    """What a policy sees and may do: nested `LeafSpace`s."""

    origin: str
    """Where they were read or told, for messages: an environment's id, `start of session 7`."""
    observation: Nested
    action: Nested

    @classmethod
    def parse(cls, origin: str, described: Any) -> Self:
        """Read a mapping of `observation` and `action`, as in the module's first words.

        Raises:
            ConfigError: it is no such description; names the leaf and what was expected.
        """
        if not isinstance(described, Mapping) or set(described) != {"observation", "action"}:
            got = sorted(map(str, described)) if isinstance(described, Mapping) else described
            raise ConfigError(
                f"{origin}: spaces: expected observation and action, got {_shown(got)}"
            )
        return cls(
            origin, *(parse(described[n], f"{origin}: {n}") for n in ("observation", "action"))
        )

    def described(self) -> dict[str, Any]:
        """Return them as plain mappings, for YAML, JSON and the wire; `parse` reads them."""
        return {"observation": described(self.observation), "action": described(self.action)}

    @property
    def observation_spec(self) -> Nested:
        """`ArraySpec` of each leaf of an observation, as it comes."""
        return nested.map(lambda leaf: leaf.spec, self.observation)

    @property
    def recorded(self) -> Nested:
        """`ArraySpec` of each leaf of an observation as it is recorded: float64 in float32.

        A model's own inputs keep the type that comes, so an export takes what a simulator gives.
        """
        return nested.map(_narrow, self.observation_spec)

    @property
    def example(self) -> Nested:
        """One observation of zeros, with a batch dimension."""
        return nested.map(
            lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), self.observation_spec
        )

    def difference(self, other: Spaces) -> str | None:
        """Return in words the first leaf in which the other's differ; None where they agree.

        Bounds of observations are no difference: what a policy sees may be described with or
        without.
        """
        for name in ("observation", "action"):
            mine = dict(nested.items(getattr(self, name), name))
            theirs = dict(nested.items(getattr(other, name), name))
            for path in [*mine, *theirs]:
                one, another = mine.get(path), theirs.get(path)
                if not _agree(one, another, name == "action"):
                    return (
                        f"{path}: {self.origin} has {one or 'none'}, "
                        f"{other.origin} has {another or 'none'}"
                    )
        return None


def _agree(one: LeafSpace | None, another: LeafSpace | None, has_bounds: bool) -> bool:
    if one is None or another is None:
        return False
    if (one.spec, one.sizes) != (another.spec, another.sizes):
        return False
    if not has_bounds:
        return True
    return all(map(np.array_equal, one.bounds(), another.bounds()))


def _narrow(leaf: ArraySpec) -> ArraySpec:
    return ArraySpec(np.dtype(np.float32), leaf.shape) if leaf.dtype == np.float64 else leaf


def described(space: Nested) -> Any:
    """Return nested `LeafSpace`s as plain mappings; `parse` reads them."""
    if isinstance(space, dict):
        return {name: described(child) for name, child in space.items()}
    if isinstance(space, list | tuple):
        return [described(child) for child in space]
    return space.described()


def parse(value: Any, path: str = "space") -> Nested:
    """Read nested `LeafSpace`s from plain mappings, as in the module's first words.

    Args:
        value: mappings, lists and numbers, as YAML and JSON give them.
        path: name of the value, for messages.

    Raises:
        ConfigError: it is no such description; names the leaf and what was expected.
    """
    space = _parsed(value, path, 0)
    leaves = dict(islice(nested.items(space), _MOST_LEAVES + 1))
    if not leaves or len(leaves) > _MOST_LEAVES:
        got = f"more than {_MOST_LEAVES}" if leaves else "0"
        raise ConfigError(f"{path}: expected 1 to {_MOST_LEAVES} leaves, got {got}")
    if (numbers := sum(leaf.num_numbers for leaf in leaves.values())) > _MOST_NUMBERS:
        raise ConfigError(f"{path}: expected at most {_MOST_NUMBERS:,} numbers, got {numbers:,}")
    return space


def _parsed(value: Any, path: str, depth: int) -> Nested:
    if depth > _DEEPEST:
        raise ConfigError(f"{path}: expected at most {_DEEPEST} levels")
    if isinstance(value, list | tuple):
        return tuple(_parsed(child, f"{path}[{i}]", depth + 1) for i, child in enumerate(value))
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(
            f"{path}: expected a mapping such as {{shape: [8]}} or {{discrete: 4}}, "
            f"got {_shown(value)}"
        )
    kind = next((key for key in _KEYS if key in value and not _holds_spaces(value[key])), None)
    if kind is None:
        if (name := max(value, key=len, default="")) and len(name) > _LONGEST_NAME:
            most = f"expected names of at most {_LONGEST_NAME} characters"
            raise ConfigError(f"{path}: {most}, got {name[:40]!r}… of {len(name)}")
        return {name: _parsed(child, f"{path}/{name}", depth + 1) for name, child in value.items()}
    if unknown := sorted(set(value) - _KEYS[kind]):
        raise ConfigError(f"{path}: expected of {sorted(_KEYS[kind])} only, got {unknown} too")
    return _LEAVES[kind](value, path)


def _holds_spaces(value: Any) -> bool:
    """Return whether it is further spaces: a leaf of an environment may be named `shape`, too."""
    for _ in range(_DEEPEST):
        if isinstance(value, list | tuple) and value:
            value = value[0]
    return isinstance(value, Mapping)


def _discrete(value: Mapping[str, Any], path: str) -> LeafSpace:
    size = _whole(value["discrete"], f"{path}: discrete", least=1)
    start = _whole(value.get("start", 0), f"{path}: start")
    return LeafSpace("category", "int64", (), (size,), start=start)


def _multi_discrete(value: Mapping[str, Any], path: str) -> LeafSpace:
    sizes = _wholes(value["multi_discrete"], f"{path}: multi_discrete", least=1)
    starts = _wholes(value.get("start", 0), f"{path}: start")
    if starts.shape not in ((), sizes.shape):
        raise ConfigError(
            f"{path}: start: expected one number, or one for each of shape {list(sizes.shape)}, "
            f"got {list(starts.shape)}"
        )
    starts = np.broadcast_to(starts, sizes.shape)
    start = tuple(starts.flatten().tolist()) if starts.any() else 0
    shape = sizes.shape or (1,)
    return LeafSpace(
        "category",
        _dtype(value, path, "int64", "iu"),
        shape,
        tuple(sizes.flatten().tolist()),
        start=start,
    )


def _multi_binary(value: Mapping[str, Any], path: str) -> LeafSpace:
    shape = _shape(value["multi_binary"], f"{path}: multi_binary")
    return LeafSpace("binary", _dtype(value, path, "int8", "iub"), shape)


def _set(value: Mapping[str, Any], path: str) -> LeafSpace:
    most = _whole(value["most"], f"{path}: most", least=1)
    features = _whole(value.get("features", 1), f"{path}: features", least=1)
    return LeafSpace("set", "float32", (most, features + 1))


def _numbers(value: Mapping[str, Any], path: str) -> LeafSpace:
    shape = _shape(value["shape"], f"{path}: shape")
    dtype = _dtype(value, path, "float32", "iufb")
    low, high = (_read_bound(value.get(name), shape, f"{path}: {name}") for name in ("low", "high"))
    leaf = LeafSpace(kind_of(dtype, shape), dtype, shape, low=low, high=high)
    if low is None or high is None:
        return leaf
    if isinstance(low, float) and isinstance(high, float):
        is_empty = low > high  # without arrays of all elements
    else:
        least, greatest = leaf.bounds()
        is_empty = bool((least > greatest).any())
    if is_empty:
        raise ConfigError(f"{path}: expected low at most high, got {_shown((low, high))}")
    return leaf


_LEAVES = {
    "discrete": _discrete,
    "multi_discrete": _multi_discrete,
    "multi_binary": _multi_binary,
    "shape": _numbers,
    "most": _set,
}


def kind_of(dtype: str, shape: tuple[int, ...]) -> LeafKind:
    """Return whether an array of real numbers is an image: `[H, W, C]`, `[C, H, W]`, or of bytes
    also `[H, W]` and a stack of frames `[K, H, W, C]`; with sides of five pixels at least."""
    is_bytes = np.dtype(dtype) == np.uint8
    sides = sorted(shape)[-2:]
    ranks = (2, 3, 4) if is_bytes else (3,)
    return "image" if len(shape) in ranks and min(sides) >= _LEAST_SIDE else "real"


def _shown(value: Any) -> str:
    """Return the beginning of what was given instead, for messages."""
    try:
        return f"{value!r:.100}"
    except (ValueError, RecursionError):  # an int of thousands of digits, lists of as many levels
        return f"a long {type(value).__name__}"


def _whole(value: Any, path: str, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 62:
        raise ConfigError(f"{path}: expected a whole number, got {_shown(value)}")
    if least is not None and value < least:
        raise ConfigError(f"{path}: expected {least} or more, got {value}")
    return value


def _wholes(
    value: Any, path: str, least: int | None = None, depth: int = 0
) -> np.ndarray[Any, Any]:
    """Return nested lists of whole numbers as an array, int64."""
    if isinstance(value, int):
        return np.asarray(_whole(value, path, least), np.int64)
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 1 << 16 or depth == _MOST_DIMS:
        raise ConfigError(f"{path}: expected whole numbers, got {_shown(value)}")
    if set(map(type, value)) == {int}:
        lowest = -(1 << 62) + 1 if least is None else least
        if lowest <= min(value) and max(value) < 1 << 62:
            return np.asarray(value, np.int64)
    rows = [_wholes(one, f"{path}[{index}]", least, depth + 1) for index, one in enumerate(value)]
    if len({row.shape for row in rows}) != 1:
        raise ConfigError(f"{path}: expected lists of one length, got {_shown(value)}")
    return np.stack(rows)


def _shape(value: Any, path: str) -> tuple[int, ...]:
    sizes = [value] if isinstance(value, int) else value
    if not isinstance(sizes, list | tuple) or len(sizes) > 8:
        raise ConfigError(f"{path}: expected a list of sizes, such as [8], got {_shown(value)}")
    shape = tuple(_whole(one, path, least=1) for one in sizes)
    if math.prod(shape) > _MOST_NUMBERS:
        raise ConfigError(f"{path}: expected at most {_MOST_NUMBERS:,} numbers, got {list(shape)}")
    return shape


def _dtype(value: Mapping[str, Any], path: str, usual: str, kinds: str) -> str:
    name = value.get("dtype", usual)
    known = sorted(
        {np.dtype(code).name for code in np.typecodes["All"] if np.dtype(code).kind in kinds}
        - {"longlong", "ulonglong", "longdouble", "float128", "float96"}
    )
    if name not in known:
        raise ConfigError(f"{path}: dtype: expected one of {', '.join(known)}, got {_shown(name)}")
    return str(name)


def _read_bound(value: Any, shape: tuple[int, ...], path: str) -> Bound:
    if isinstance(value, list | tuple):
        count = math.prod(shape)
        flat = _flat(value, path, count)
        if len(flat) != count:
            raise ConfigError(f"{path}: expected {count} numbers, got {len(flat)}")
        return tuple(_finite(one, path) for one in flat)
    return _finite(value, path)


def _flat(value: Any, path: str, count: int) -> list[Any]:
    """Return the numbers of nested lists, in their order."""
    left, flat = [value], []
    steps = 0
    while left:
        one, steps = left.pop(), steps + 1
        if isinstance(one, list | tuple):
            left += reversed(one)
        else:
            flat.append(one)
        if steps > _DEEPEST * (count + 1):  # also where a list holds itself
            raise ConfigError(f"{path}: expected {count} numbers, got more or deeper lists")
    return flat


def _finite(value: Any, path: str) -> float | None:
    """Return a number; None where it is none or infinite, which says that there is no bound."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.nan
    if isinstance(value, bool) or math.isnan(number):
        raise ConfigError(f"{path}: expected a number, got {_shown(value)}")
    return number if math.isfinite(number) else None
