"""What reads one leaf of an observation: flat, convolutions, an embedding, attention, or yours."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import FlatLeaf
from bray.policies.images import ImageEncoder
from bray.policies.own import own_leaf_encoder
from bray_algo.networks.attention import EntityTransformer
from bray_algo.networks.encoders import Embeddings
from bray_algo.networks.entities import AttentionPool
from bray_core import nested
from bray_core.action_vector import sizes_of
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.settings.choice import check_choice, closest
from bray_core.spaces import LeafSpace

_USUAL = {"image": "cnn", "set": "attention"}
"""Kinds of leaves that are not read flat, and what reads them."""
_TAKES = {
    "flat": ("real", "image", "category", "binary", "set"),
    "cnn": ("image",),
    "embedding": ("category",),
    "attention": ("set",),
}
"""What reads which kinds of leaves."""
MOST_ONE_HOT = 1024
"""Values of a category above which it is embedded: one-hot vectors grow with them."""


_WHOLE = "observation"
"""Name of a leaf that is all of the observation."""


def check_encoders(seen: Nested, config: TrunkConfig) -> None:
    """Refuse encoders of leaves that there are not.

    Raises:
        ConfigError: names the leaves that there are.
    """
    known = [path or _WHOLE for path, _ in nested.items(seen)]
    for path in config.encoders:
        if (path or _WHOLE) not in known:
            raise ConfigError(
                f"model.encoders.{path}: no such leaf of the observation{closest(path, known)}; "
                f"known: {', '.join(known)}"
            )


def needs_encoder(path: str, leaf: LeafSpace, config: TrunkConfig) -> bool:
    """Return whether a leaf is read by something that has weights of its own."""
    return _name(path, leaf, config) != "flat"


def _name(path: str, leaf: LeafSpace, config: TrunkConfig) -> str:
    for named in (path, path or _WHOLE):
        if named in config.encoders:
            return config.encoders[named]
    if leaf.kind == "category" and max(leaf.sizes) > MOST_ONE_HOT:
        return "embedding"
    return _USUAL.get(leaf.kind, "flat")


def leaf_encoder(
    path: str, leaf: LeafSpace, config: TrunkConfig, features: int | None = None
) -> Any:
    """Make the encoder of a leaf, which has the number of its features as `size`.

    Args:
        path: path of the leaf in the observation; empty where it is all of it.
        leaf: its space.
        config: says what reads it, where that is not what suits its kind.
        features: number of features, where the encoder is free to choose; None takes a usual one.

    Raises:
        ConfigError: there is no such encoder, or it takes no such leaf.
    """
    name = _name(path, leaf, config)
    if ":" in name:
        return own_leaf_encoder(path, leaf, name, config)
    setting = f"model.encoders.{path or _WHOLE}"
    check_choice(setting, name, list(_TAKES))
    if leaf.kind not in _TAKES[name]:
        raise ConfigError(f"{setting}: {name!r} reads {', '.join(_TAKES[name])}, got {leaf}")
    sizes = {} if features is None else {"features": features}
    if name == "cnn":
        return ImageEncoder(leaf, **sizes)
    if name == "embedding":
        return CategoryEncoder(leaf, **sizes)
    if name == "attention":
        return SetEncoder(leaf, **sizes)
    return FlatEncoder(leaf)


class FlatEncoder(nn.Module):
    """A leaf as a vector, without weights."""

    def __init__(self, leaf: LeafSpace) -> None:
        super().__init__()
        self._read = FlatLeaf(leaf)
        self.size = self._read.size

    def forward(self, x: Tensor) -> Tensor:
        """Map values `[…, *shape]` to vectors `[…, F]`."""
        return self._read(x)


class CategoryEncoder(nn.Module):
    """A learnt vector for each value of each element, side by side.

    Args:
        leaf: space of a category.
        features: numbers of one vector.
    """

    def __init__(self, leaf: LeafSpace, features: int = 32) -> None:
        super().__init__()
        self._rank = len(leaf.shape)
        self._sizes = sizes_of(leaf)
        try:
            self.tables = Embeddings(self._sizes, features)
        except (RuntimeError, MemoryError):
            raise ConfigError(
                f"observation: {leaf} has a vector for each of its values, {max(self._sizes)} of "
                "one number, for which there is no memory: let a wrapper make it numbers (Box), "
                "or several categories (MultiDiscrete)"
            ) from None
        self.size = features * len(self._sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map values `[…, *shape]` to vectors `[…, F]`."""
        vectors: Tensor = self.tables(x.reshape(*x.shape[: x.ndim - self._rank], -1).long())
        return vectors


class SetEncoder(nn.Module):
    """Members that attend to each other, then a query that attends to all of them.

    Vaswani et al. 2017, "Attention is all you need"; Lee et al. 2019, "Set Transformer", §3.2. The
    order of the members does not matter; absent ones may hold anything.

    Args:
        leaf: space of a set `[most, features + 1]`, whose last column says who is present.
        features: number of features F.
    """

    def __init__(self, leaf: LeafSpace, features: int = 64) -> None:
        super().__init__()
        heads = 4 if features % 4 == 0 else 1
        self.members = EntityTransformer(
            leaf.shape[1] - 1, size=features, num_layers=1, num_heads=heads
        )
        self.pool = AttentionPool(features, num_heads=heads)
        self.size = features

    def forward(self, x: Tensor) -> Tensor:
        """Map sets `[…, most, features + 1]` to features `[…, F]`."""
        lead = x.shape[:-2]
        x = x.reshape(-1, *x.shape[-2:]).float()
        present = x[..., -1] > 0.5
        pooled: Tensor = self.pool(self.members(x[..., :-1], present), present)
        return pooled.reshape(*lead, self.size)
