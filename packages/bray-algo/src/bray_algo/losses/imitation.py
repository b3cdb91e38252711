"""Losses towards a teacher, and reinforcement learning mixed with them or with `cloning`'s.

A weight that changes in training is a function of the step: `schedules`.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from bray_algo.distributions import categorical
from bray_algo.losses.reductions import LossTerms, masked, masked_mean
from bray_algo.validation.scalars import check_not_negative
from bray_algo.validation.tensors import check_flags, check_floats, check_shape
from bray_algo.validation.values import check_finite, check_logits


def teacher_loss(
    logits: Tensor,
    teacher_logits: Tensor,
    *,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    valid: Tensor | None = None,
) -> tuple[Tensor, LossTerms]:
    """Return the mean KL between a categorical policy and its teacher, in nats.

    `teacher_student`, KL(teacher ‖ π), covers all that the teacher does: Schmitt et al. 2018,
    "Kickstarting deep reinforcement learning" (a cross entropy there: less the teacher's entropy,
    the gradient is the same). `student_teacher`, KL(π ‖ teacher), keeps to what the teacher might
    do: Rusu et al. 2016, "Policy distillation". For another distribution take the mean of its own
    `kl`.

    Args:
        logits: Logits of the policy, `[…, A]`.
        teacher_logits: Logits of the teacher, `[…, A]`, a constant.
        direction: Order of the two in KL: `teacher_student` for a student that shall do all that
            the teacher does, `student_teacher` for one that may keep to a part of it.
        valid: Rows that count, bool `[…]`; None is all.

    Returns:
        The loss, and `agreement`, the share of rows in which both have the same mode.

    Raises:
        ValueError: shapes do not agree, or there is no such direction.
    """
    check_floats("logits", logits)
    check_floats("teacher_logits", teacher_logits)
    check_shape("teacher_logits", teacher_logits, logits.shape)
    if not logits.numel():
        raise ValueError(f"logits: expected […, A], not empty, got shape {tuple(logits.shape)}")
    check_flags("valid", valid, logits.shape[:-1])
    if direction not in ("teacher_student", "student_teacher"):
        raise ValueError(
            f"direction: expected teacher_student or student_teacher, got {direction!r}"
        )
    check_logits(valid, logits=logits, teacher_logits=teacher_logits)
    # One flag for each row of logits, spread over its actions.
    row = None if valid is None else valid.unsqueeze(-1)
    logits, teacher_logits = masked(row, logits, teacher_logits.detach())
    pair = (teacher_logits, logits) if direction == "teacher_student" else (logits, teacher_logits)
    same = categorical.mode(logits) == categorical.mode(teacher_logits)
    return masked_mean(categorical.kl(*pair), valid), {
        "agreement": masked_mean(same.to(logits.dtype), valid)
    }


def mixed_loss(
    reinforcement: tuple[Tensor, LossTerms],
    imitation: tuple[Tensor, LossTerms],
    *,
    imitation_weight: float,
    reinforcement_weight: float = 1.0,
) -> tuple[Tensor, LossTerms]:
    """Return w_RL L_RL + w_IL L_IL of two losses with their terms.

    Rajeswaran et al. 2018, "Learning complex dexterous manipulation with deep reinforcement
    learning and demonstrations", with the weight of any schedule in place of λ₀ λ₁^k:

        weight = schedules.linear(step, start=1.0, end=0.0, num_steps=10_000)
        loss, terms = mixed_loss(ppo_loss(…), cloning.likelihood_loss(…), imitation_weight=weight)

    A weight of zero drops its loss from the sum, also one that is not finite.

    Args:
        reinforcement: Loss of reinforcement learning and its terms.
        imitation: Loss of imitation and its terms, under other names.
        imitation_weight: w_IL, usually falling from 1 to 0 or 0.05. Staying too high keeps the
            policy from becoming better than its teacher; falling too fast forgets what was shown.
        reinforcement_weight: w_RL, usually 1; 0 is imitation alone.

    Returns:
        The loss, and the terms of both with `reinforcement_loss`, `imitation_loss` and
        `imitation_weight`.

    Raises:
        ValueError: a weight is negative, or both losses have a term of one name.
    """
    weights = {"reinforcement_weight": reinforcement_weight, "imitation_weight": imitation_weight}
    for name, weight in weights.items():
        check_not_negative(name, weight)
    (loss, terms), (other_loss, other_terms) = reinforcement, imitation
    if shared := terms.keys() & other_terms.keys():
        raise ValueError(f"expected terms of different names, got {sorted(shared)} in both")
    check_finite(
        reinforcement=loss if reinforcement_weight else None,
        imitation=other_loss if imitation_weight else None,
    )
    parts = [(reinforcement_weight, loss), (imitation_weight, other_loss)]
    total = sum((weight * part for weight, part in parts if weight), loss.new_zeros(()))
    return total, {
        **terms,
        **other_terms,
        "reinforcement_loss": loss.detach(),
        "imitation_loss": other_loss.detach(),
        "imitation_weight": loss.new_tensor(imitation_weight),
    }
