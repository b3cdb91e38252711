"""Log probability and entropy with their gradients by hand, for one step of a small policy.

Each function returns both columns `[N]`, and what maps their gradients to those of its parameters.
Values are those of `categorical`, `multi_categorical` and `gaussian`, for parameters that are
finite; nothing is checked but actions of choices. Parameters come without a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bray_algo.distributions import gaussian, squashed_gaussian
from bray_algo.validation.tensors import check_integers, check_shape
from bray_algo.validation.values import check_index

Backward = Callable[[Tensor, float], Tensor]
"""Maps the gradient of log probabilities `[N]`, and that of every entropy, to a parameter's."""


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Backward]:
    """Return log p and entropy of logits `[N, A]` at actions, integers `[N]`."""
    check_shape("action", action, logits.shape[:-1])
    check_integers("action", action)
    index = action.long().unsqueeze(-1)
    log_p = torch.log_softmax(logits, -1)
    try:
        taken = log_p.gather(-1, index).squeeze(-1)
    except RuntimeError:  # torch looks at the range anyway; this says it in our words
        check_index("action", action, logits.shape[-1])
        raise
    p = log_p.exp()
    entropy = (p * log_p).sum(-1).neg_()

    def backward(of_log_prob: Tensor, of_entropy: float) -> Tensor:
        # d log p_a / dz = onehot(a) − p, and dH / dz = −p (log p + H).
        column = of_log_prob.unsqueeze(-1)
        if of_entropy:
            per_row = (log_p + entropy.unsqueeze(-1)).mul_(of_entropy).add_(column)
        else:
            per_row = column
        return (p * per_row).neg_().scatter_add_(-1, index, column)

    return taken, entropy, backward


def categoricals(
    logits: Tensor, sizes: Sequence[int], action: Tensor
) -> tuple[Tensor, Tensor, Backward]:
    """Return log p and entropy of K independent choices.

    Args:
        logits: those of all choices side by side, `[N, ΣA_k]`.
        sizes: values A_k of each choice.
        action: integers `[N, K]`.
    """
    parts = [
        categorical(part, action[:, k])
        for k, part in enumerate(torch.split(logits, list(sizes), -1))
    ]

    def backward(of_log_prob: Tensor, of_entropy: float) -> Tensor:
        return torch.cat([part(of_log_prob, of_entropy) for _, _, part in parts], -1)

    log_probs, entropies, _ = zip(*parts, strict=True)
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0), backward


def reals(
    mean: Tensor, log_std: Tensor, action: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor, float], tuple[Tensor, Tensor]]]:
    """Return log density and entropy of a diagonal Gaussian, means `[N, D]`, at actions `[N, D]`.

    The gradients are those of the means `[N, D]` and of `log_std [D]`, which all rows share.
    """
    held = gaussian.held(mean, log_std)[0]
    inverse = torch.exp(-held)
    z = (action - mean) * inverse
    half = z.square() * -0.5
    constants = (held + 0.5 * math.log(2 * math.pi)).sum()
    entropy = (constants + 0.5 * held.shape[0]).expand(mean.shape[0])

    def backward(of_log_prob: Tensor, of_entropy: float) -> tuple[Tensor, Tensor]:
        column = of_log_prob.unsqueeze(-1)
        of_std = (column * (-2 * half - 1)).sum(0) + of_entropy * mean.shape[0]
        # A deviation that is held at its bound has no gradient.
        return column * z * inverse, of_std * (held == log_std)

    return half.sum(-1) - constants, entropy, backward


def squashed(
    mean: Tensor, log_std: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Draw actions `[N, D]` of a Gaussian squashed by tanh, with their log density `[N]`.

    The draws are those of `squashed_gaussian.sample_with_log_prob`. Last comes what maps the
    gradients of the actions `[N, D]` and of every log density, one number, to those of `mean` and
    `log_std` before the squashing, `[N, D]` each, of which the density's noise is a constant.
    """
    noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device)
    held = gaussian.held(mean, log_std)
    moved = held.exp().mul_(noise)
    before = mean + moved
    action = torch.tanh(before)
    density = -0.5 * noise.square() - held - 0.5 * math.log(2 * math.pi)
    log_prob = (density - squashed_gaussian.log_slope(before)).sum(-1)

    def backward(of_action: Tensor, of_log_prob: Tensor) -> tuple[Tensor, Tensor]:
        # log(1 − tanh² u) falls by 2 tanh u.
        of_before = of_action * (1 - action.square()) + (2 * of_log_prob) * action
        of_log_std = (of_before * moved - of_log_prob) * (held == log_std)
        return of_before, of_log_std

    return action, log_prob, backward
