"""What a model takes and gives: nested specs without the batch dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested
from bray_model.tree_spec import TreeSpec, unbatched

Forward = Callable[[tuple[Nested, ...]], Nested]
"""A forward: inputs, leaves `[B, ...]` → outputs, leaves `[B, ...]`."""

# What a user's module may raise on inputs that do not fit it.
_MODULE_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model, nested `ArraySpec` without batch dimension.

    A leaf's path, such as `inputs[0]/units` or `outputs/logits`, is its name in error messages
    and in an export.

    Raises:
        SpecError: the state's inputs and outputs do not match; names both.
    """

    inputs: tuple[Nested, ...]
    """One tree per positional argument."""
    outputs: Nested
    state: Mapping[str, str] = field(default_factory=dict)
    """Input → the output that it comes from in a session's next call; paths of leaves, or of
    trees of the same structure: `{"inputs[1]": "outputs/state"}`."""
    state_leaves: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """State as pairs of leaf numbers (input, output), ascending by input."""
    input_tree: TreeSpec = field(init=False, repr=False, compare=False)
    given_tree: TreeSpec = field(init=False, repr=False, compare=False)
    """Spec of the inputs that are no state: those that a call of a session gives."""
    output_tree: TreeSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_tree", TreeSpec(self.inputs, "inputs"))
        object.__setattr__(self, "output_tree", TreeSpec(self.outputs, "outputs"))
        pairs = state_leaves(self.state, self.input_tree, self.output_tree)
        object.__setattr__(self, "state_leaves", pairs)
        kept = {self.input_tree.paths[i] for i, _ in pairs}
        given = TreeSpec(without(self.inputs, "inputs", kept), "inputs")
        object.__setattr__(self, "given_tree", given)
        object.__setattr__(self, "state", dict(self.state))

    def __reduce__(self) -> tuple[type[Signature], tuple[Any, ...]]:
        return Signature, (self.inputs, self.outputs, self.state)

    @classmethod
    def probe(cls, run: Forward, example: tuple[Nested, ...]) -> Signature:
        """Find the signature by running example inputs `[B, ...]` in two batch sizes.

        Raises:
            SpecError: an example has no batch dimension, the forward fails on it, or an output
                does not follow the batch size.
        """
        inputs, rows = unbatched(example, "example_inputs")
        outputs = _output_spec(run, example, rows)
        more = _output_spec(run, resize(example, rows + 1), rows + 1, worked=rows)
        if nested.flatten(more) != nested.flatten(outputs):
            raise SpecError(
                f"outputs: expected one shape for every batch size, got {outputs} for {rows} rows "
                f"and {more} for {rows + 1}"
            )
        return cls(inputs, outputs)


def resize(tree: Nested, rows: int) -> Nested:
    """Repeat or cut the rows of leaves `[B, ...]` so that there are `rows` of them."""
    return nested.map(lambda leaf: np.resize(leaf, (rows, *leaf.shape[1:])), tree)


def _output_spec(
    run: Forward, inputs: tuple[Nested, ...], rows: int, worked: int | None = None
) -> Nested:
    shapes = {path: f"{x.dtype} {x.shape}" for path, x in nested.items(inputs, "example_inputs")}
    try:
        outputs = run(inputs)
    except SpecError:
        raise
    except _MODULE_ERRORS as error:
        why = f", while {worked} rows worked: is the batch dimension missing?" if worked else ""
        raise SpecError(f"the module fails on {_list(shapes)}{why} ({error})") from error
    spec, got = unbatched(outputs, "outputs")
    if got != rows:
        raise SpecError(
            f"outputs: expected {rows} rows for {_list(shapes)}, got {got}: example inputs need a "
            "leading batch dimension, such as x[None], and outputs must keep it"
        )
    return spec


def _list(shapes: dict[str, Any]) -> str:
    return ", ".join(f"{path}: {shape}" for path, shape in shapes.items())


def state_leaves(
    state: Mapping[str, str], inputs: TreeSpec, outputs: TreeSpec
) -> tuple[tuple[int, int], ...]:
    """Return the numbers of the leaves, (input, output), ascending by input.

    Args:
        state: Input → output; each the path of a leaf, or of a tree of the same structure.

    Raises:
        SpecError: a path is unknown, two leaves differ, an input is named twice, or no input is
            left that is not state.
    """
    if not isinstance(state, Mapping):
        raise SpecError(f"state: expected input → output, got {state!r}")
    pairs: dict[int, int] = {}
    for target, source in state.items():
        for pair in _match(target, source, inputs, outputs):
            if pair[0] in pairs:
                raise SpecError(f"state: {inputs.paths[pair[0]]}: named twice")
            pairs[pair[0]] = pair[1]
    if len(pairs) == len(inputs.paths):
        raise SpecError(f"state: expected an input besides the state, got only {inputs.paths}")
    return tuple(sorted(pairs.items()))


def _match(target: str, source: str, inputs: TreeSpec, outputs: TreeSpec) -> list[tuple[int, int]]:
    """Pair the leaves below two paths."""
    wanted, given = _below(target, inputs), _below(source, outputs)
    if list(wanted) != list(given):
        raise SpecError(
            f"state: {target} and {source}: expected the same structure, got the leaves "
            f"{_full(target, wanted)} and {_full(source, given)}"
        )
    for rest, i in wanted.items():
        spec, other = inputs.specs[i], outputs.specs[given[rest]]
        if spec != other:
            raise SpecError(
                f"state: {target}{rest} is {spec} and {source}{rest} is {other}: expected the same"
            )
    return [(i, given[rest]) for rest, i in wanted.items()]


def _below(path: str, tree: TreeSpec) -> dict[str, int]:
    """Return the rest of the path → the leaf's number, of all leaves at or below `path`."""
    found = {}
    if isinstance(path, str):
        for i, leaf in enumerate(tree.paths):
            rest = leaf.removeprefix(path)
            if leaf.startswith(path) and rest[:1] in ("", "/", "["):
                found[rest] = i
    if not found:
        raise SpecError(f"state: no {tree.name} at {path!r}; there are {list(tree.paths)}")
    return found


def _full(path: str, rests: Mapping[str, int]) -> list[str]:
    return [path + rest for rest in rests]


def without(node: Nested, path: str, dropped: Set[str]) -> Nested:
    """Return a spec without some leaves, nor the containers that held no other; None: all gone."""
    if isinstance(node, ArraySpec):
        return None if path in dropped else node
    if isinstance(node, dict):
        named = {key: without(child, f"{path}/{key}", dropped) for key, child in node.items()}
        kept = {key: child for key, child in named.items() if child is not None}
        return kept if kept or not node else None
    children = [without(child, f"{path}[{i}]", dropped) for i, child in enumerate(node)]
    left = [child for child in children if child is not None]
    if node and not left:
        return None
    return left if isinstance(node, list) else tuple(left)
