"""Settings of recipes that would spoil a run in its middle are refused before it begins."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bray.algorithms import a2c, appo, bc, es, impala, mappo, ppo, rl_imitation, selfplay
from bray_core.errors import ConfigError


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *((recipe, "entropy_coefficient") for recipe in (ppo, a2c, impala, appo, mappo, selfplay)),
        *((recipe, "value_coefficient") for recipe in (ppo, a2c, impala, appo, bc)),
        (rl_imitation, "imitation_weight"),
        (es, "weight_decay"),
    ],
)
def test_coefficients_are_finite_numbers_from_0(recipe: Any, name: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected 0 or more, got"):
        recipe.Config(**{name: bad})
    recipe.Config(**{name: 0.0})
