"""Logits of a language model → log probabilities of the tokens that followed."""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.tensors import check_flags, check_floats, check_rank
from bray_algo.validation.values import check_action, check_logits


def token_log_prob(
    logits: Tensor, token: Tensor, mask: Tensor | None = None, *, temperature: float = 1.0
) -> Tensor:
    """Return log π(token_t | tokens before t) at position t, `[B, T]`; float32 at least.

    The logits at t − 1 predict token t. Nothing predicts the first token of a row: it gets 0, and
    belongs to no mask; nor does the first token of a sequence that is packed behind another.

    Args:
        logits: Logits of the next token after each one, `[B, T, V]`.
        token: The tokens themselves, integers `[B, T]`, 0 to V − 1.
        mask: Tokens whose log probability is wanted, bool `[B, T]`; the others get 0, and logits
            that no wanted token needs may hold anything. None is all.
        temperature: Divisor of the logits; it must be the sampler's, else the ratio is not 1 where
            nothing has changed.

    Raises:
        ValueError: shapes or types are not these, logits are NaN or +inf, a token does not exist,
            or the temperature is not positive.
    """
    check_rank("logits", logits, "B, T, V")
    check_floats("logits", logits)
    check_action("token", token, logits.shape[:2], logits.shape[2])
    check_flags("mask", mask, token.shape)
    check_positive("temperature", temperature)
    scores, wanted = logits[:, :-1], None if mask is None else mask[:, 1:]
    check_logits(wanted, logits=scores)
    if wanted is not None:
        # Filled before the logarithm: the gradient of NaN is NaN, also where it is multiplied by 0.
        scores = scores.masked_fill(~wanted[..., None], 0.0)
    scores = wide(scores) / temperature
    chosen = scores.gather(-1, token[:, 1:, None].long()).squeeze(-1) - scores.logsumexp(-1)
    chosen = chosen if wanted is None else chosen.masked_fill(~wanted, 0.0)
    return torch.nn.functional.pad(chosen, (1, 0))
