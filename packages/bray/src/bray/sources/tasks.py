"""Small Gymnasium tasks whose best return is known, for tests of what an algorithm can do.

Importing this module registers them, so `bray.sources.tasks:TwoHeads-v0` is an id wherever one is
taken.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_Observation = dict[str, np.ndarray[Any, Any]]


class TwoHeads(gymnasium.Env[_Observation, np.ndarray[Any, Any]]):  # type: ignore[misc]
    """Two choices at once, in each of 10 steps, of which some are not allowed.

    One of 4 situations is seen, with a mask of the allowed levers (of 4) and forces (of 3). A fixed
    table says what each pair is worth in each situation. The reward is that worth as a share of the
    best allowed pair's, so the best return is 10; choosing without a look at the situation or the
    mask stays well below. A choice that is not allowed ends the episode without a reward.
    """

    BEST_RETURN = 10.0
    SITUATIONS, LEVERS, FORCES = 4, 4, 3

    observation_space = spaces.Dict(
        {
            "observation": spaces.Box(0.0, 1.0, (SITUATIONS + LEVERS + FORCES,), np.float32),
            "action_mask": spaces.MultiBinary(LEVERS + FORCES),
        }
    )
    action_space = spaces.MultiDiscrete([LEVERS, FORCES])

    def __init__(self) -> None:
        shape = (self.SITUATIONS, self.LEVERS, self.FORCES)
        self.worth = np.random.default_rng(2).uniform(0.0, 1.0, shape)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[_Observation, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self._next(), {}

    def step(
        self, action: np.ndarray[Any, Any]
    ) -> tuple[_Observation, float, bool, bool, dict[str, Any]]:
        """Pull lever `action[0]` with force `action[1]`."""
        lever, force = int(action[0]), int(action[1])
        is_allowed = self.levers[lever] and self.forces[force]
        worth = self.worth[self.situation]
        best = worth[np.ix_(self.levers, self.forces)].max()
        reward = float(worth[lever, force] / best) if is_allowed else 0.0
        self.steps += 1
        return self._next(), reward, not is_allowed or self.steps >= 10, False, {}

    def _next(self) -> _Observation:
        self.situation = int(self.np_random.integers(self.SITUATIONS))
        self.levers = self._some(self.LEVERS)
        self.forces = self._some(self.FORCES)
        mask = np.concatenate([self.levers, self.forces])
        situation = np.arange(self.SITUATIONS) == self.situation
        return {
            "observation": np.concatenate([situation, mask]).astype(np.float32),
            "action_mask": mask.astype(np.int8),
        }

    def _some(self, number: int) -> np.ndarray[Any, Any]:
        """Allow each with probability 0.7, and one at least."""
        allowed: np.ndarray[Any, Any] = self.np_random.random(number) < 0.7
        allowed[self.np_random.integers(number)] = True
        return allowed


class Recall(gymnasium.Env[np.ndarray[Any, Any], int]):  # type: ignore[misc]
    """A cue of 4 is shown in the first step and must be named in the last, 6 steps later.

    Between them distractions are shown, in another place of the observation, and no action counts.
    A policy that remembers returns 1, one that sees only the present 1/4 on average.
    """

    BEST_RETURN = 1.0
    CUES, DELAY = 4, 6

    observation_space = spaces.Box(0.0, 1.0, (2 * CUES + 1,), np.float32)
    action_space = spaces.Discrete(CUES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Show the cue."""
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(self.CUES))
        self.steps = 0
        return self._shown(self.cue), {}

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        """Take the answer, if it is asked for."""
        is_asked = self.steps == self.DELAY
        reward = float(is_asked and int(action) == self.cue)
        self.steps += 1
        distraction = self.CUES + int(self.np_random.integers(self.CUES))
        return self._shown(distraction), reward, is_asked, False, {}

    def _shown(self, what: int) -> np.ndarray[Any, Any]:
        observation = np.zeros(2 * self.CUES + 1, np.float32)
        observation[what] = 1.0
        observation[-1] = self.steps == self.DELAY
        return observation


class LongCorridor(gymnasium.Env[int, int]):  # type: ignore[misc]
    """A corridor of 30 places, whose end alone has a reward, of 1; an episode has 100 steps.

    In each place one of three actions, which a fixed table names, leads on; the others lead back.
    Chance comes to the end in fewer than one of a million episodes.
    """

    BEST_RETURN = 1.0
    PLACES, ACTIONS, STEPS = 30, 3, 100

    observation_space = spaces.Discrete(PLACES)
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self) -> None:
        self.onwards = np.random.default_rng(3).integers(0, self.ACTIONS, self.PLACES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Stand at the beginning."""
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Go on or back."""
        self.steps += 1
        self.place = max(0, self.place + (1 if int(action) == self.onwards[self.place] else -1))
        is_end = self.place == self.PLACES - 1
        return self.place, float(is_end), is_end, self.steps >= self.STEPS, {}


gymnasium.register("LongCorridor-v0", LongCorridor)
gymnasium.register("TwoHeads-v0", TwoHeads)
gymnasium.register("Recall-v0", Recall)
