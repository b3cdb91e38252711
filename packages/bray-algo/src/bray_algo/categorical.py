"""The categorical distribution as functions of logits `[…, A]`.

An illegal action's logit is −inf, or what `mask` puts in: both give it probability 0, finite log
probabilities and no gradient. So KL from a distribution that allows more is great, not infinite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.columns import check_flags, check_shape
from bray_algo.validation import is_validated

_FLOOR = -1e9
"""Finite stand-in for −inf, so that gradients of illegal actions are zero, not NaN."""


def _floor(logits: Tensor) -> float:
    return max(_FLOOR, torch.finfo(logits.dtype).min / 2)  # float16 ends at -65504


def mask(logits: Tensor, legal: Tensor) -> Tensor:
    """Return logits in which actions that are not `legal` (bool, same shape) have no chance.

    Args:
        logits: `[…, A]`.
        legal: bool `[…, A]`.

    Raises:
        ValueError: the shapes differ, or a row has no legal action. Unseen, where values are not
            checked (`validation`), such a row becomes uniform.
    """
    check_flags("legal", legal, logits.shape)
    if is_validated(legal) and not bool(legal.any(-1).all()):
        raise ValueError("legal: expected one legal action or more in each row, got a row of none")
    return logits.masked_fill(~legal, _floor(logits))


def log_probs(logits: Tensor) -> Tensor:
    """Return log p of every action `[…, A]`."""
    return torch.log_softmax(logits.clamp(min=_floor(logits)), -1)


def log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Return log p of the given actions (integers `[…]`).

    Raises:
        ValueError: there is not one action for each row of logits.
    """
    check_shape("action", action, logits.shape[:-1])
    return log_probs(logits).gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor) -> Tensor:
    """Return −Σ p log p, `[…]`, in nats."""
    log_p = log_probs(logits)
    return -(log_p.exp() * log_p).sum(-1)


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) = Σ p (log p − log q), `[…]`, in nats."""
    log_p = log_probs(logits_p)
    return (log_p.exp() * (log_p - log_probs(logits_q))).sum(-1)


def sample(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…]`."""
    flat = log_probs(logits).exp().reshape(-1, logits.shape[-1])
    return torch.multinomial(flat, 1, generator=generator).reshape(logits.shape[:-1])


def mode(logits: Tensor) -> Tensor:
    """Return the most likely actions `[…]`."""
    return logits.argmax(-1)
