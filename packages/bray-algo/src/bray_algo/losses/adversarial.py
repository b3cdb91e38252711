"""Adversarial imitation: a discriminator between expert and policy, and rewards made of it.

The discriminator gives a logit `[N]`: the log odds that a state and action are the expert's, so D =
σ(logit) is near 1 for the expert. (Ho and Ermon 2016 label the other way round.)
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import alike, wide
from bray_algo.validation.tensors import (
    check_floats,
    check_numbers,
    check_rank,
    check_shape,
)
from bray_algo.validation.values import check_finite


def discriminator_loss(expert_logit: Tensor, policy_logit: Tensor) -> tuple[Tensor, LossTerms]:
    """Return −E_expert[log D] − E_policy[log(1 − D)].

    Ho and Ermon 2016, "Generative adversarial imitation learning", equation 17; for AIRL pass the
    results of `airl_logit` (Fu et al. 2018, Algorithm 1).

    Args:
        expert_logit: Logits of the expert's states and actions, `[N]`.
        policy_logit: Logits of the policy's states and actions, `[M]`.

    Returns:
        The loss, and `expert_accuracy` and `policy_accuracy` (0.5 when they cannot be told apart).

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    check_rank("expert_logit", expert_logit, "N")
    check_rank("policy_logit", policy_logit, "N")
    check_finite(expert_logit=expert_logit, policy_logit=policy_logit)
    check_numbers("expert_logit", expert_logit)
    check_numbers("policy_logit", policy_logit)
    expert_logit, policy_logit = wide(expert_logit), wide(policy_logit)
    # softplus(−x) is −log σ(x), without the overflow of the exponential.
    loss = F.softplus(-expert_logit).mean() + F.softplus(policy_logit).mean()
    with torch.no_grad():
        terms = {
            "expert_accuracy": (expert_logit > 0).to(loss.dtype).mean(),
            "policy_accuracy": (policy_logit <= 0).to(loss.dtype).mean(),
        }
    return loss, terms


def gradient_penalty(discriminator: nn.Module, inputs: Tensor) -> Tensor:
    """Return the mean of |∇ logit|² at inputs `[N, …]`, to be added to the loss with a weight.

    Mescheder et al. 2018, "Which training methods for GANs do actually converge?", equation 9 (R1,
    at the expert's inputs). Without it a discriminator soon tells all apart and teaches nothing; a
    weight of 1 to 10 is usual, and a greater one leaves it blind.

    Args:
        discriminator: Network that maps inputs to logits `[N]`.
        inputs: Inputs at which the slope is measured, `[N, …]`, floats.
    """
    check_floats("inputs", inputs)
    # The slope at the inputs is wanted, so they need a gradient of their own.
    inputs = inputs.detach().requires_grad_()
    logit = discriminator(inputs)
    (gradient,) = torch.autograd.grad(logit.sum(), inputs, create_graph=True)
    return wide(gradient).flatten(1).square().sum(-1).mean()


def gail_reward(
    logit: Tensor, kind: Literal["positive", "negative", "log_odds"] = "positive"
) -> Tensor:
    """Return the reward of looking like the expert, in the shape of `logit`, without gradient.

    Ho and Ermon 2016; Kostrikov et al. 2019, "Discriminator-actor-critic", §4.1, on the bias that
    each kind has.

    Args:
        logit: Logits of the policy's states and actions, any shape.
        kind: `positive`: −log(1 − D), above 0, which favours long episodes; `negative`: log D,
            below 0, which favours short ones; `log_odds`: log D − log(1 − D), either sign.
    """
    check_numbers("logit", logit)
    logit = wide(logit).detach()
    if kind == "positive":
        return F.softplus(logit)
    if kind == "negative":
        return -F.softplus(-logit)
    if kind == "log_odds":
        return logit
    raise ValueError(f"kind: expected 'positive', 'negative' or 'log_odds', got {kind!r}")


def airl_logit(advantage: Tensor, log_prob: Tensor) -> Tensor:
    """Return the logit f − log π of AIRL's discriminator D = e^f / (e^f + π), `[N]`.

    Fu et al. 2018, "Learning robust rewards with adversarial inverse reinforcement learning", §4.
    As a reward (`gail_reward(…, "log_odds")`) it is the entropy-regularised objective; the learned
    reward alone is f, or g of `airl_advantage`.

    Args:
        advantage: f, with gradient, `[N]`; see `airl_advantage`.
        log_prob: Log probability log π of the actions under the current policy, `[N]`, a constant.
    """
    check_numbers("advantage", advantage)
    check_shape("log_prob", log_prob, advantage.shape)
    # D = e^f / (e^f + π) has the log odds f − log π.
    return wide(advantage) - wide(log_prob).detach()


def airl_advantage(
    reward: Tensor, potential: Tensor, next_potential: Tensor, discount: Tensor
) -> Tensor:
    """Return f = g(s, a) + d h(s') − h(s), `[N]`, where h takes up what shaping there is.

    Fu et al. 2018, equation 4.

    Args:
        reward: Learned reward g, `[N]`.
        potential: Potential h at the observation, `[N]`.
        next_potential: Potential h at the next observation, `[N]`; not read where the discount is
            0.
        discount: γ, or 0 where the episode terminated, `[N]`.
    """
    check_numbers("reward", reward)
    for name, column in (
        ("potential", potential),
        ("next_potential", next_potential),
        ("discount", discount),
    ):
        check_shape(name, column, reward.shape)
    columns = alike(reward, potential, next_potential, discount)
    reward, potential, next_potential, discount = columns
    return reward + discount * next_potential.masked_fill(discount == 0, 0.0) - potential
