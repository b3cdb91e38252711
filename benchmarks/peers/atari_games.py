"""Games that step in C++ threads, with their true scores: for peers that bring no vector of games.

A game goes on when a life is lost, as the standard preprocessing has it. ALE's own `episodic_life`
begins a new game there (ale-py 0.12.1), so `life_loss_info` is used.
"""

from __future__ import annotations

import numpy as np
from ale_py.vector_env import AtariVectorEnv


class Games:
    """ALE's vector of games: 84x84 grey, 4 stacked, skip 4, no-op starts, a life an episode.

    Args:
        game: ALE's name.
        num_envs: Games at a time.
        num_threads: Emulating.
        seed: Of the first game; the others follow.
    """

    def __init__(self, game: str, num_envs: int, num_threads: int, seed: int) -> None:
        self._env = AtariVectorEnv(
            game,
            num_envs,
            num_threads=num_threads,
            life_loss_info=True,
            reward_clipping=False,
            autoreset_mode="SameStep",
        )
        self._seed = seed
        self._scores = np.zeros(num_envs)
        self.num_actions = int(self._env.single_action_space.n)
        self.num_envs = num_envs

    def reset(self) -> np.ndarray:
        """Return the first observations, uint8 `[num_envs, 4, 84, 84]`."""
        observations, self._info = self._env.reset(seed=self._seed)
        return observations

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[float]]:
        """Return observations, clipped rewards, ends (of a life) and the scores of games over."""
        lives = self._info["lives"]
        observations, rewards, terminated, truncated, self._info = self._env.step(actions)
        ends = terminated | truncated
        self._scores += rewards
        # A lost life that leaves another is no end of the game; a new game has all its lives.
        over = truncated | (terminated & ~(self._info["lives"] < lives))
        scores = self._scores[over].tolist()
        self._scores[over] = 0
        return observations, np.sign(rewards).astype(np.float32), ends, scores
