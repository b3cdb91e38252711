"""Imitation of a teacher and mixes with reinforcement learning, against float64 loops."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bray_algo import schedules
from bray_algo.distributions import categorical
from bray_algo.losses import imitation

N, A = 6, 4
Direction = Literal["teacher_student", "student_teacher"]


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
@given(seed=st.integers(0, 1000))
def test_the_teacher_loss_is_the_mean_kl(direction: Direction, seed: int) -> None:
    logits, teacher = np.random.default_rng(seed).normal(size=(2, N, A))
    kl, agreement = 0.0, 0.0
    for row, teacher_row in zip(logits, teacher, strict=True):
        p, q = softmax(teacher_row), softmax(row)
        if direction == "student_teacher":
            p, q = q, p
        kl += float((p * np.log(p / q)).sum()) / N
        agreement += (row.argmax() == teacher_row.argmax()) / N
    columns = (torch.from_numpy(logits), torch.from_numpy(teacher))
    loss, terms = imitation.teacher_loss(*columns, direction=direction)
    assert loss.item() == pytest.approx(kl)
    assert loss.item() >= 0
    assert terms["agreement"].item() == pytest.approx(agreement)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_gradients_agree_with_finite_differences(direction: Direction) -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, N, A, dtype=torch.float64).unbind()
    logits.requires_grad_()
    teacher.requires_grad_()

    def function(logits: Tensor) -> Tensor:
        return imitation.teacher_loss(logits, teacher, direction=direction)[0]

    assert torch.autograd.gradcheck(function, (logits,))
    function(logits).backward()
    assert teacher.grad is None


def test_the_student_that_follows_the_gradient_becomes_its_teacher() -> None:
    torch.manual_seed(0)
    logits = torch.zeros(1, A, requires_grad=True)
    teacher = torch.randn(1, A)
    for _ in range(300):
        (grad,) = torch.autograd.grad(imitation.teacher_loss(logits, teacher)[0], logits)
        logits = (logits - 2.0 * grad).detach().requires_grad_()
    assert torch.allclose(categorical.log_probs(logits), categorical.log_probs(teacher), atol=1e-3)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_masks_and_rows_that_do_not_count_stay_finite(direction: Direction) -> None:
    logits = torch.tensor([[0.0, -torch.inf], [1.0, 2.0], [torch.nan, 0.0]], requires_grad=True)
    teacher = torch.tensor([[-torch.inf, 0.0], [1.0, 2.0], [0.0, 0.0]])
    valid = torch.tensor([True, True, False])
    loss, _ = imitation.teacher_loss(logits, teacher, direction=direction, valid=valid)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]
    alone, terms = imitation.teacher_loss(logits[1:2], teacher[1:2], direction=direction)
    assert alone.item() == pytest.approx(0, abs=1e-7)
    assert terms["agreement"] == 1


def test_a_mix_follows_its_schedule() -> None:
    rl = (torch.tensor(2.0, requires_grad=True), {"entropy": torch.tensor(0.5)})
    il = (torch.tensor(3.0, requires_grad=True), {"followed": torch.tensor(1.0)})
    for step, weight in ((0, 1.0), (5, 0.5), (10, 0.0), (99, 0.0)):
        now = schedules.linear(step, start=1.0, end=0.0, num_steps=10)
        loss, terms = imitation.mixed_loss(rl, il, imitation_weight=now)
        assert loss.item() == pytest.approx(2.0 + weight * 3.0)
        assert {name: term.item() for name, term in terms.items()} == {
            "entropy": 0.5,
            "followed": 1.0,
            "reinforcement_loss": 2.0,
            "imitation_loss": 3.0,
            "imitation_weight": weight,
        }
        (grad,) = torch.autograd.grad(loss, rl[0])
        assert grad == 1.0
    loss, _ = imitation.mixed_loss(rl, il, imitation_weight=0.5, reinforcement_weight=0.0)
    loss.backward()
    assert rl[0].grad is None
    assert il[0].grad == 0.5


def test_a_weight_of_zero_drops_a_loss_that_is_not_finite() -> None:
    rl, il = (torch.tensor(2.0), {}), (torch.tensor(torch.nan), {})
    assert imitation.mixed_loss(rl, il, imitation_weight=0.0)[0] == 2.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: imitation.teacher_loss(torch.zeros(2, 3), torch.zeros(2, 4)), r"teacher_logits: "),
        (lambda: imitation.teacher_loss(*[torch.zeros(0, 3)] * 2), r"logits: .* shape \(0, 3\)"),
        (
            lambda: imitation.teacher_loss(*[torch.zeros(2, 3)] * 2, direction="up"),  # type: ignore[arg-type]
            "direction: expected teacher_student or student_teacher, got 'up'",
        ),
        (
            lambda: imitation.teacher_loss(*[torch.zeros(2, 3)] * 2, valid=torch.ones(2)),
            "valid: expected bool",
        ),
        (
            lambda: imitation.mixed_loss(*[(torch.zeros(()), {})] * 2, imitation_weight=-1),
            "imitation_weight: expected 0 or more, got -1",
        ),
        (
            lambda: imitation.mixed_loss(
                *[(torch.zeros(()), {"x": torch.zeros(())})] * 2, imitation_weight=1
            ),
            r"expected terms of different names, got \['x'\] in both",
        ),
    ],
)
def test_nonsense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
