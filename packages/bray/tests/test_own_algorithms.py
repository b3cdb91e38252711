"""Algorithms of yours that do not say all that an algorithm says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from bray.training.actor_critic import ActorCriticConfig, ActorCriticTrainer
from bray.training.algorithm import Algorithm, load_algorithm
from bray.training.on_policy import OnPolicy
from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainConfig(ActorCriticConfig):
    """Settings."""


class Whole(OnPolicy[PlainConfig]):
    title = "whole"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}
    trainer = ActorCriticTrainer


class Untitled(OnPolicy[PlainConfig]):
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}
    trainer = ActorCriticTrainer


class Untrained(OnPolicy[PlainConfig]):
    title = "untrained"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}


class Unset(OnPolicy[PlainConfig]):
    title = "unset"
    pacing = "lockstep"
    trainer = ActorCriticTrainer


class Mapped(OnPolicy[PlainConfig]):
    title = "mapped"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": dict}
    trainer = ActorCriticTrainer


class Idle(Algorithm[Any]):
    title = "idle"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Untitled", "expected an attribute title of the class, got none"),
        ("Untrained", "expected an attribute trainer of the class, got none"),
        ("Unset", r"expected settings of its trainer, got none: write `configs = \{\*\*OnPolicy\."),
        ("Mapped", r"configs\['trainer'\]: expected a dataclass, got <class 'dict'>"),
        ("Idle", "expected methods train, got none"),
    ],
)
def test_what_is_missing_of_an_algorithm_is_told(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm: '{__name__}:{name}': {words}"):
        load_algorithm(f"{__name__}:{name}")
    assert load_algorithm(f"{__name__}:Whole") is Whole
