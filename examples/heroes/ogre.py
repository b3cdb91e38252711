"""The ogre of the heroes' game as a script of Python: the template `ogre.yaml` names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LEFT, STAY, RIGHT, STRIKE = range(4)
NEAR = 3 / 9
"""One and a half times the distance of two places, as observations tell it."""


def strike(observation: npt.NDArray[np.float32], generator: np.random.Generator) -> Any:
    """Go to the nearest hero that lives, and strike it where it is near enough.

    Args:
        observation: Place and health of the ogre, of the sword and of the bow.
        generator: Source of draws, which the ogre has no need of.
    """
    own, *others = observation.reshape(3, 2)
    standing = [place - own[0] for place, health in others if health > 0]
    if not standing:
        return STAY
    way = min(standing, key=abs)
    if abs(way) <= NEAR:
        return STRIKE
    return RIGHT if way > 0 else LEFT
