"""DQN's step on the default perceptron by hand, with one forward for both observations.

It is for a plain network of means, without memory, masks or rescaling, in float32 on the CPU;
`DQNTrainer` takes it there, and everything else goes through autograd. Values and gradients are the
same but for the last bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.flattening import MASK
from bray.policies.trunks import FlatNetwork
from bray.policies.values import QNetworkConfig
from bray.training.by_hand.gradient_places import GradientPlaces
from bray.training.off_policy.value_learning import ValueLoss
from bray_algo.gradients.perceptron import (
    PerceptronGradients,
    is_perceptron,
    is_trained_in_float32,
)
from bray_algo.losses import dqn
from bray_trainer.sequences import Batch


class PerceptronDQN:
    """Finds the loss of Q-learning on a batch and the gradients of a policy that `fits`.

    Args:
        module: the policy that learns.
        target: its target network, of the same class.
        optimizer: what the gradients are for; one that joins them gets them where it wants them.
    """

    def __init__(self, module: Any, target: Any, optimizer: object) -> None:
        self._module = module
        self._places = GradientPlaces(module, optimizer)
        self._q = PerceptronGradients(module.q)
        self._target_q = PerceptronGradients(target.q)

    @torch.no_grad()
    def __call__(self, batch: Batch, *, double: bool) -> ValueLoss | None:
        """Return the loss, its terms and the rows' priorities, and set every gradient.

        None, with no gradient set, where actions are masked.

        Args:
            batch: `observation, action, reward, discount, next_observation`, and maybe `weight`.
            double: whether the network that learns chooses the next action.
        """
        if isinstance(batch["observation"], dict) and MASK in batch["observation"]:
            return None
        seen, following = (self._seen(batch[n]) for n in ("observation", "next_observation"))
        numbers = self._q.forward(torch.cat([seen, following]) if double else seen)
        q, chooser = numbers[: len(seen)], numbers[len(seen) :] if double else None
        rows = batch["reward"], batch["discount"]
        aim = dqn.target(self._target_q.forward(following), *rows, next_online_q=chooser)
        action, weight = batch["action"], batch.get("weight")
        loss, terms = dqn.loss(q, action, aim, weight=weight)
        error = dqn.td_error(q, action, aim)
        # The Huber loss's gradient by a value: its error, within −1 and 1.
        slope = error.clamp(-1.0, 1.0).mul_(-1.0 / len(error))
        slope = slope if weight is None else slope * weight
        self._places.take()
        index = action.long().unsqueeze(1)
        self._q.backward(torch.zeros_like(q).scatter_(1, index, slope.unsqueeze(1)))
        return loss, terms, error.abs()

    def _seen(self, observation: Any) -> Tensor:
        vectors: Tensor = self._module.q.vectors(self._module.normalize(observation))
        return vectors


def fits(module: nn.Module, config: QNetworkConfig) -> bool:
    """Return whether `PerceptronDQN` can find the gradients of a policy."""
    q = getattr(module, "q", None)
    if not config.is_plain or config.value_rescaling or config.memory_size:
        return False
    return type(q) is FlatNetwork and is_perceptron(q) and is_trained_in_float32(module)
