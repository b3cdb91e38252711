"""Policies of the recipes: perceptrons, and of images the Nature CNN, with memory if wanted.

An observation is a stack of frames, uint8 `[C, 84, 84]`, or one vector `[D]`, or `{"observation":
[D], "action_mask": [A]}`, in which the mask says which actions are legal (of several heads one
after the other). Outputs are named as `bray_actor` decodes them and
`bray_algo.distributions.outputs` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces as kinds
from torch import Tensor, nn

from bray.sources.environments import Spaces
from bray_algo import mlp
from bray_algo.distributions import categorical, multi_categorical
from bray_algo.networks.feedforward import NatureEncoder, orthogonal_
from bray_algo.networks.recurrent import Recurrent
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import ArraySpec, Nested


class ActionHead(nn.Module):
    """Turns a last layer's numbers into an action distribution's parameters.

    Discrete actions have `logits [A]`, MultiDiscrete a list of `logits [A_k]`, a Box of one
    dimension `mean [D]` and `log_std [D]`, which is the same for all observations.

    Raises:
        ConfigError: another space.
    """

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        space = spaces.action_space
        self.sizes: list[int] = []
        self.is_one = isinstance(space, kinds.Discrete)
        if isinstance(space, kinds.Discrete):
            self.sizes = [int(space.n)]
        elif isinstance(space, kinds.MultiDiscrete) and len(space.shape) == 1:
            self.sizes = space.nvec.tolist()
        elif isinstance(space, kinds.Box) and len(space.shape) == 1 and space.dtype.kind == "f":
            self.log_std = nn.Parameter(torch.zeros(space.shape))
        else:
            raise ConfigError(
                f"environment: {spaces.environment}: expected Discrete actions, or MultiDiscrete "
                f"or a Box of one dimension, got {space}"
            )
        self.num_numbers = sum(self.sizes) or int(spaces.action.shape[0])

    def forward(self, numbers: Tensor, mask: Tensor | None) -> dict[str, Any]:
        """Map numbers `[…, num_numbers]` and a mask of that shape to the outputs."""
        if not self.sizes:
            return {"mean": numbers.float(), "log_std": self.log_std.expand_as(numbers)}
        numbers = numbers.float()  # probabilities want more digits than bfloat16 has
        if mask is not None:
            mask = mask.bool()  # that of padding has no legal action: there any will do
            numbers = categorical.mask(numbers, mask | ~mask.any(-1, keepdim=True))
        if self.is_one:
            return {"logits": numbers}
        return {"logits": multi_categorical.split(numbers, self.sizes)}

    @torch.no_grad()
    def soften(self, temperature: float, last: Any) -> None:
        """Let what they follow act less surely; `last` is the layer that makes the numbers."""
        if self.sizes:
            last.weight.div_(temperature)
            last.bias.div_(temperature)
        else:  # of a Gaussian the variance grows by it
            self.log_std.add_(math.log(temperature) / 2)


class VectorPolicy(nn.Module):
    """Two perceptrons side by side: the policy and the value function."""

    state_size = 0

    def __init__(self, spaces: Spaces, hidden: Sequence[int]) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        size = _checked_size(spaces, self.actions)
        # A policy that begins nearly uniform explores (Andrychowicz et al. 2021, §3.2).
        self.policy = mlp([size, *hidden, self.actions.num_numbers], output_gain=0.01)
        self.value = mlp([size, *hidden, 1])

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[…, D]`, to the action's outputs and `value […]`."""
        x, mask = _parts(observation)
        outputs = self.actions(self.policy(x), mask)
        return {**outputs, "value": self.value(x).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """Let the policy π act by π^(1 / temperature), normalised: the same mode, less surely."""
        self.actions.soften(temperature, self.policy[-1])


class ImagePolicy(nn.Module):
    """A convolutional encoder, and the heads of policy and value."""

    state_size = 0

    def __init__(self, spaces: Spaces, hidden: Sequence[int]) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        self.encoder = _image_encoder(spaces, hidden)
        self.policy = orthogonal_(nn.Linear(hidden[-1], self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(hidden[-1], 1), 1.0)

    def forward(self, observation: Tensor) -> dict[str, Any]:
        """Map frames `[B, C, 84, 84]` to the action's outputs and `value [B]`."""
        features = self.encoder(observation)
        outputs = self.actions(self.policy(features), None)
        return {**outputs, "value": self.value(features).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """As `Policy.soften`."""
        self.actions.soften(temperature, self.policy)


class RecurrentPolicy(nn.Module):
    """A perceptron or a convolutional encoder, an LSTM, and the heads of policy and value."""

    def __init__(self, spaces: Spaces, hidden: Sequence[int], memory_size: int) -> None:
        super().__init__()
        self.actions = ActionHead(spaces)
        self.is_image = spaces.is_image
        if self.is_image:
            self.encoder: nn.Sequential = _image_encoder(spaces, hidden)
        else:
            size = _checked_size(spaces, self.actions)
            self.encoder = nn.Sequential(mlp([size, *hidden], output_gain=math.sqrt(2)), nn.Tanh())
        self.memory = Recurrent("lstm", hidden[-1], memory_size)
        self.policy = orthogonal_(nn.Linear(memory_size, self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(memory_size, 1), 1.0)

    @property
    def state_size(self) -> int:
        """S."""
        return self.memory.state_size

    def forward(self, observation: Nested, state: Tensor) -> dict[str, Any]:
        """Map observations, leaves `[B, D]`, and `state [B, S]` to outputs and the next `state`."""
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
        x, mask = _parts(observation)
        return self.encoder(x), mask


AnyPolicy: TypeAlias = VectorPolicy | ImagePolicy | RecurrentPolicy


def make_policy(spaces: Spaces, hidden: Sequence[int], memory_size: int, seed: int) -> AnyPolicy:
    """Make a policy, the same for the same seed.

    Args:
        spaces: of the environment.
        hidden: units of each hidden layer; of images, the encoder's features alone.
        memory_size: units of the LSTM; 0 makes a policy without memory.
        seed: of the weights.

    Raises:
        ConfigError: spaces that no policy here is for.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if memory_size:
            return RecurrentPolicy(spaces, hidden, memory_size)
        return ImagePolicy(spaces, hidden) if spaces.is_image else VectorPolicy(spaces, hidden)


def example_inputs(spaces: Spaces, state_size: int) -> Nested:
    """Return inputs of zeros with a batch dimension, as `run.model` takes them."""
    if not state_size:
        return spaces.example
    return spaces.example, np.zeros((1, state_size), np.float32)


def _parts(observation: Nested) -> tuple[Tensor, Tensor | None]:
    """Return the vector as float32 and the mask, if there is one."""
    if isinstance(observation, dict):
        return observation["observation"].float(), observation["action_mask"]
    return observation.float(), None


def _image_encoder(spaces: Spaces, hidden: Sequence[int]) -> NatureEncoder:
    shape = spaces.observation.shape
    if shape[1:] != (84, 84):
        raise ConfigError(
            f"environment: {spaces.environment}: expected frames of 84 × 84, got {shape}"
        )
    if len(hidden) != 1:
        raise ConfigError(f"hidden: expected one size for images, such as (512,), got {hidden}")
    return NatureEncoder(int(shape[0]), hidden[0])


def _checked_size(spaces: Spaces, actions: ActionHead) -> int:
    """Return D of the observation's vector."""
    spec = spaces.observation
    if isinstance(spec, dict) and set(spec) == {"observation", "action_mask"}:
        if not actions.sizes or spec["action_mask"].shape != (actions.num_numbers,):
            raise ConfigError(
                f"environment: {spaces.environment}: expected action_mask of shape "
                f"({actions.num_numbers},) for discrete actions, got {spec['action_mask']}"
            )
        spec = spec["observation"]
    if not isinstance(spec, ArraySpec) or len(spec.shape) != 1:
        raise ConfigError(
            f"environment: {spaces.environment}: expected observations that are one vector, alone "
            f"or with an action_mask, got {spaces.observation}"
        )
    return int(spec.shape[0])
