"""Range checks of recipes' settings that are not yet declared with the fields' types."""

from __future__ import annotations

import math

from bray_core.errors import ConfigError


def positive(**fields: float) -> None:
    """Refuse numbers that are not positive.

    Raises:
        ConfigError: names the field.
    """
    for name, value in fields.items():
        if not value > 0:
            raise ConfigError(f"{name}: expected more than 0, got {value}")


def not_negative(**fields: float) -> None:
    """Refuse numbers below 0, or not finite.

    Raises:
        ConfigError: names the field.
    """
    for name, value in fields.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name}: expected 0 or more, got {value}")


def fraction(**fields: float) -> None:
    """Refuse numbers outside 0 to 1.

    Raises:
        ConfigError: names the field.
    """
    for name, value in fields.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}: expected 0 to 1, got {value}")


def even(least: int, **fields: int) -> None:
    """Refuse odd numbers, and those below the least.

    Raises:
        ConfigError: names the field.
    """
    for name, value in fields.items():
        if value < least or value % 2:
            raise ConfigError(f"{name}: expected an even number from {least}, got {value}")


def layers(**fields: tuple[int, ...]) -> None:
    """Refuse layers of no units, or none at all.

    Raises:
        ConfigError: names the field.
    """
    for name, sizes in fields.items():
        if not sizes or min(sizes) < 1:
            raise ConfigError(f"{name}: expected one or more positive sizes, got {sizes}")
