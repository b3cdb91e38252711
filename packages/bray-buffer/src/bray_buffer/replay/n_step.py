"""Returns over n steps within one segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def n_step(
    reward: npt.NDArray[Any], terminated: npt.NDArray[np.bool_], n: int, gamma: float
) -> tuple[Floats, Floats]:
    """Return the n-step returns `[T]` and the discounts `[T]` of what follows them.

    With k = min(n, steps left in the segment), the return of step t is the sum over j < k of
    `gamma**j * reward[t + j]` up to the step that terminates, and the discount of the observation
    k steps later is `gamma**k`, or 0 if one of the k steps terminated (Sutton & Barto 2018,
    eq. 7.1; Hessel et al. 2018, "Rainbow").

    The sums are made in float64, whatever the rewards are, and a reward counts only while the
    episode goes on: NaN after its end is not seen.

    Args:
        reward: Numbers or flags `[T]`.
        terminated: Whether the episode ended with the step, `[T]`.
        n: Number of rewards that are summed, 1 or more.
        gamma: Discount per step.
    """
    goes_on = (1.0 - terminated).astype(np.float64)
    steps = len(reward)
    reward = reward.astype(np.float64)
    returns = reward.copy()
    alive = goes_on.copy()  # whether none of the steps so far terminated
    discounts: Floats = np.multiply(alive, gamma)
    # Step by step ahead for all t at once; near the end fewer steps are left.
    for ahead in range(1, min(n, steps)):
        left = steps - ahead
        returns[:left] += gamma**ahead * np.where(alive[:left], reward[ahead:], 0.0)
        alive[:left] *= goes_on[ahead:]
        discounts[:left] = gamma ** (ahead + 1) * alive[:left]
    return returns, discounts
