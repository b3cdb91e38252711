"""One agent's values of a PettingZoo environment as bray's arrays, its action mask among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray_actor.spaces import import_gymnasium, of_gymnasium, to_action, to_arrays
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class AgentView:
    """Turns what PettingZoo shows one agent into arrays, and arrays into its actions.

    A mask is a part of the observation, as in environments of a single agent: it is there as
    `{"observation", "action_mask"}` where the environment shows it so, or tells it in its info.

    Args:
        environment: Environment of PettingZoo.
        agent: Name of the agent.
        tells_mask: Whether the environment tells masks in its infos.

    Raises:
        ConfigError: a space has no arrays of a fixed size; says what to do instead.
    """

    def __init__(self, environment: Any, agent: str, *, tells_mask: bool) -> None:
        spaces = import_gymnasium().spaces
        from bray_actor.environments.action_mask import MASK, joined_mask, mask_size

        self._mask, self._joined_mask = MASK, joined_mask
        self._space = environment.observation_space(agent)
        self._action_space = environment.action_space(agent)
        is_choice = isinstance(self._action_space, spaces.Discrete | spaces.MultiDiscrete)
        self._shows_mask = (
            is_choice and isinstance(self._space, spaces.Dict) and MASK in self._space.spaces
        )
        self._adds_mask = tells_mask and is_choice and not self._shows_mask
        self._size = mask_size(self._action_space) if is_choice else 0
        self.spaces: Spaces = of_gymnasium(agent, self._shown_space(spaces), self._action_space)
        """What the agent sees and may do."""

    def _shown_space(self, spaces: Any) -> Any:
        if not (self._shows_mask or self._adds_mask):
            return self._space
        shown = self._space.spaces if self._shows_mask else {"observation": self._space}
        return spaces.Dict({**shown, self._mask: spaces.MultiBinary(self._size)})

    def observation(self, value: Any, info: Mapping[str, Any]) -> Nested:
        """Return an observation as arrays; None stays None.

        Args:
            value: Value of the agent's observation space.
            info: What the environment says besides, a mask perhaps.
        """
        if value is None:
            return None
        arrays = to_arrays(self._space, value)
        if self._shows_mask:
            return {**arrays, self._mask: self._joined_mask(value[self._mask], self._size)}
        if not self._adds_mask:
            return arrays
        mask = self._joined_mask(info.get(self._mask), self._size)
        return {"observation": arrays, self._mask: mask}

    def action(self, value: Nested) -> Any:
        """Return an action as the environment takes it.

        Raises:
            ConfigError: the action space does not contain it.
        """
        return to_action(self._action_space, value)


def agents_of(environment: Any) -> list[str]:
    """Return the names of all who may take part in a game of PettingZoo.

    An environment that does not say is reset, and asked who is there.
    """
    possible = getattr(environment, "possible_agents", None)
    if possible is None:
        environment.reset(seed=0)
        possible = environment.agents
    return list(possible)


def tells_masks(infos: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether an environment tells action masks in the infos of its first step."""
    return any("action_mask" in info for info in infos.values())
