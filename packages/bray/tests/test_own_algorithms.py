"""Algorithms of yours that do not say all that an algorithm says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
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


class StepslessTrainer(PlainTrainer):
    def loss(self, batch: Any) -> Any:  # type: ignore[override]
        return super().loss(batch, 0)


class Stepsless(Whole):
    trainer = StepslessTrainer


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
        ("Stepsless", r"trainer: expected .* loss\(batch, step\) of .*, got loss\(self, batch"),
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


def test_an_installed_algorithm_is_checked_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    points = f"loose = {__name__}:Loose\nwhole = {__name__}:Whole\nraising = raising_part:Any\n"
    (info / "entry_points.txt").write_text(f"[bray.algorithms]\n{points}")
    (tmp_path / "raising_part.py").write_text("raise RuntimeError('no such licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"^algorithm: 'loose': configs\['trainer'\]: .* frozen"):
        load_algorithm("loose")
    with pytest.raises(ConfigError, match=r"'raising' is installed, but .* no such licence"):
        load_algorithm("raising")
    assert load_algorithm("whole") is Whole
