"""Lanes that a gamecore plays side by side: their seeds, and their shares of what is played."""

from __future__ import annotations

from typing import overload

from bray_core.errors import ConfigError

TICK_TIMEOUT_S = 900.0
"""Longer than an actor lets a tick wait for a new version or an evaluation."""


def check_numbers(seed: int, **counts: int | None) -> None:
    """Refuse what cannot be played.

    Args:
        seed: Seed of the environments.
        **counts: Numbers of lanes and games by the names of their arguments; None sets no end.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, number in counts.items():
        if number is not None and number < 1:
            raise ConfigError(f"{name}: expected 1 or more, got {number}")
    if seed < 0:
        raise ConfigError(f"seed: expected 0 or more, got {seed}")


def lane_seed(seed: int, lane: int) -> int:
    """Return the seed of a lane, which no other lane of the same run has."""
    return seed * 1_000_003 + lane


@overload
def lane_share(total: int, num_lanes: int, lane: int) -> int: ...
@overload
def lane_share(total: int | None, num_lanes: int, lane: int) -> int | None: ...


def lane_share(total: int | None, num_lanes: int, lane: int) -> int | None:
    """Return how much of a total a lane plays: as much as any other, or one more.

    None: there is no end.
    """
    return None if total is None else total // num_lanes + (lane < total % num_lanes)
