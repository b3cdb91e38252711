"""What training sees of a step, where that differs from what the environment says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class RewardTransform(Protocol):
    """Of N environments; `bray_actor.atari.AtariRewardTransform` is one."""

    def begin(self, info: Mapping[str, Any]) -> None:
        """Take the info of the first reset."""
        ...

    def __call__(
        self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], info: Mapping[str, Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the rewards to train on `[N]`, and for whom training sees an end `[N]`.

        Args:
            reward: the environment's, `[N]`.
            ended: whose episode has ended, `[N]`.
            info: of the step.
        """
        ...
