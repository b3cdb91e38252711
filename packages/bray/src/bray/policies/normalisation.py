"""Observations at mean 0 and deviation 1, by statistics that are part of the network.

The statistics are buffers: published, saved and exported with the weights. Nothing but a trainer
changes them, so they stand still where a policy plays, is evaluated, or was exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import MASK
from bray_algo.networks.normalisation import Moments, RunningNorm, moments
from bray_core import nested
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces


def _is_normalised(path: str, leaf: LeafSpace) -> bool:
    """Return whether a leaf is scaled: categories, flags, images and sets stay as they are."""
    return leaf.kind == "real" and path.split("/")[0].split("[")[0] != MASK


def normalised(spaces: Spaces, config: TrunkConfig) -> Spaces:
    """Return the spaces that a network reads: numbers that are normalised have no bounds."""
    if not config.normalize_observation:
        return spaces
    leaves = [
        replace(leaf, dtype="float32", low=None, high=None) if _is_normalised(path, leaf) else leaf
        for path, leaf in nested.items(spaces.observation)
    ]
    return replace(spaces, observation=nested.unflatten(spaces.observation, leaves))


class ObservationNorm(nn.Module):
    """Normalises the real numbers of observations, if the settings say so; else it does nothing.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
    """

    def __init__(self, spaces: Spaces, config: TrunkConfig) -> None:
        super().__init__()
        leaves = list(nested.items(spaces.observation))
        wanted = [i for i, leaf in enumerate(leaves) if _is_normalised(*leaf)]
        self._numbers = wanted if config.normalize_observation else []
        self.norms = nn.ModuleList(RunningNorm(leaves[i][1].shape) for i in self._numbers)

    def forward(self, observation: Nested) -> Nested:
        """Map observations, leaves `[…, *shape]`, to the same with normalised numbers, float32."""
        if not self._numbers:
            return observation
        leaves = [leaf for _, leaf in nested.items(observation)]
        for number, norm in zip(self._numbers, self.norms, strict=True):
            leaves[number] = norm(leaves[number]).float()
        return nested.unflatten(observation, leaves)

    @torch.no_grad()
    def moments_of(self, observation: Nested, valid: Tensor | None = None) -> list[Moments]:
        """Return the statistics of observations, of each leaf that is normalised.

        Args:
            observation: leaves `[…, *shape]`.
            valid: rows that count, bool `[…]`; the others may hold anything. None is all.
        """
        leaves = [leaf for _, leaf in nested.items(observation)]
        pairs: Any = zip(self._numbers, self.norms, strict=True)
        return [moments(leaves[number], norm.mean.ndim, valid) for number, norm in pairs]

    def update_with(self, seen: Sequence[Moments]) -> None:
        """Take in the statistics that `moments_of` returned, here or in another process."""
        norms: Any = self.norms
        for norm, found in zip(norms, seen, strict=True):
            norm.update_with(Moments(*(number.to(norm.mean.device) for number in found)))


def find_norm(module: nn.Module) -> ObservationNorm | None:
    """Return what normalises the observations of a network; None where nothing does."""
    for part in module.modules():
        if isinstance(part, ObservationNorm) and len(part.norms):
            return part
    return None


class NormalisedPolicy(nn.Module):
    """A whole policy of yours that reads normalised observations.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
        policy: your policy.
    """

    def __init__(self, spaces: Spaces, config: TrunkConfig, policy: Any) -> None:
        super().__init__()
        self.normalize = ObservationNorm(spaces, config)
        self.policy = policy
        self.state_size = int(policy.state_size)

    def forward(self, observation: Nested, *state: Tensor) -> Any:
        """Map observations, leaves `[B, *shape]`, and a state if it has one, to the outputs."""
        return self.policy(self.normalize(observation), *state)

    def replay(self, observation: Nested, state: Tensor, length: Tensor) -> Any:
        """Map segments, leaves `[T, B, *shape]`, of `length [B]` steps, to outputs `[T, B, …]`."""
        return self.policy.replay(self.normalize(observation), state, length)
