"""An environment for each pair of an observation and an action space, registered by name.

`combinations.every_space:Every-image-dict-v0` shows images and takes nested actions. It checks each
action, and an episode is seven steps of a reward of 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float64),
    "discrete": spaces.Discrete(5, start=2),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "image": spaces.Box(0, 255, (40, 44, 3), np.uint8),
    "channels_first": spaces.Box(0, 1, (2, 18, 20), np.float32),
    "stack": spaces.Box(0, 255, (2, 16, 16, 3), np.uint8),
    "grid": spaces.Box(0, 10, (7, 7, 3), np.uint8),
    "integers": spaces.Box(-5, 5, (2, 2), np.int16),
    "scalar": spaces.Box(-1, 1, (), np.float32),
    "pair": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
    "set": spaces.Sequence(spaces.Box(-1, 1, (3,), np.float32), seed=1),
    "nested": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (16, 16), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32))),
            "joints": spaces.Box(-np.inf, np.inf, (4,), np.float32),
        }
    ),
}
# One number of `matrix` cannot vary.
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "table": spaces.MultiDiscrete([[2, 3], [2, 2]]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-1, 2, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "matrix": spaces.Box(np.full((2, 2), -1.0), np.array([[2.0, -1.0], [2, 2]]), dtype=np.float64),
    "nested": spaces.Dict(
        {
            "force": spaces.Box(0, 1, (2,), np.float32),
            "gear": spaces.Discrete(2),
            "lamps": spaces.MultiBinary([2, 1]),
        }
    ),
    "pair": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
}
MASKED = {"discrete": 3, "multi_discrete": 5, "multi_binary": 6, "nested": 6, "pair": 5}
"""Actions that come with a mask, too → the number of its flags; their observation is `masked`."""


def name_of(observation: str, action: str) -> str:
    """Return the id of an environment."""
    return f"Every-{observation}-{action}-v0"


class Every(gymnasium.Env[Any, Any]):
    """Shows samples of a space, and refuses actions that are none."""

    def __init__(self, observation: str, action: str) -> None:
        self.action_space = ACTIONS[action]
        if observation == "masked":
            self.observation_space: Any = spaces.Dict(
                {
                    "observation": spaces.Box(-1, 1, (3,), np.float32),
                    "action_mask": spaces.MultiBinary(MASKED[action]),
                }
            )
        else:
            self.observation_space = OBSERVATIONS[observation]

    def _shown(self) -> Any:
        shown = self.observation_space.sample()
        if isinstance(shown, dict) and "action_mask" in shown:
            shown["action_mask"][:] = 1
        return shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise AssertionError(f"{action!r} is not in {self.action_space}")
        self.steps += 1
        return self._shown(), 1.0, self.steps >= 7, False, {}


for _observation in [*OBSERVATIONS, "masked"]:
    for _action in MASKED if _observation == "masked" else ACTIONS:
        if name_of(_observation, _action) not in gymnasium.registry:  # also imported as a file
            gymnasium.register(
                name_of(_observation, _action),
                entry_point=Every,
                kwargs={"observation": _observation, "action": _action},
            )
