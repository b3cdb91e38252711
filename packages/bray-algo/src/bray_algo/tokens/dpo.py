"""DPO: learning from pairs of answers of which one was preferred, without sampling or a reward."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from bray_algo.losses.reductions import LossTerms
from bray_algo.precision import alike
from bray_algo.tokens.reductions import Count, check_divisor
from bray_algo.validation.scalars import check_positive
from bray_algo.validation.tensors import check_columns, check_rank
from bray_algo.validation.values import check_finite


def loss(
    chosen: Tensor,
    rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = 0.1,
    num_pairs: Count | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return −Σ log σ(β (log π/π_ref of the chosen − log π/π_ref of the rejected)) / `num_pairs`.

    Rafailov et al. 2023, "Direct preference optimization", equation 7.

    Args:
        chosen: Log probability of each preferred answer under the policy, `[N]`: `sequences.sums`
            of its tokens.
        rejected: The same of the other answer, `[N]`.
        reference_chosen: Log probability of the preferred answer under the reference, `[N]`, a
            constant.
        reference_rejected: The same of the other answer, `[N]`, a constant.
        beta: β, usually 0.05 to 0.5: how much it costs to leave the reference. Too large changes
            nothing; too small drives both answers far away from it.
        num_pairs: Number of pairs of the whole step, over its parts and ranks; None is N.

    Returns:
        The loss, and `accuracy` (pairs whose implicit reward is the greater for the chosen),
        `margin`, `chosen_reward` and `rejected_reward`, plain means over the pairs given.

    Raises:
        ValueError: shapes do not agree, a number is not finite, or β or `num_pairs` is not
            positive.
    """
    check_rank("chosen", chosen, "N")
    columns = {
        "rejected": rejected,
        "reference_chosen": reference_chosen,
        "reference_rejected": reference_rejected,
    }
    check_columns(chosen, **columns)
    check_finite(chosen=chosen, **columns)
    check_positive("beta", beta)
    divisor = len(chosen) if num_pairs is None else num_pairs
    check_divisor("num_pairs", divisor)
    chosen, rejected, *references = alike(chosen, *columns.values())
    good, bad = (
        beta * (x - y.detach()) for x, y in zip((chosen, rejected), references, strict=True)
    )
    total = -logsigmoid(good - bad).sum() / divisor
    good, bad = good.detach(), bad.detach()
    return total, {
        "accuracy": (good > bad).to(good.dtype).mean(),
        "margin": (good - bad).mean(),
        "chosen_reward": good.mean(),
        "rejected_reward": bad.mean(),
    }
