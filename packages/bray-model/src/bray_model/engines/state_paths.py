"""Which outputs of a model are inputs of its next call: paths to leaves, checked."""

from __future__ import annotations

from collections.abc import Mapping, Set

from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested
from bray_model.tree_spec import TreeSpec


def state_leaves(
    state: Mapping[str, str], inputs: TreeSpec, outputs: TreeSpec
) -> tuple[tuple[int, int], ...]:
    """Return the numbers of the leaves, (input, output), ascending by input.

    Args:
        state: input → output; each the path of a leaf, or of a tree of the same structure.

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
