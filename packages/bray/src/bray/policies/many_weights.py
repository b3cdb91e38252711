"""A policy called with the weights of many candidates at once, as evolution strategies call it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bray import registry
from bray.policies.config import TrunkConfig
from bray.policies.own import is_own
from bray_algo.distributions import outputs as distribution
from bray_algo.validation.switch import validating
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.process.raised_words import raised_words
from bray_core.spaces import Spaces


class ManyWeights:
    """Answers one observation of each candidate by the weights of that candidate.

    Args:
        module: the policy; its own parameters do not matter.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._forward = vmap(self._mode)

    def __call__(self, weights: dict[str, Tensor], observation: Nested) -> Tensor:
        """Return the most likely actions `[P, …]` for weights `[P, …]`, observations `[P, …]`."""
        # Under vmap no value can be read, and attention has its plain form alone.
        with torch.no_grad(), validating(False), sdpa_kernel(SDPBackend.MATH):
            actions: Tensor = self._forward(weights, observation)
        return actions

    def _mode(self, parameters: dict[str, Tensor], observation: Nested) -> Tensor:
        """Return a candidate's action for one observation, which it sees as a batch of one."""
        batch = nested.map(lambda leaf: leaf[None], observation)
        return distribution.mode(functional_call(self._module, parameters, (batch,)))[0]


def check_many_weights(module: nn.Module, spaces: Spaces, config: TrunkConfig) -> None:
    """Refuse a network of yours that cannot be called with many weights at once.

    Args:
        module: policy with that network in it.
        spaces: what it sees and may do.
        config: the network's settings.

    Raises:
        ConfigError: says what torch says, and the line of your file.
    """
    own = [config.network] * is_own(config)
    own += [name for name in config.encoders.values() if registry.is_own_code(name)]
    if not own:
        return
    weights = {
        name: leaf.detach().expand(2, *leaf.shape) for name, leaf in module.named_parameters()
    }
    seen = nested.map(
        lambda leaf: torch.from_numpy(leaf).expand(2, *leaf.shape[1:]), spaces.example
    )
    try:
        ManyWeights(module)(weights, seen)
    except Exception as error:
        raise ConfigError(
            f"model.network: {own[0]!r}: evolution strategies call it with the weights of many "
            f"candidates at once (torch.func.vmap), which failed: {raised_words(error)}: do not "
            "branch by numbers that it sees (torch.where chooses among them), read none with "
            "`.item()`, and change nothing in place"
        ) from error
