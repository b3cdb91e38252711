"""The protocol of what changes rewards and ends before training sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class RewardTransform(Protocol):
    """Changes the rewards and ends of N environments, as `AtariRewardTransform` does."""

    def begin(self, info: Mapping[str, Any]) -> None:
        """Take the info of the first reset."""
        ...

    def __call__(
        self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], info: Mapping[str, Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the rewards to train on `[N]`, and for whom training sees an end `[N]`.

        Args:
            reward: Rewards of the environments, `[N]`.
            ended: Which episodes have ended, `[N]`.
            info: Information of the step.
        """
        ...
