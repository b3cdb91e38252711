"""A game of two choices that must agree and must not be foreseen."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

NUM_VALUES = 4
_REMEMBERED = 64


class MatchingEnv(gymnasium.Env[Any, Any]):
    """A reward of 1 where both choices agree on another value than the first took most of late.

    Choices that depend on each other may agree on any value with the same chance, which gives 3/4.
    Independent ones agree surely on one value alone, and must play it less than half of the time:
    they gain less than 1/2.
    """

    rewards: ClassVar[deque[float]] = deque(maxlen=4096)
    """The last rewards of all such environments of this process."""

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Dict({"first": Discrete(NUM_VALUES), "second": Discrete(NUM_VALUES)})
        self._played: deque[int] = deque(maxlen=_REMEMBERED)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        first, second = int(action["first"]), int(action["second"])
        often = Counter(self._played).most_common(1)
        foreseen = often[0][0] if often else -1
        reward = float(first == second != foreseen)
        self._played.append(first)
        self.rewards.append(reward)
        return np.zeros(1, np.float32), reward, False, False, {}


def timed_matching() -> gymnasium.Env[Any, Any]:
    """Return the game for processes that know no registration of this file's."""
    return gymnasium.wrappers.TimeLimit(MatchingEnv(), 32)


if "BrayTestMatching-v0" not in gymnasium.registry:
    gymnasium.register("BrayTestMatching-v0", MatchingEnv, max_episode_steps=32)
