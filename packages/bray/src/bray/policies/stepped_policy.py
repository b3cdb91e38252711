"""A whole policy of yours that remembers, and says no more than how it takes one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bray_core import nested
from bray_core.nested import Nested


class SteppedPolicy(nn.Module):
    """Goes through segments step by step for a policy that has no `replay` of its own.

    A `replay` of yours that takes a segment at once is quicker.

    Args:
        policy: your policy; it maps `observation [B, …]` and `state [B, S]` to outputs, of which
            one is the next `state`.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy
        self.state_size = int(policy.state_size)

    def forward(self, observation: Nested, state: Tensor) -> Any:
        """Map observations, leaves `[B, *shape]`, and states to the outputs of one step."""
        return self.policy(observation, state)

    def replay(self, observation: Nested, state: Tensor, length: Tensor) -> Nested:
        """Map segments, leaves `[T, B, *shape]`, to outputs `[T, B, …]`.

        Those after the `length [B]` steps of a segment mean nothing.
        """
        steps = []
        for step in range(int(length.max())):
            seen = nested.map(lambda leaf, at=step: leaf[at], observation)
            outputs = dict(self.policy(seen, state))
            state = outputs.pop("state")
            steps.append(outputs)
        steps += steps[-1:] * (len(next(iter(nested.flatten(observation).values()))) - len(steps))
        return nested.map(lambda *leaves: torch.stack(leaves), *steps)
