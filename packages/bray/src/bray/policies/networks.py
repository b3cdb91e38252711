"""Actor-critic policies: perceptrons for vectors, the Nature CNN for images, with memory or not.

An observation is a stack of frames, uint8 `[C, 84, 84]`, or one vector `[D]`, or `{"observation":
[D], "action_mask": [A]}`, in which the mask says which actions are legal (those of several heads
one after the other). Outputs have the names that `bray_actor` decodes and
`bray_algo.distributions.outputs` reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from bray.policies.encoders import image_encoder, vector_and_mask, vector_size
from bray.policies.heads import ActionHead
from bray.sources.environments import Spaces
from bray_algo import mlp
from bray_algo.networks.initialisation import orthogonal_
from bray_algo.networks.recurrent import Recurrent
from bray_core import nested
from bray_core.nested import Nested


class VectorPolicy(nn.Module):
    """Two perceptrons side by side, for vectors: the policy and the value function share nothing.

    Args:
        spaces: spaces of the environment.
        hidden: units of each hidden layer, such as `(64, 64)`. Too few cannot represent a good
            policy; too many learn slowly and cost time with every step.
    """

    state_size = 0

    def __init__(self, spaces: Spaces, hidden: Sequence[int]) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        size = vector_size(spaces, self.actions)
        # A policy that begins nearly uniform explores (Andrychowicz et al. 2021, §3.2).
        self.policy = mlp([size, *hidden, self.actions.num_numbers], output_gain=0.01)
        self.value = mlp([size, *hidden, 1])

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[…, D]`, to the action's outputs and `value […]`."""
        x, mask = vector_and_mask(observation)
        outputs = self.actions(self.policy(x), mask)
        return {**outputs, "value": self.value(x).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """Let the policy π act by π^(1 / temperature), normalised: same mode, less certainty."""
        self.actions.soften(temperature, self.policy[-1])


class ImagePolicy(nn.Module):
    """A convolutional encoder for frames, which the heads of policy and value share.

    Args:
        spaces: spaces of the environment.
        hidden: one number, the features that the encoder makes, such as `(512,)`.
    """

    state_size = 0

    def __init__(self, spaces: Spaces, hidden: Sequence[int]) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        self.encoder = image_encoder(spaces, hidden)
        self.policy = orthogonal_(nn.Linear(hidden[-1], self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(hidden[-1], 1), 1.0)

    def forward(self, observation: Tensor) -> dict[str, Any]:
        """Map frames `[B, C, 84, 84]` to the action's outputs and `value [B]`."""
        features = self.encoder(observation)
        outputs = self.actions(self.policy(features), None)
        return {**outputs, "value": self.value(features).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """Let the policy act by π^(1 / temperature), like `VectorPolicy.soften`."""
        self.actions.soften(temperature, self.policy)


class RecurrentPolicy(nn.Module):
    """A policy that remembers: an encoder, an LSTM, and the heads of policy and value.

    Args:
        spaces: spaces of the environment.
        hidden: units of each layer of the encoder.
        memory_size: units of the LSTM. The state `[S]` that travels with a session holds twice as
            many numbers.
    """

    def __init__(self, spaces: Spaces, hidden: Sequence[int], memory_size: int) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        self.is_image = spaces.is_image
        if self.is_image:
            self.encoder: nn.Sequential = image_encoder(spaces, hidden)
        else:
            size = vector_size(spaces, self.actions)
            self.encoder = nn.Sequential(mlp([size, *hidden], output_gain=math.sqrt(2)), nn.Tanh())
        self.memory = Recurrent("lstm", hidden[-1], memory_size)  # [T, B, H] -> [T, B, M]
        self.policy = orthogonal_(nn.Linear(memory_size, self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(memory_size, 1), 1.0)

    @property
    def state_size(self) -> int:
        """Number of values S in the memory's state."""
        return self.memory.state_size

    def forward(self, observation: Nested, state: Tensor) -> dict[str, Any]:
        """Map observations, leaves `[B, D]`, and `state [B, S]` to outputs and the next `state`."""
        # One step is a sequence of length 1: [B, D] -> [1, B, D].
        outputs, state = self._run(nested.map(lambda leaf: leaf[None], observation), state, None)
        return {**nested.map(lambda leaf: leaf[0], outputs), "state": state}

    def replay(self, observation: Nested, state: Tensor, length: Tensor) -> dict[str, Any]:
        """Map segments, leaves `[T, B, D]`, of `length [B]` steps, to outputs `[T, B, …]`."""
        return self._run(observation, state, length)[0]

    def _run(
        self, observation: Nested, state: Tensor, length: Tensor | None
    ) -> tuple[dict[str, Any], Tensor]:
        x, mask = self._encoded(observation)
        features, state = self.memory(x, state, None, length)
        outputs = self.actions(self.policy(features), mask)
        return {**outputs, "value": self.value(features).squeeze(-1).float()}, state.float()

    def _encoded(self, observation: Nested) -> tuple[Tensor, Tensor | None]:
        if self.is_image:  # [T, B, C, 84, 84] -> [T, B, H]
            return self.encoder(observation.flatten(0, 1)).unflatten(0, observation.shape[:2]), None
        x, mask = vector_and_mask(observation)
        return self.encoder(x), mask


AnyPolicy: TypeAlias = VectorPolicy | ImagePolicy | RecurrentPolicy


def make_policy(spaces: Spaces, hidden: Sequence[int], memory_size: int, seed: int) -> AnyPolicy:
    """Make a policy, the same for the same seed.

    Args:
        spaces: spaces of the environment.
        hidden: units of each hidden layer; for images one number, the encoder's features.
        memory_size: units of the LSTM; 0 makes a policy without memory.
        seed: seed of the initial weights.

    Raises:
        ConfigError: no policy here takes these spaces.
    """
    with torch.random.fork_rng():  # the caller's random numbers go on as if nothing was drawn
        torch.manual_seed(seed)
        if memory_size:
            return RecurrentPolicy(spaces, hidden, memory_size)
        return ImagePolicy(spaces, hidden) if spaces.is_image else VectorPolicy(spaces, hidden)


def example_inputs(spaces: Spaces, state_size: int) -> Nested:
    """Return inputs of zeros with a batch dimension, for `Run.model`."""
    if not state_size:
        return spaces.example
    return spaces.example, np.zeros((1, state_size), np.float32)
