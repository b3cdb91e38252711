"""Which precision is taken where nobody says one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bray.sources import cpu_precision
from bray_algo.networks.convolutional import NatureEncoder


@pytest.mark.parametrize(("bf16", "expected"), [(0.5, "bf16"), (2.0, "fp32")])
def test_the_quicker_one_is_taken(
    bf16: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def seconds(*_: Any, is_bf16: bool) -> float:
        asked.append(is_bf16)
        return bf16 if is_bf16 else 1.0

    monkeypatch.setattr(cpu_precision, "has_bf16", lambda: True)
    monkeypatch.setattr(cpu_precision, "seconds", seconds)
    before = torch.random.get_rng_state()
    assert cpu_precision.quickest_precision.__wrapped__() == expected
    assert asked == [False, True] * 3, "they take turns"
    assert torch.equal(torch.random.get_rng_state(), before), "a run's draws stay what they are"


def test_nothing_is_measured_where_there_is_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_precision, "has_bf16", lambda: False)
    monkeypatch.setattr(cpu_precision, "seconds", lambda *_, **__: pytest.fail("measured"))
    assert cpu_precision.quickest_precision.__wrapped__() == "fp32"


@pytest.mark.parametrize("is_bf16", [False, True])
def test_a_pass_takes_time_and_leaves_no_gradients(is_bf16: bool) -> None:
    encoder, frames = NatureEncoder(hidden=8), torch.zeros((1, 4, 84, 84), dtype=torch.uint8)
    assert cpu_precision.seconds(encoder, frames, is_bf16=is_bf16) > 0
    assert all(parameter.grad is None for parameter in encoder.parameters())
