"""Atari games as the field trains on them: the usual preprocessing, and what training sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.spaces import ATARI, import_ale, import_gymnasium, resolve
from bray_core.errors import ConfigError


def is_atari(environment: str) -> bool:
    """Return whether an id, or a short name such as `Pong`, is that of an Atari game."""
    if not environment:
        return False
    try:
        return resolve(environment).startswith(ATARI)
    except ConfigError:  # told where it is made
        return False


def make_atari(environment: str, num_envs: int, *, num_threads: int = 1) -> Any:
    """Make ALE's vector environment, which steps in C++, with the usual preprocessing.

    Each step is four frames of the game, of which the last two are joined by their maximum; the
    observation is the last four of these, grey, 84 × 84, uint8 `[4, 84, 84]`. An episode is a
    whole game, begun with up to 30 idle frames and, where the game has it, a press of fire; no
    action is repeated by chance (Mnih et al. 2015, "Human-level control through deep reinforcement
    learning", Methods). Rewards are the game's own: `AtariRewardTransform` clips them.

    Args:
        environment: Id such as `ALE/Pong-v5`, or its short name `Pong`.
        num_envs: Number of games side by side.
        num_threads: Number of threads that step them; at most one a game.

    Raises:
        ConfigError: the game is unknown, or a number is below 1.
        MissingExtraError: gymnasium or ale-py is not installed.
    """
    for name, value in (("num_envs", num_envs), ("num_threads", num_threads)):
        if value < 1:
            raise ConfigError(f"{name}: expected 1 or more, got {value}")
    gymnasium = import_gymnasium()
    import_ale()
    from ale_py.vector_env import AtariVectorEnv

    if not is_atari(environment):
        raise ConfigError(f"environment: expected a game such as ALE/Pong-v5, got {environment!r}")
    return AtariVectorEnv(
        gymnasium.spec(resolve(environment)).kwargs["game"],
        num_envs,
        num_threads=min(num_threads, num_envs),
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        reward_clipping=False,
    )


class AtariRewardTransform:
    """What training sees of a game: rewards of -1, 0 and 1, and the end of a life as an end.

    Scores are counted by the game's own rewards all the same, and the game goes on. (ALE's own
    `episodic_life` begins a new game with each life, so that a policy sees none but the first.)
    It remembers the lives of one runner's games: each runner needs its own.
    """

    def __init__(self) -> None:
        self._lives: npt.NDArray[Any] = np.zeros(0)

    def begin(self, info: Mapping[str, Any]) -> None:
        """Take the info of a reset of all games."""
        self._lives = np.array(info["lives"])

    def __call__(
        self, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_], info: Mapping[str, Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the rewards for training `[N]`, and whose life has ended `[N]`.

        Args:
            reward: Rewards of the games, `[N]`.
            ended: Which games have ended, `[N]`; they may have begun the next.
            info: Information of the step; has `lives [N]`.
        """
        lives = np.array(info["lives"])
        lost = (lives < self._lives) & ~ended
        self._lives = lives
        return np.sign(reward), lost
