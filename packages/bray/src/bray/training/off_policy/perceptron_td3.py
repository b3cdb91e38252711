"""TD3's step on the default perceptrons by hand.

`perceptron_critics` says what it is for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bray.training.by_hand.gradient_places import GradientPlaces
from bray.training.off_policy.perceptron_critics import PerceptronCritics
from bray_algo.gradients.perceptron import PerceptronGradients
from bray_algo.losses import critics, td3
from bray_trainer.sequences import Batch

Found = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Losses by the names of their optimisers, and terms."""


class PerceptronTD3:
    """Finds TD3's losses on a batch and the gradients of policy and critics.

    Args:
        module: `policy` and `critics`.
        target: their targets by the same names.
        optimizers: an optimiser of each by name.
    """

    def __init__(self, module: Any, target: Any, optimizers: Any) -> None:
        self._policy = module["policy"]
        self._places = {n: GradientPlaces(part, optimizers[n]) for n, part in module.items()}
        self._body = PerceptronGradients(self._policy.body)
        self._critics = PerceptronCritics(module["critics"])
        self._target_body = PerceptronGradients(target["policy"].body)
        self._target_critics = PerceptronCritics(target["critics"])

    @torch.no_grad()
    def __call__(
        self, batch: Batch, *, noise: float, noise_clip: float, is_actor_step: bool
    ) -> Found:
        """Return losses and terms, and set the gradients of what has a loss.

        Args:
            batch: `observation, action, reward, discount, next_observation`.
            noise: standard deviation of the target's noise.
            noise_clip: how far it may go.
            is_actor_step: whether the policy learns, too.
        """
        seen, following = (self._seen(batch[n]) for n in ("observation", "next_observation"))
        action = td3.smoothed(
            torch.tanh(self._target_body.forward(following)), noise=noise, noise_clip=noise_clip
        )
        next_q = self._target_critics.judge(following, action)
        aim = td3.target(next_q, batch["reward"], batch["discount"])
        q = self._critics.judge(seen, self._policy.bounds.unit(batch["action"]))
        loss, terms = critics.critic_loss(q, aim)
        self._places["critics"].take()
        self._critics.backward((q - aim) * (2 / len(seen)))
        if not is_actor_step:
            return {"critics": loss}, terms
        policy_loss, policy_terms = self._follow(seen)
        return {"critics": loss, "policy": policy_loss}, {**policy_terms, **terms}

    def _follow(self, seen: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the policy's loss and terms, and set its gradients."""
        action = torch.tanh(self._body.forward(seen))
        value = self._critics.judge_by_first(seen, action)
        found = td3.actor_loss(value)
        self._places["policy"].take()
        slopes = torch.full_like(value, -1 / len(seen)).unsqueeze(0)
        of_action = self._critics.of_action(slopes, action.shape[-1])
        self._body.backward(of_action * (1 - action.square()))
        return found

    def _seen(self, observation: Any) -> Tensor:
        vectors: Tensor = self._policy.body.vectors(self._policy.seen(observation))
        return vectors
