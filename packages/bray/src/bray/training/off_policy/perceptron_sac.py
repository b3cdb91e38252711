"""SAC's step on the default perceptrons by hand, with one forward of the policy.

`perceptron_critics` says what it is for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bray.policies.continuous import LOG_STD
from bray.training.by_hand.gradient_places import GradientPlaces
from bray.training.off_policy.perceptron_critics import PerceptronCritics, slopes_of_lowest
from bray_algo.gradients import heads
from bray_algo.gradients.perceptron import PerceptronGradients
from bray_algo.losses import sac
from bray_trainer.sequences import Batch

Found = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Losses by the names of their optimisers, and terms."""


class PerceptronSAC:
    """Finds SAC's losses on a batch and the gradients of all that is trained.

    Args:
        module: `policy`, `critics` and `temperature`.
        target: the target critics.
        optimizers: an optimiser of each by name.
    """

    def __init__(self, module: Any, target: Any, optimizers: Any) -> None:
        self._policy = module["policy"]
        self._log_alpha = module["temperature"].log_alpha
        self._places = [GradientPlaces(part, optimizers[name]) for name, part in module.items()]
        self._body = PerceptronGradients(self._policy.body)
        # Two, as each keeps what it last judged: actions taken, and those of the policy.
        self._taken, self._drawn = (PerceptronCritics(module["critics"]) for _ in range(2))
        self._target = PerceptronCritics(target)

    @torch.no_grad()
    def __call__(self, batch: Batch, *, target_entropy: float) -> Found:
        """Return losses and terms, and set every gradient.

        Args:
            batch: `observation, action, reward, discount, next_observation`.
            target_entropy: entropy that the temperature aims at.
        """
        policy, alpha = self._policy, self._log_alpha.exp()
        seen, following = (self._seen(batch[n]) for n in ("observation", "next_observation"))
        count = len(seen)
        mean, raw = self._body.forward(torch.cat([seen, following])).chunk(2, -1)
        log_std = raw.clamp(*LOG_STD)
        next_action, next_log_prob, _ = heads.squashed(mean[count:], log_std[count:])
        aim = sac.target(
            self._target.judge(following, next_action),
            next_log_prob,
            batch["reward"],
            batch["discount"],
            alpha=alpha,
        )
        q = self._taken.judge(seen, policy.bounds.unit(batch["action"]))
        critic_loss, terms = sac.critic_loss(q, aim)
        action, log_prob, backward = heads.squashed(mean[:count], log_std[:count])
        value = self._drawn.judge(seen, action)
        policy_loss, policy_terms = sac.actor_loss(value, log_prob, alpha=alpha)
        temperature_loss, temperature_terms = sac.temperature_loss(
            self._log_alpha, log_prob, target_entropy=target_entropy
        )
        for places in self._places:
            places.take()
        self._taken.backward((q - aim) / count)
        of_action = self._drawn.of_action(slopes_of_lowest(value) / -count, action.shape[-1])
        of_mean, of_log_std = backward(of_action, alpha / count)
        of_log_std.mul_(raw[:count] == log_std[:count])  # none where it is held at its bound
        self._body.backward(torch.cat([of_mean, of_log_std], -1))
        self._log_alpha.grad.copy_(temperature_loss)  # it is α times what does not depend on α
        losses = {"policy": policy_loss, "critics": critic_loss, "temperature": temperature_loss}
        return losses, {**policy_terms, **terms, **temperature_terms}

    def _seen(self, observation: Any) -> Tensor:
        vectors: Tensor = self._policy.body.vectors(self._policy.seen(observation))
        return vectors
