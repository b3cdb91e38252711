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


class PlainTrainer(ActorCriticTrainer):
    """A trainer."""

    def loss(self, batch: Any, step: int) -> Any:
        return self.columns(batch).value.mean(), {}


class Whole(OnPolicy[PlainConfig]):
    title = "whole"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}
    trainer = PlainTrainer


class Untitled(OnPolicy[PlainConfig]):
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}
    trainer = PlainTrainer


class Untrained(OnPolicy[PlainConfig]):
    title = "untrained"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": PlainConfig}


class Unset(OnPolicy[PlainConfig]):
    title = "unset"
    pacing = "lockstep"
    trainer = PlainTrainer


class Mapped(OnPolicy[PlainConfig]):
    title = "mapped"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": dict}
    trainer = PlainTrainer


class Idle(Algorithm[Any]):
    title = "idle"
    pacing = "lockstep"
    configs: ClassVar[dict[str, type[Any]]] = {}


class Lossless(Whole):
    trainer = ActorCriticTrainer


class Unhurried(Whole):
    pacing: Any = "whenever"


@dataclass
class LooseConfig:
    """Settings that may change."""

    learning_rate: float = 1e-3


class Loose(Whole):
    configs: ClassVar[dict[str, type[Any]]] = {**OnPolicy.configs, "trainer": LooseConfig}


class Named(Whole):
    def __init__(self, *, parts: Any) -> None:
        super().__init__(parts)


class Bound(Whole):
    def defaults(self: Any, task: str) -> Any:
        return {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Untitled", "expected an attribute title of the class, got none"),
        ("Untrained", "expected an attribute trainer of the class, got none"),
        ("Unset", r"expected settings of its trainer, got none: write `configs = \{\*\*OnPolicy\."),
        ("Mapped", r"configs\['trainer'\]: expected a dataclass, got <class 'dict'>"),
        ("Lossless", r"trainer: expected a method loss\(batch, step\) of .*ActorCriticTrainer"),
        ("Unhurried", "pacing: expected one of lockstep, .*, got 'whenever'"),
        ("Loose", r"configs\['trainer'\]: expected a frozen dataclass, got .*LooseConfig"),
        ("Named", r"__init__: expected one that takes \(parts\), got \(\*, parts"),
        ("Bound", r"defaults: expected a class method that takes \(task\), got \(self"),
        ("Idle", "expected methods train, got none"),
    ],
)
def test_what_is_missing_of_an_algorithm_is_told(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm: '{__name__}:{name}': {words}"):
        load_algorithm(f"{__name__}:{name}")
    assert load_algorithm(f"{__name__}:Whole") is Whole
