"""Encoders: what a network sees of an observation, be it a vector, a mask or a stack of frames."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bray.policies.heads import ActionHead
from bray.sources.environments import Spaces
from bray_algo.networks.convolutional import NatureEncoder
from bray_core.errors import ConfigError
from bray_core.nested import ArraySpec, Nested


def vector_and_mask(observation: Nested) -> tuple[Tensor, Tensor | None]:
    """Return an observation's vector as float32, and its action mask if there is one."""
    if isinstance(observation, dict):
        return observation["observation"].float(), observation["action_mask"]
    return observation.float(), None


def image_encoder(spaces: Spaces, hidden: Sequence[int]) -> NatureEncoder:
    """Return the convolutional network of Mnih et al. 2015 for stacks of frames.

    Args:
        spaces: spaces of the environment: frames of 84 × 84 pixels.
        hidden: one number, the units of the layer after the convolutions.

    Raises:
        ConfigError: the frames have another size, or there is not exactly one number.
    """
    shape = spaces.observation.shape
    if shape[1:] != (84, 84):
        raise ConfigError(
            f"environment: {spaces.environment}: expected frames of 84 × 84, got {shape}"
        )
    if len(hidden) != 1:
        raise ConfigError(f"hidden: expected one size for images, such as (512,), got {hidden}")
    return NatureEncoder(int(shape[0]), hidden[0])


def vector_size(spaces: Spaces, actions: ActionHead) -> int:
    """Return the size D of an observation's vector.

    Raises:
        ConfigError: the observation is no vector, or its mask does not fit the actions.
    """
    spec = spaces.observation
    if isinstance(spec, dict) and set(spec) == {"observation", "action_mask"}:
        if not actions.sizes or spec["action_mask"].shape != (actions.num_numbers,):
            raise ConfigError(
                f"environment: {spaces.environment}: expected action_mask of shape "
                f"({actions.num_numbers},) for discrete actions, got {spec['action_mask']}"
            )
        spec = spec["observation"]
    if not isinstance(spec, ArraySpec) or len(spec.shape) != 1:
        raise ConfigError(
            f"environment: {spaces.environment}: expected observations that are one vector, alone "
            f"or with an action_mask, got {spaces.observation}"
        )
    return int(spec.shape[0])
