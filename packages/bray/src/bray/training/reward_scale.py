"""The setting of algorithms that can divide rewards by how much they vary."""

from __future__ import annotations

from dataclasses import dataclass

from bray.training.device import DeviceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardScaleConfig(DeviceConfig):
    """Whether rewards are scaled; what learns from rewards adds its own settings."""

    normalize_reward: bool = False
    """Whether rewards are divided by the running deviation of their discounted sum, so that returns
    are of the order of 1: for tasks whose rewards are very large, very small or of unknown size.
    What is reported stays the simulator's return. Off where rewards are near 1 already: what the
    values mean moves while the deviation settles."""
