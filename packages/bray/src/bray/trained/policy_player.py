"""A policy that is asked for one action after the other, by the actor that serves it."""

from __future__ import annotations

from typing import Any

from bray.trained.decisions import described
from bray.trained.heard_model import HeardModel
from bray.trained.simulator_values import to_action, to_observation
from bray_actor import PolicyActor, PolicyConfig
from bray_core import codec
from bray_core.process.event_loop import EventLoopThread
from bray_core.protocols import ModelProtocol
from bray_core.spaces import Spaces


class PolicyPlayer:
    """Takes observations as the environment gives them. One caller at a time.

    Args:
        model: the policy.
        config: how it acts.
        spaces: what it sees and may do; None: observations and actions go as they are.
    """

    def __init__(self, model: ModelProtocol, config: PolicyConfig, spaces: Spaces | None) -> None:
        self._heard = HeardModel(model)
        self._config = config
        self._spaces = spaces
        self._loop = EventLoopThread("player")
        self._actor: PolicyActor | None = None
        self._episode = 0
        self._last_action: Any = None

    def act(self, observation: Any) -> Any:
        """Return the action for an observation.

        A policy with memory remembers what it has seen since `reset`.

        Raises:
            SpecError: the observation does not fit; names the place, what was expected and got.
        """
        actor = self._actor or self._begin()
        seen = observation
        if self._spaces is not None:
            seen = to_observation(self._spaces.observation, observation)
        body = codec.encode({"observation": seen, "reward": 0.0})
        answer = codec.decode(self._loop.run(actor.tick(body)))["action"]
        action = answer if self._spaces is None else to_action(self._spaces.action, answer)
        self._last_action = action
        return action

    @property
    def last_decision(self) -> dict[str, Any]:
        """What the network answered to the observation of the last `act`: see `described`."""
        return described(self._last_action, self._heard.outputs)

    def reset(self) -> None:
        """Begin a new episode: a policy with memory forgets."""
        self._actor = None

    def close(self) -> None:
        """Stop its thread."""
        self._loop.stop()

    def _begin(self) -> PolicyActor:
        self._episode += 1
        self._actor = PolicyActor(f"agent/{self._episode}", self._heard, self._config)
        return self._actor
