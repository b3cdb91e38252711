"""The product of K independent categoricals, as functions of K logits `[…, A_k]`.

Actions are integers `[…, K]`, one column for each part. Some games have parts that mean nothing
beside others (a direction when the unit stands still). `active`, bool `[…, K]`, leaves these out of
log probabilities, entropy and divergence, so that nothing is learned from noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.validation.tensors import check_flags, check_floats, check_shape, check_tensor


def split(logits: Tensor, num_actions: Sequence[int]) -> list[Tensor]:
    """Cut one layer's output `[…, ΣA_k]` into K logits `[…, A_k]`.

    Raises:
        ValueError: the numbers do not add up to the last axis.
    """
    check_floats("logits", logits)
    if sum(num_actions) != logits.shape[-1] or min(num_actions, default=0) < 1:
        raise ValueError(
            f"num_actions: expected positive numbers that add up to {logits.shape[-1]}, "
            f"got {list(num_actions)}"
        )
    return list(torch.split(logits, list(num_actions), -1))


def mask(logits: Sequence[Tensor], legal: Sequence[Tensor]) -> list[Tensor]:
    """Return logits in which actions that are not `legal` (K bool `[…, A_k]`) have no chance.

    Raises:
        ValueError: not K masks, shapes differ, or a row has no legal action.
    """
    _check_parts("legal", legal, logits)
    return [categorical.mask(*part) for part in zip(logits, legal, strict=True)]


def log_prob(logits: Sequence[Tensor], action: Tensor, active: Tensor | None = None) -> Tensor:
    """Return log p of actions (integers `[…, K]`): Σ_k log p_k, `[…]`.

    Raises:
        ValueError: shapes do not agree; every function of this file refuses that.
    """
    _check_columns("action", action, logits)
    parts = [categorical.log_prob(part, action[..., k]) for k, part in enumerate(logits)]
    return _sum(parts, logits, active)


def entropy(logits: Sequence[Tensor], active: Tensor | None = None) -> Tensor:
    """Return the joint entropy Σ_k H_k, `[…]`, in nats."""
    return _sum([categorical.entropy(part) for part in logits], logits, active)


def kl(
    logits_p: Sequence[Tensor], logits_q: Sequence[Tensor], active: Tensor | None = None
) -> Tensor:
    """Return KL(p ‖ q) = Σ_k KL(p_k ‖ q_k), `[…]`, in nats."""
    _check_parts("logits_q", logits_q, logits_p)
    # Independent parts: log probabilities, entropies and divergences are sums.
    pairs = zip(logits_p, logits_q, strict=True)
    return _sum([categorical.kl(p, q) for p, q in pairs], logits_p, active)


def sample(logits: Sequence[Tensor], generator: torch.Generator | None = None) -> Tensor:
    """Draw actions `[…, K]`."""
    return torch.stack([categorical.sample(part, generator) for part in logits], -1)


def mode(logits: Sequence[Tensor]) -> Tensor:
    """Return the most likely actions `[…, K]`."""
    return torch.stack([categorical.mode(part) for part in logits], -1)


def _sum(parts: Sequence[Tensor], logits: Sequence[Tensor], active: Tensor | None) -> Tensor:
    total = torch.stack(list(parts), -1)
    if active is None:
        return total.sum(-1)
    check_flags("active", active, total.shape)
    return total.masked_fill(~active, 0.0).sum(-1)


def _check_parts(name: str, parts: Sequence[Tensor], like: Sequence[Tensor]) -> None:
    for k, part in enumerate([*like, *parts]):
        check_tensor(f"{name}[{k % max(len(like), 1)}]", part)
    shapes, wanted = [tuple(p.shape) for p in parts], [tuple(p.shape) for p in like]
    if shapes != wanted:
        raise ValueError(f"{name}: expected shapes {wanted}, got {shapes}")


def _check_columns(name: str, columns: Tensor, logits: Sequence[Tensor]) -> None:
    if not len(logits):
        raise ValueError("logits: expected one part or more, got none")
    for k, part in enumerate(logits):
        check_floats(f"logits[{k}]", part)
    check_shape(name, columns, (*logits[0].shape[:-1], len(logits)))
