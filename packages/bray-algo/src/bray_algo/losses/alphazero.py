"""AlphaZero's loss: a network learns the visits of its own search, and how games ended.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play". The games come from `search.alphazero.SelfPlay`. Shapes: N positions, A actions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.losses.ppo import value_error
from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import wide
from bray_algo.validation.scalars import check_not_negative
from bray_algo.validation.tensors import check_floats, check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_finite, check_logits, check_within


def loss(
    logits: Tensor,
    value: Tensor,
    policy: Tensor,
    outcome: Tensor,
    *,
    value_coefficient: float = 1.0,
) -> tuple[Tensor, LossTerms]:
    """Return (z − v)² − πᵀ log p, the paper's equation 1; its ‖θ‖² is the optimiser's decay.

    Args:
        logits: Logits of the network, `[N, A]`; illegal actions may have −inf or any number, as π
            is 0 there.
        value: Value v by the network, −1 to 1, `[N]`.
        policy: Visits π of the search as probabilities, `[N, A]`, a constant.
        outcome: How the game ended, z, −1 to 1, `[N]`, a constant.
        value_coefficient: Weight of the squared error, usually 0.25 to 1. Too large overfits the
            few outcomes there are, as all positions of a game share one.

    Returns:
        The loss, and `policy_loss` (the cross entropy), `value_loss`, `entropy` of π and `kl` of
        the network's policy from π, `policy_loss − entropy`.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("logits", logits, "N, A")
    check_floats("logits", logits)
    check_shape("policy", policy, logits.shape)
    check_shape("value", value, logits.shape[:1])
    check_logits(logits=logits)
    check_numbers("outcome", outcome)
    check_finite(policy=policy, outcome=outcome)
    check_numbers("policy", policy)
    check_within(0.0, math.inf, policy=policy)
    check_not_negative("value_coefficient", value_coefficient)
    policy = wide(policy).detach()
    policy_loss = -(policy * categorical.log_probs(logits)).sum(-1).mean()
    value_loss = value_error(value, outcome)
    # Subtracted in `kl`: what cross entropy is left when the network equals the search.
    entropy = torch.special.entr(policy).sum(-1).mean()
    terms = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy,
        "kl": policy_loss.detach() - entropy,
    }
    return policy_loss + value_coefficient * value_loss, terms
