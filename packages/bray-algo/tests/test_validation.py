"""The switch: every loss and return refuses what is not finite, by name, where it counts."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from loss_cases import CASES, Arguments, N, T
from torch import Tensor

from bray_algo import validation
from bray_algo.distributions import categorical
from bray_algo.losses import discrete as losses
from bray_algo.losses import imitation, reductions
from bray_algo.validation import switch, values

READ = [
    (case, name)
    for case, (_, arguments) in CASES.items()
    for name, value in arguments.items()
    if isinstance(value, Tensor) and value.dtype.is_floating_point and name != "support"
]


def poisoned(case: str, name: str, bad: float) -> Arguments:
    """The arguments with one bad number, in a sample that counts."""
    arguments = dict(CASES[case][1])
    column = arguments[name].clone()
    # The first action taken; of segments the one that did not terminate.
    place = -1 if column.ndim == 1 else 0
    column.view(-1)[place] = bad
    return {**arguments, name: column}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("case", "name"), READ)
def test_what_is_not_finite_is_refused_by_name(case: str, name: str, bad: float) -> None:
    function, arguments = CASES[case][0], poisoned(case, name, bad)
    with pytest.raises(ValueError, match=rf"^{name}: expected .* (nan|inf) .*in shape \("):
        function(**arguments)
    with validation.validating(False):
        function(**arguments)


@pytest.mark.parametrize("case", CASES)
def test_what_is_finite_is_not(case: str) -> None:
    function, arguments = CASES[case]
    function(**arguments)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", [case for case, (_, a) in CASES.items() if "length" in a])
def test_padding_and_values_after_an_end_may_hold_anything(case: str, bad: float) -> None:
    function, arguments = CASES[case]
    arguments = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.shape == (T, 2) and value.is_floating_point():
            arguments[name][2:, 1] = bad
    arguments["final_value"][0] = bad
    function(**arguments)


@pytest.mark.parametrize("case", ["ppo", "a2c", "likelihood", "qmix", "teacher"])
def test_samples_that_are_not_valid_may_hold_anything(case: str) -> None:
    function, arguments = CASES[case]
    rubbish = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    for value in rubbish.values():
        if isinstance(value, Tensor):
            value[1] = torch.nan
    function(**rubbish, valid=torch.tensor([True, False, True]))


def test_a_mix_names_the_loss_that_is_not_finite() -> None:
    fine, bad = (torch.zeros(()), {}), (torch.tensor(torch.nan), {})
    with pytest.raises(ValueError, match=r"^imitation: expected finite numbers, got nan at"):
        imitation.mixed_loss(fine, bad, imitation_weight=1.0)


def test_a_row_of_no_legal_action_is_refused() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    with pytest.raises(ValueError, match=r"^logits: expected rows with a legal action.*\[1\]"):
        losses.behaviour_cloning_loss(logits, torch.zeros(2, dtype=torch.int64))
    losses.behaviour_cloning_loss(logits[:1], torch.zeros(1, dtype=torch.int64))
    legal = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="one legal action or more"):
        categorical.mask(logits, legal)
    with validation.validating(False):
        categorical.mask(logits, legal)


def test_great_numbers_are_not_taken_for_infinite_ones() -> None:
    great = torch.full((N,), torch.finfo(torch.float32).max)
    values.check_finite(great=great, half=torch.full((N,), 6e4, dtype=torch.float16))


def test_the_switch_comes_back() -> None:
    column = torch.tensor([torch.nan])
    assert switch.is_validated(column)
    with suppress(RuntimeError), validation.validating(False):
        assert not switch.is_validated(column)
        raise RuntimeError
    assert switch.is_validated(column)
    validation.set_validation(False)
    try:
        reductions.weighted_mean(column, column)
    finally:
        validation.set_validation(True)


def test_nothing_is_read_while_compiling_nor_on_another_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values.check_finite(column=torch.full((N,), torch.nan, device="meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    values.check_finite(column=torch.tensor([torch.nan]))
