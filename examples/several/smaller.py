"""Wrapper of pistonball: each piston sees a small grey picture, as a vector."""

import numpy as np
from gymnasium.spaces import Box
from pettingzoo.utils import BaseParallelWrapper

STEP = 12
"""Pixels between two that are kept."""


class SmallPicture(BaseParallelWrapper):
    """Keeps one pixel in 12 by 12, as a share of white."""

    def observation_space(self, agent):
        """Return the space of the small picture."""
        height, width, _ = self.env.observation_space(agent).shape
        size = len(range(0, height, STEP)) * len(range(0, width, STEP))
        return Box(0.0, 1.0, (size,), np.float32)

    def reset(self, seed=None, options=None):
        """Begin a game."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._small(observations), infos

    def step(self, actions):
        """Step the game."""
        observations, *rest = self.env.step(actions)
        return self._small(observations), *rest

    def _small(self, observations):
        return {agent: _vector(picture) for agent, picture in observations.items()}


def _vector(picture):
    return (picture[::STEP, ::STEP].mean(-1) / 255).astype(np.float32).reshape(-1)
