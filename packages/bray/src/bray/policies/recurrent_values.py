"""A network of action values with a memory (Kapturowski et al. 2019, R2D2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.flattening import seen_space, split_mask
from bray.policies.memory import make_memory
from bray.policies.normalisation import ObservationNorm, normalised
from bray.policies.own import OwnTrunkOverTime, is_own
from bray.policies.trunks import make_trunk
from bray.policies.values import QHead, QNetworkConfig, allowed_actions, masked, num_choices
from bray_algo.losses import dqn
from bray_core import nested
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class RecurrentDQNPolicy(nn.Module):
    """Acts ε-greedily by action values of what it sees and remembers; ε lies in the weights.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings, with a `memory_size` above 0.
    """

    epsilon: Tensor
    is_noisy = False

    def __init__(self, spaces: Spaces, config: QNetworkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.encoder = make_trunk(spaces, config, nn.ReLU)
        if is_own(config):
            self.encoder = OwnTrunkOverTime(self.encoder, seen_space(normalised(spaces, config)))
        self.memory = make_memory(self.encoder.size, config)
        self._num_actions = num_choices(spaces)
        self.head = QHead(config.memory_size, self._num_actions, 1, config)
        self.register_buffer("epsilon", torch.ones(()))

    @property
    def state_size(self) -> int:
        """Number of values S in the memory's state."""
        return self.memory.state_size

    def forward(self, observation: Nested, state: Tensor) -> dict[str, Tensor]:
        """Map observations `[B, *shape]` and `state [B, S]` to `logits`, `value` and `state`."""
        # One step is a sequence of length 1: [B, …] -> [1, B, …].
        numbers, allowed, state = self._run(
            nested.map(lambda leaf: leaf[None], observation), state, None
        )
        allowed = None if allowed is None else allowed[0]
        q = masked(numbers[0], allowed)
        logits = masked(dqn.epsilon_greedy(q, self.epsilon), allowed)
        return {"logits": logits, "value": q.amax(-1), "state": state}

    def replay(
        self, observation: Nested, state: Tensor, length: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Map segments `[T, B, *shape]` to action values, allowed actions and the last state.

        Args:
            observation: observations, of which the first `length` count.
            state: state before the first step, `[B, S]`.
            length: steps of each segment, `[B]`.
        """
        return self._run(observation, state, length)

    def _run(
        self, observation: Nested, state: Tensor, length: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        seen, mask = split_mask(self.normalize(observation), self._space)
        features, state = self.memory(self.encoder(seen), state, None, length)
        rows: Any = self.head(features.flatten(0, 1))  # [T * B, A, 1]
        numbers = rows.reshape(*features.shape[:2], self._num_actions).float()
        return numbers, allowed_actions(mask), state.float()
