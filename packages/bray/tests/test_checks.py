"""Settings of recipes that would spoil a run in its middle are refused before it begins."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bray.algorithms.a2c import A2CConfig
from bray.algorithms.appo import APPOConfig
from bray.algorithms.bc import BCConfig
from bray.algorithms.es import ESConfig
from bray.algorithms.impala import IMPALAConfig
from bray.algorithms.mappo import MAPPOConfig
from bray.algorithms.ppo import PPOConfig
from bray.algorithms.rl_imitation import RLImitationConfig
from bray_core.errors import ConfigError

ACTOR_CRITICS = (PPOConfig, A2CConfig, IMPALAConfig, APPOConfig)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((c, "entropy_coefficient") for c in (*ACTOR_CRITICS, MAPPOConfig)),
        *((c, "value_coefficient") for c in (*ACTOR_CRITICS, BCConfig)),
        (RLImitationConfig, "imitation_weight"),
        (ESConfig, "weight_decay"),
    ],
)
def test_coefficients_are_finite_numbers_from_0(config: Any, name: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected 0 or more, got"):
        config(**{name: bad})
    config(**{name: 0.0})
