"""The categorical distribution as functions of logits `[…, A]`.

An illegal action's logit is −inf, or what `mask` puts in: both give it probability 0, finite log
probabilities and no gradient. Hence KL from a distribution that allows more is great, not infinite.
Logits of half precision give results in float32 (`precision`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.switch import is_validated
from bray_algo.validation.tensors import check_flags, check_floats, check_shape
from bray_algo.validation.values import check_action, check_logits

_LEAST_LOG_P = -1e9
"""Log probability of an action without a chance: finite, so that sums and gradients stay finite."""


def mask(logits: Tensor, legal: Tensor) -> Tensor:
    """Return logits in which actions that are not `legal` (bool, same shape) have no chance.

    An illegal action gets the least number of its type, which JSON and every export can hold; legal
    ones are held above half of that, and so beat it whatever a network gives them.

    Args:
        logits: Logits of a network, floats `[…, A]`.
        legal: Legal actions, bool `[…, A]`.

    Raises:
        ValueError: the shapes differ, or a row has no legal action. Unseen, where values are not
            checked (`validation`), such a row becomes uniform.
    """
    check_floats("logits", logits)
    check_flags("legal", legal, logits.shape)
    if is_validated(legal) and not bool(legal.any(-1).all()):
        raise ValueError("legal: expected one legal action or more in each row, got a row of none")
    least = torch.finfo(logits.dtype).min
    return logits.clamp(min=least / 2).masked_fill(~legal, least)


def log_probs(logits: Tensor) -> Tensor:
    """Return log p of every action `[…, A]`, −1e9 at the least."""
    check_floats("logits", logits)
    logits = wide(logits)
    # −inf becomes finite first, so that a row of nothing else is uniform; what is far below the
    # others is held after the softmax, so that how far a row lies below 0 does not matter.
    logits = logits.clamp(min=torch.finfo(logits.dtype).min)
    return torch.log_softmax(logits, -1).clamp(min=_LEAST_LOG_P)


def log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Return log p of the given actions (integers `[…]`).

    Raises:
        ValueError: there is not one action for each row of logits, actions are no integers, or one
            is not within 0 to A − 1.
    """
    check_floats("logits", logits)
    check_action("action", action, logits.shape[:-1], logits.shape[-1])
    return _taken(log_probs(logits), action)


def entropy(logits: Tensor) -> Tensor:
    """Return −Σ p log p, `[…]`, in nats."""
    return _entropy(log_probs(logits))


def log_prob_and_entropy(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return `log_prob` and `entropy` `[…]` for little more than one of them costs."""
    check_floats("logits", logits)
    check_action("action", action, logits.shape[:-1], logits.shape[-1])
    log_p = log_probs(logits)
    return _taken(log_p, action), _entropy(log_p)


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) = Σ p (log p − log q), `[…]`, in nats.

    Raises:
        ValueError: the shapes differ.
    """
    check_floats("logits_p", logits_p)
    check_shape("logits_q", logits_q, logits_p.shape)
    log_p = log_probs(logits_p)
    return (log_p.exp() * (log_p - log_probs(logits_q))).sum(-1)


def sample(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…]`.

    Raises:
        ValueError: a row has no legal action, NaN or +inf.
    """
    check_floats("logits", logits)
    check_logits(logits=logits)
    flat = log_probs(logits).exp().reshape(-1, logits.shape[-1])
    return torch.multinomial(flat, 1, generator=generator).reshape(logits.shape[:-1])


def mode(logits: Tensor) -> Tensor:
    """Return the most likely actions `[…]`."""
    check_floats("logits", logits)
    return logits.argmax(-1)


def _taken(log_p: Tensor, action: Tensor) -> Tensor:
    return log_p.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def _entropy(log_p: Tensor) -> Tensor:
    return -(log_p.exp() * log_p).sum(-1)
