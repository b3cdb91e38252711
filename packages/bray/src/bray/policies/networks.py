"""Actor-critic policies: perceptrons for vectors, a shared trunk for all else, memory or not.

An observation may have any space, with an `action_mask` that says which values of the choices are
allowed (those of several one after the other). Outputs have the names that `bray_actor` decodes and
`bray_algo.distributions.outputs` reads.
"""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from bray.policies.config import NetworkConfig
from bray.policies.first_weights import begin_policy
from bray.policies.flattening import seen_space, split_mask
from bray.policies.heads import ActionHead
from bray.policies.memory import make_memory
from bray.policies.normalisation import NormalisedPolicy, ObservationNorm, normalised
from bray.policies.own import OwnTrunk, OwnTrunkOverTime, check_policy, is_own, own_network
from bray.policies.own import check_features as _check_features
from bray.policies.stepped_policy import SteppedPolicy
from bray.policies.trunks import is_flat, make_network, make_trunk
from bray_algo.networks.initialisation import orthogonal_
from bray_core import nested
from bray_core.nested import Nested
from bray_core.spaces import Spaces


class VectorPolicy(nn.Module):
    """Two perceptrons side by side, for vectors: the policy and the value function share nothing.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
    """

    state_size = 0

    def __init__(self, spaces: Spaces, config: NetworkConfig) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.actions = ActionHead(spaces, config)
        # A policy that begins nearly uniform explores (Andrychowicz et al. 2021, §3.2).
        self.policy: Any = make_network(spaces, config, self.actions.num_numbers, output_gain=0.01)
        self.value = make_network(spaces, config, 1)

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[…, *shape]`, to the action's outputs and `value […]`."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        outputs = self.actions(self.policy(seen), mask)
        return {**outputs, "value": self.value(seen).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """Let the policy π act by π^(1 / temperature), normalised: same mode, less certainty."""
        self.actions.soften(temperature, self.policy[-1])


class SharedPolicy(nn.Module):
    """A trunk that the heads of policy and value share: for images, several leaves, and your own.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings.
        trunk: reads what is seen; has `size`.
    """

    state_size = 0

    def __init__(self, spaces: Spaces, config: NetworkConfig, trunk: Any) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.actions = ActionHead(spaces, config)
        self.encoder = trunk
        self.policy = orthogonal_(nn.Linear(trunk.size, self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(trunk.size, 1), 1.0)

    def forward(self, observation: Nested) -> dict[str, Any]:
        """Map observations, leaves `[B, *shape]`, to the action's outputs and `value [B]`."""
        seen, mask = split_mask(self.normalize(observation), self._space)
        features = self.encoder(seen)
        outputs = self.actions(self.policy(features), mask)
        return {**outputs, "value": self.value(features).squeeze(-1).float()}

    def soften(self, temperature: float) -> None:
        """Let the policy act by π^(1 / temperature), like `VectorPolicy.soften`."""
        self.actions.soften(temperature, self.policy)


class RecurrentPolicy(nn.Module):
    """A policy that remembers: a trunk, a memory, and the heads of policy and value.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings. The state `[S]` of an LSTM, which travels with a session,
            holds twice as many numbers as `memory_size`, that of a GRU as many; for `gtrxl` see
            `StepMemory`.
        trunk: reads what is seen, leaves `[T, B, *shape]`; has `size`.
    """

    def __init__(self, spaces: Spaces, config: NetworkConfig, trunk: Any) -> None:
        super().__init__()
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.actions = ActionHead(spaces, config)
        self.encoder = trunk
        size = config.memory_size
        self.memory = make_memory(trunk.size, config)  # [T, B, H] -> [T, B, M]
        self.policy = orthogonal_(nn.Linear(size, self.actions.num_numbers), 0.01)
        self.value = orthogonal_(nn.Linear(size, 1), 1.0)

    @property
    def state_size(self) -> int:
        """Number of values S in the memory's state."""
        return self.memory.state_size

    def forward(self, observation: Nested, state: Tensor) -> dict[str, Any]:
        """Map observations, leaves `[B, *shape]`, and `state [B, S]` to outputs and `state`."""
        # One step is a sequence of length 1: [B, D] -> [1, B, D].
        outputs, state = self._run(nested.map(lambda leaf: leaf[None], observation), state, None)
        return {**nested.map(lambda leaf: leaf[0], outputs), "state": state}

    def replay(self, observation: Nested, state: Tensor, length: Tensor) -> dict[str, Any]:
        """Map segments, leaves `[T, B, *shape]`, of `length [B]` steps, to outputs `[T, B, …]`."""
        return self._run(observation, state, length)[0]

    def _run(
        self, observation: Nested, state: Tensor, length: Tensor | None
    ) -> tuple[dict[str, Any], Tensor]:
        seen, mask = split_mask(self.normalize(observation), self._space)
        features, state = self.memory(self.encoder(seen), state, None, length)
        outputs = self.actions(self.policy(features), mask)
        return {**outputs, "value": self.value(features).squeeze(-1).float()}, state.float()


AnyPolicy: TypeAlias = VectorPolicy | SharedPolicy | RecurrentPolicy | NormalisedPolicy


def make_policy(spaces: Spaces, config: NetworkConfig, seed: int) -> AnyPolicy:
    """Make a policy, the same for the same seed.

    Args:
        spaces: what the policy sees and may do.
        config: the network's settings, which may name one of yours.
        seed: seed of the initial weights.

    Raises:
        ConfigError: a network of yours is none, or the trial to begin from has another policy;
            names what was expected.
    """
    with torch.random.fork_rng():  # the caller's random numbers go on as if nothing was drawn
        torch.manual_seed(seed)
        policy = _make(spaces, config)
    begin_policy(policy, config.begin_from)
    return policy


def _make(spaces: Spaces, config: NetworkConfig) -> AnyPolicy:
    if is_own(config):
        return _of_own(spaces, config)
    if config.memory_size:
        return RecurrentPolicy(spaces, config, make_trunk(spaces, config))
    if is_flat(spaces, config):
        return VectorPolicy(spaces, config)
    return SharedPolicy(spaces, config, make_trunk(spaces, config))


def _of_own(spaces: Spaces, config: NetworkConfig) -> AnyPolicy:
    """Return the policy around a trunk of yours, or your policy as it is."""
    read = normalised(spaces, config)
    network = own_network(read, config)
    if not hasattr(network, "feature_size"):
        policy: Any = check_policy(network, read, config)
        if policy.state_size and not hasattr(policy, "replay"):
            policy = SteppedPolicy(policy)
        if config.normalize_observation:
            policy = NormalisedPolicy(spaces, config, policy)
        return cast(AnyPolicy, policy)
    trunk, seen = OwnTrunk(network), seen_space(read)
    _check_features("model.network", config.network, trunk, seen)
    if config.memory_size:
        return RecurrentPolicy(spaces, config, OwnTrunkOverTime(trunk, seen))
    return SharedPolicy(spaces, config, trunk)


def example_inputs(spaces: Spaces, state_size: int) -> Nested:
    """Return inputs of zeros with a batch dimension, for `Run.model`."""
    if state_size:
        return spaces.example, np.zeros((1, state_size), np.float32)
    # A tuple is several inputs: an observation that is one is the only input.
    return (spaces.example,) if isinstance(spaces.example, tuple) else spaces.example
