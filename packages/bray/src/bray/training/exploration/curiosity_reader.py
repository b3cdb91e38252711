"""How curiosity reads observations of any space: as one vector, whose images networks see again."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from bray.policies.flattening import FlatLeaf, seen_space, split_mask
from bray.policies.images import ImageEncoder, is_stack_of_frames
from bray.policies.leaf_encoders import MOST_ONE_HOT
from bray_algo import mlp
from bray_algo.networks.convolutional import NatureEncoder
from bray_algo.networks.initialisation import orthogonal_
from bray_core import nested
from bray_core.action_vector import sizes_of
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces
from bray_trainer.frame_stacks import as_tensors

_HIDDEN, _FEATURES = 128, 64
"""Units of a hidden layer, and features that are predicted."""


class CuriosityReader:
    """Reads observations as one vector of floats, and makes networks that take it.

    Of a stack of images the newest is read: the others were rated when they came. Members of a set
    are read in their places, absent ones as zeros.

    Args:
        spaces: what the policy sees and may do.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._space = spaces.observation
        seen = seen_space(spaces)
        self.is_frames = isinstance(seen, LeafSpace) and is_stack_of_frames(seen)
        self._leaves = [_Leaf(leaf) for _, leaf in nested.items(seen)]
        size = sum(leaf.size for leaf in self._leaves)
        self.shape = (1, 84, 84) if self.is_frames else (size,)
        """Shape of what is read."""

    def __call__(self, observation: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to floats `[…, *self.shape]`."""
        if self.is_frames:
            newest: Tensor = as_tensors(observation)[..., -1:, :, :].float()
            return newest
        seen, _ = split_mask(as_tensors(observation), self._space)
        read = [leaf(x) for leaf, (_, x) in zip(self._leaves, nested.items(seen), strict=True)]
        return read[0] if len(read) == 1 else torch.cat(read, -1)

    def network(self, hidden: list[int]) -> nn.Module:
        """Return a network of what is read, with further hidden layers."""
        sizes = [_HIDDEN, *hidden, _FEATURES]
        if self.is_frames:
            # The encoder takes bytes, which it divides by 255.
            return nn.Sequential(_Scale(255.0), NatureEncoder(1, _HIDDEN), mlp(sizes, nn.ReLU))
        images = [leaf for leaf in self._leaves if leaf.image is not None]
        pieces = _Pieces(self._leaves) if images else None
        width = self.shape[0] if pieces is None else pieces.size
        first = orthogonal_(nn.Linear(width, _HIDDEN), math.sqrt(2))
        layers = [first, nn.ReLU(), mlp(sizes, nn.ReLU)]
        return nn.Sequential(*layers if pieces is None else [pieces, *layers])


class _Leaf:
    """Reads a leaf as a vector.

    Args:
        leaf: its space.
    """

    def __init__(self, leaf: LeafSpace) -> None:
        self._is_stack = leaf.kind == "image" and len(leaf.shape) == 4
        leaf = replace(leaf, shape=leaf.shape[1:]) if self._is_stack else leaf
        self._digits: list[int] | None = None
        if leaf.kind == "category" and max(leaf.sizes) > MOST_ONE_HOT:  # else one-hot
            self._digits = [max(1, (size - 1).bit_length()) for size in sizes_of(leaf)]
        self._is_set = leaf.kind == "set"
        self._rank = len(leaf.shape)
        self._flat = FlatLeaf(leaf)
        self.size = self._flat.size if self._digits is None else sum(self._digits)
        """Numbers of the vector."""
        is_image = leaf.kind == "image"
        self.image = replace(leaf, dtype="float32", low=None, high=None) if is_image else None
        """Space of the image that the vector is, once it is normalised; None: it is none."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map values `[…, *shape]` to vectors `[…, size]`, float32."""
        if self._is_stack:
            x = x[..., -1, :, :, :]
        if self._digits is not None:
            return self._binary(x.reshape(*x.shape[: x.ndim - self._rank], -1).long())
        if self._is_set:
            x = torch.where(x[..., -1:] > 0.5, x, 0)
        return self._flat(x)

    def _binary(self, index: Tensor) -> Tensor:
        """Map values `[…, K]` to their binary digits, side by side."""
        assert self._digits is not None, "only large categories have digits"
        columns = [
            (index[..., k, None] >> torch.arange(digits, device=index.device)) & 1
            for k, digits in enumerate(self._digits)
        ]
        return torch.cat(columns, -1).float()


class _Pieces(nn.Module):
    """Cuts a normalised vector into its leaves, of which convolutions see the images.

    Args:
        leaves: the leaves, in the order of the vector.
    """

    def __init__(self, leaves: list[_Leaf]) -> None:
        super().__init__()
        self._sizes = [leaf.size for leaf in leaves]
        self._shapes = [None if leaf.image is None else leaf.image.shape for leaf in leaves]
        self.encoders = nn.ModuleList(
            nn.Identity() if leaf.image is None else ImageEncoder(leaf.image, _HIDDEN)
            for leaf in leaves
        )
        self.size = sum(leaf.size if leaf.image is None else _HIDDEN for leaf in leaves)
        """Number of features F."""

    def forward(self, x: Tensor) -> Tensor:
        """Map vectors `[N, size]` to features `[N, F]`."""
        pieces = zip(torch.split(x, self._sizes, -1), self._shapes, self.encoders, strict=True)
        return torch.cat(
            [
                encoder(piece if shape is None else piece.reshape(-1, *shape))
                for piece, shape, encoder in pieces
            ],
            -1,
        )


class _Scale(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` times the factor."""
        return x * self._factor
