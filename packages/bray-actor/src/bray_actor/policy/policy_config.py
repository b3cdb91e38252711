"""How a policy acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bray_core.action_vector import ActionVector
from bray_core.settings.ranges import Fraction, NonNegativeInt, PositiveInt, check_fields
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """How a policy acts."""

    deterministic: bool = False
    """Whether to take the most likely action instead of drawing one."""
    num_actions: PositiveInt | None = None
    """Actions of a discrete space, checked against the model's logits; None takes the model's."""
    state_size: NonNegativeInt = 0
    """S of a recurrent policy: the model takes observation and `state [S]`, float32, and returns
    the next one among its outputs. 0 is none."""
    seed: int = 0
    """Seed of the draws, together with the session's name."""
    clip_reward: bool = False
    """Whether training sees rewards of -1, 0 and 1 alone; returns are the simulator's all the same.
    (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Methods.)"""
    gamma: Fraction = 0.99
    """Discount of the segments' leaf `discounted_return`, where their layout has it."""
    spaces: Mapping[str, Any] | None = None
    """What the policy sees and may do, `{observation: …, action: …}` in the words of
    `bray_core.spaces`: then an action is answered as the simulator takes it, nested and shaped.
    None answers with the array of numbers that the policy draws."""
    agents: tuple[str, ...] = ()
    """Patterns of the agents that it plays, such as `hunter_*`: a server of several policies finds
    by them who answers a session."""
    phase: str = ""
    """A label of its metrics, such as `evaluation`, that keeps them apart from those of training;
    empty is none."""
    role: str = ""
    """A label of its metrics, such as `opponent`, that keeps them apart from those of the policies
    that learn; empty is none."""

    def __post_init__(self) -> None:
        check_fields(self)

    def metric_labels(self) -> dict[str, str]:
        """Return the labels of the metrics of what it plays."""
        labels = {"phase": self.phase, "role": self.role}
        return {name: label for name, label in labels.items() if label}

    def action_vector(self) -> ActionVector | None:
        """Return what turns drawn numbers into the simulator's actions; None leaves them.

        Raises:
            ConfigError: `spaces` is no description of spaces.
        """
        if self.spaces is None:
            return None
        actions = ActionVector(Spaces.parse("policy", self.spaces).action)
        return None if actions.is_plain else actions
