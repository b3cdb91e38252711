"""A pattern fits names by its signs, and the name that is written the same."""

from __future__ import annotations

import pytest

from bray_core.settings.name_pattern import fits


@pytest.mark.parametrize("pattern", ["hunter_*", "hunter_?", "*", "hunter_[0-3]", "hunter_1"])
def test_a_pattern_fits(pattern: str) -> None:
    """Shell's signs, and no sign at all."""
    assert fits("hunter_1", pattern)


@pytest.mark.parametrize("pattern", ["Hunter_*", "hunter", "unter_1", ""])
def test_another_does_not(pattern: str) -> None:
    """Letters count as they are, from the first to the last."""
    assert not fits("hunter_1", pattern)


def test_a_name_with_signs_fits_itself() -> None:
    """As names of numbered agents are written in many games."""
    assert fits("car[0]", "car[0]")
    assert not fits("car[1]", "car[0]")
