"""An environment that is made anew where it raises, or returns what no environment does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from bray_actor.environments.action_mask import MASK, lacks_mask
from bray_actor.environments.error_limit import ERROR, Renewal
from bray_actor.environments.error_words import RAISED
from bray_actor.environments.outcomes import (
    at_a_glance,
    check_observation,
    check_reset,
    check_step,
)
from bray_core.errors import SpecError


class RecoveringEnvironment(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """An environment that is made anew where it raises; its episode counts as truncated.

    What is returned is checked, too: an observation of another form than the space's, or a number
    that is not finite, counts as raised.

    The step that failed returns the observation before it and no reward; its info says what was
    raised, as `environment_error`. An environment that cannot even be made the first time raises.

    Args:
        make: Function that makes the environment.
        name: What is played, for messages.
        reports: Whether errors are counted and logged here.
        reads_masks: Whether masks of actions are read from the info: one that is told in a step,
            and was not when the environment was made, counts as raised.
    """

    reset_options: Mapping[str, Any] | None = None
    """Options that every reset has beside its own, such as those of a curriculum."""

    def __init__(
        self, make: Callable[[], Any], name: str, *, reports: bool, reads_masks: bool = False
    ) -> None:
        super().__init__(make())
        self._renewal = Renewal(make, name, reports=reports)
        self._last: Any = None
        self._is_fit = at_a_glance(self.env.observation_space)
        self._late_mask = MASK if reads_masks and lacks_mask(self.env) else None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take an action; where that fails the episode is truncated."""
        self._renewal.count_step()
        try:
            outcome: tuple[Any, float, bool, bool, dict[str, Any]] = self.env.step(action)
            check_step(outcome)
            if self._late_mask in outcome[4]:
                raise SpecError(
                    f"step: info: expected no {MASK}, as the first reset told none, got one: tell "
                    "it in reset, too, 1 for each action where all are allowed"
                )
            if not self._is_fit(outcome[0]):
                check_observation(self.env.observation_space, outcome[0], "step: observation")
            self._last = _kept(outcome[0])
        except RAISED as error:  # the boundary to code of others
            words = self._renewal.renew(self.env, self._begin, error)
            return self._last, 0.0, False, True, {ERROR: words}
        if outcome[2] or outcome[3]:  # the next reset may write into the same array
            outcome = (self._last, *outcome[1:])
        return outcome

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with another environment where that fails."""
        words = ""
        if seed is not None:
            self._renewal.seed = seed
        if self.reset_options is not None:
            options = {**self.reset_options, **(options or {})}
        while True:
            try:
                begun = self.env.reset(seed=seed, options=options)
                check_reset(self.env.observation_space, begun)
                observation, info = begun
                self._last = _kept(observation)
            except RAISED as error:  # the boundary to code of others
                words = self._renewal.renew(self.env, self._begin, error)
                seed = self._renewal.next_seed()
                continue
            return observation, ({**info, ERROR: words} if words else info)

    def _begin(self, env: Any) -> None:
        self.env = env
        if self._last is not None:  # a step may come next, where nobody resets
            env.reset(seed=self._renewal.next_seed(), options=self.reset_options)

    def close(self) -> None:
        """Close it; one that raises has been played to its end, so the log says it and no more."""
        self._renewal.close(self.env)


def _kept(observation: Any) -> Any:
    """Return an observation that stays: the next step may write into the same array, and fail."""
    if type(observation) is np.ndarray:
        return observation.copy()
    if type(observation) is dict:
        return {name: _kept(child) for name, child in observation.items()}
    return copy.deepcopy(observation)
