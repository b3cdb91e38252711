"""Algorithms for real actions explore by pink noise, unless their settings say otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bray.algorithms import crossq, sac, td3, td3_bc, tqc
from bray.sources.environments import read_spaces
from bray_core.errors import ConfigError

SPACES = read_spaces("Pendulum-v1")
ONLINE = [sac.SAC, tqc.TQC, crossq.CrossQ, td3.TD3]


def names(algorithm: Any, **settings: Any) -> set[str]:
    """Return the names of a policy's outputs."""
    policy = algorithm.of("Pendulum-v1", hidden=(16,), **settings).policy(SPACES, 0)
    outputs = policy(torch.randn(4, 3))
    assert all(leaf.shape[0] == 4 for leaf in outputs.values())
    return set(outputs)


@pytest.mark.parametrize("algorithm", ONLINE)
def test_the_outputs_say_which_noise_is_drawn(algorithm: Any) -> None:
    pink, white = names(algorithm), names(algorithm, noise="white")
    assert pink - white == {"pink"}
    assert white < pink


def test_what_learns_from_data_sets_draws_independently() -> None:
    assert "pink" not in names(td3_bc.TD3BC, demonstrations="nowhere")


def test_another_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="noise: expected one of pink, white, got 'brown'"):
        sac.SAC.of("Pendulum-v1", noise="brown")
