"""`model.encoders`: what reads a leaf, by its path, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces

NESTED = Spaces.parse(
    "here",
    {
        "observation": {
            "camera": {"shape": [16, 16], "dtype": "uint8"},
            "bag": {"item": {"discrete": 5}},
        },
        "action": {"discrete": 3},
    },
)
ONE = Spaces.parse("here", {"observation": {"discrete": 5}, "action": {"discrete": 3}})


def encoders_of(spaces: Spaces, encoders: Mapping[str, str]) -> set[str]:
    """Return the names of the classes inside a policy."""
    policy = make_policy(spaces, NetworkConfig(hidden=(8,), encoders=encoders), 0)
    return {type(module).__name__ for module in policy.modules()}


def test_categories_without_memory_for_their_vectors_are_refused() -> None:
    many = Spaces.parse("here", {"observation": {"discrete": 2**45}, "action": {"discrete": 3}})
    with pytest.raises(ConfigError, match=r"observation: .* 35184372088832 of one number, for whi"):
        make_policy(many, NetworkConfig(hidden=(8,), encoders={"": "embedding"}), 0)


def test_a_leaf_is_read_by_what_is_named_for_its_path() -> None:
    assert "CategoryEncoder" not in encoders_of(NESTED, {})
    assert "CategoryEncoder" in encoders_of(NESTED, {"bag/item": "embedding"})
    assert "ImageEncoder" not in encoders_of(NESTED, {"camera": "flat"})


@pytest.mark.parametrize("name", ["observation", ""])
def test_a_leaf_that_is_all_of_the_observation_is_named_observation(name: str) -> None:
    assert "CategoryEncoder" not in encoders_of(ONE, {})
    assert "CategoryEncoder" in encoders_of(ONE, {name: "embedding"})


@pytest.mark.parametrize(
    ("spaces", "encoders", "words"),
    [
        (NESTED, {"camra": "cnn"}, r"camra: no such leaf .*, did you mean 'camera'\?; known: bag/"),
        (NESTED, {"bag.item": "flat"}, r"bag\.item: no such leaf .*, did you mean 'bag/item'\?"),
        (ONE, {"item": "flat"}, "item: no such leaf of the observation; known: observation"),
        (ONE, {"observation": "cnn"}, "observation: 'cnn' reads image, got "),
        (ONE, {"observation": "cn"}, "observation: expected one of flat, cnn, .*got 'cn'"),
    ],
)
def test_encoders_that_read_nothing_are_refused(spaces: Spaces, encoders: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"model.encoders.{words}"):
        encoders_of(spaces, encoders)


def test_the_whole_network_reads_on() -> None:
    policy = make_policy(ONE, NetworkConfig(hidden=(8,), encoders={"observation": "embedding"}), 0)
    assert policy(torch.zeros(4, dtype=torch.int64))["logits"].shape == (4, 3)
