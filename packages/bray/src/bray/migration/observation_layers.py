"""First layers of Stable-Baselines3 for numbers as bray's networks read them.

Stable-Baselines3 lays the parts of a Dict behind each other in the order in which they stand in it,
bray in alphabetical order; whole numbers with bounds are read as they are there, as shares of their
range here. Both are the same layer with its columns in another order and other units.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bray.policies.flattening import FlatLeaf
from bray_core import nested
from bray_core.spaces import Spaces

_FIRST = "0.weight"
_AS_IT_IS = 0.0, 1.0
"""Lowest value and width of the range of a number that is no share of one."""


def as_bray_reads(weights: Mapping[str, Tensor], spaces: Spaces) -> dict[str, Tensor]:
    """Return the weights with first layers that give the same for what bray reads.

    Layers of another number of inputs stay as they are: whoever fits them says what is wrong.

    Args:
        weights: weights by the names of what the algorithm trains; in a first layer `[H, D + A]`
            the observation's numbers stand before those of an action, if it has some.
        spaces: what the policy sees.
    """
    space = spaces.observation
    theirs = list(space) if isinstance(space, dict) else [""]
    parts = {name: _leaves(space[name] if name else space) for name in theirs}
    sizes = [sum(leaf.size for leaf in parts[name]) for name in theirs]
    columns_of = dict(zip(theirs, torch.split(torch.arange(sum(sizes)), sizes), strict=True))
    order = torch.cat([columns_of[name] for name in sorted(theirs)])
    units = [
        leaf.scale or _AS_IT_IS
        for name in sorted(theirs)
        for leaf in parts[name]
        for _ in range(leaf.size)
    ]
    low, span = torch.tensor(units, dtype=torch.float64).unbind(1)
    fitted = dict(weights)
    for name, weight in weights.items():
        if name.endswith(_FIRST) and weight.ndim == 2 and weight.shape[1] >= len(order):
            columns = weight[:, order].double()
            bias = name.removesuffix("weight") + "bias"
            seen = (columns * span).to(weight.dtype)
            fitted[name] = torch.cat([seen, weight[:, len(order) :]], 1)
            fitted[bias] = (weights[bias].double() + columns @ low).to(weight.dtype)
    return fitted


def _leaves(space: nested.Nested) -> list[FlatLeaf]:
    return [FlatLeaf(leaf) for _, leaf in nested.items(space)]
