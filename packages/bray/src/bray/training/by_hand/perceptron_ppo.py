"""PPO's step on the default perceptrons by hand: some times as quick as through autograd.

It is for `VectorPolicy` with choices or with Gaussian reals, without a mask, in float32 on the CPU;
`PPOTrainer` takes it there without a word, and everything else goes through autograd. Values and
gradients are the same but for the last bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.flattening import MASK
from bray.policies.networks import VectorPolicy
from bray.policies.trunks import FlatNetwork
from bray.training.by_hand.gradient_places import GradientPlaces
from bray_algo.gradients import heads
from bray_algo.gradients.perceptron import (
    PerceptronGradients,
    is_perceptron,
    is_trained_in_float32,
)
from bray_algo.gradients.ppo import PPOGradients, loss_and_gradients
from bray_core.nested import Nested
from bray_trainer.sequences import Batch


class PerceptronPPO:
    """Finds PPO's loss on a minibatch and the gradients of a policy that `fits`.

    Args:
        module: the policy.
        optimizer: what the gradients are for; one that joins them gets them where it wants them.
    """

    def __init__(self, module: VectorPolicy, optimizer: object) -> None:
        self._module: Any = module
        self._places = GradientPlaces(module, optimizer)
        policy: Any = module.policy
        value: Any = module.value
        self._policy, self._value = PerceptronGradients(policy), PerceptronGradients(value)

    @torch.no_grad()
    def __call__(self, batch: Batch, **settings: Any) -> tuple[Tensor, PPOGradients] | None:
        """Return the log probabilities `[N]` and the loss, and set every gradient.

        None, with no gradient set, where actions are masked or a number may not be finite.

        Args:
            batch: `observation, action, log_prob, advantage, return` of N steps, advantages
                normalised.
            settings: `clip`, `value_coefficient`, `entropy_coefficient`.
        """
        observation = batch["observation"]
        if isinstance(observation, dict) and MASK in observation:
            return None
        seen = self._seen(observation)
        numbers, value = self._policy.forward(seen), self._value.forward(seen).squeeze(-1)
        log_prob, entropy, backward = self._actions(numbers, batch["action"])
        found = loss_and_gradients(
            log_prob,
            entropy,
            value,
            batch["log_prob"],
            batch["advantage"],
            batch["return"],
            **settings,
        )
        if found.is_suspect:
            return None
        self._places.take()
        of_numbers = backward(found.log_prob, found.entropy)
        if isinstance(of_numbers, tuple):
            of_numbers, of_std = of_numbers
            self._module.actions.log_std.grad.copy_(of_std)
        self._policy.backward(of_numbers)
        self._value.backward(found.value.unsqueeze(-1))
        return log_prob, found

    def _seen(self, observation: Nested) -> Tensor:
        vectors: Tensor = self._module.policy.vectors(self._module.normalize(observation))
        return vectors

    def _actions(self, numbers: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Any]:
        head = self._module.actions
        if head.is_one:
            return heads.categorical(numbers, action)
        if head.num_reals:
            return heads.reals(numbers, head.log_std.detach(), action)
        return heads.categoricals(numbers, head.sizes, action)


def fits(module: nn.Module) -> bool:
    """Return whether `PerceptronPPO` can find the gradients of a policy."""
    if type(module) is not VectorPolicy:
        return False
    networks: tuple[Any, ...] = (module.policy, module.value)
    head = module.actions
    if not all(type(one) is FlatNetwork and is_perceptron(one) for one in networks):
        return False
    is_usual = head.conditional is None and not head.is_bounded
    is_one_kind = not (head.sizes and head.num_reals)
    return is_usual and is_one_kind and is_trained_in_float32(module)
