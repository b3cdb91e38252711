from __future__ import annotations

from pathlib import Path

import pytest

from bray import template
from bray_core.errors import ConfigError


def test_the_shipped_template_loads_and_overrides_win() -> None:
    loaded = template.load("cartpole", ["trainer.learning_rate=3e-4", "model.hidden=[32]"])
    assert loaded.source.environment == "CartPole-v1"
    assert loaded.trainer.learning_rate == 3e-4
    assert loaded.model.hidden == (32,)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'cartpol'.*'cartpole'.*known: cartpole"):
        template.load("cartpol")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no file 'absent\.yaml'"):
        template.load("absent.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recipe: pppo", r":1: recipe: expected .*ppo.*got 'pppo'"),
        ("model:\n  hidden: []", r"hidden: expected one or more"),
        ("source:\n  num_processes: 0", r":2: .*num_processes: expected more than 0, got 0"),
        ("source:\n  num_proceses: 2", r":2: source\.num_proceses.*num_processes"),
        ("actor:\n  port: 70000", r":2: .*port: expected 0 to 65535, got 70000"),
        ("trainer:\n  epochs: many", r":2: trainer\.epochs: expected"),
        ("trainer:\n  clip: 2.0", r":2: .*clip: expected 0 to 1, got 2"),
        ("trainer:\n  steps_per_replay: 100", r"steps_per_replay: expected a multiple of the 16"),
        ("actor:\n  num_workers: 3", r"num_workers: expected a divisor"),
        ("goal:\n  max_frames: -1", r":2: .*max_frames: expected more than 0"),
    ],
)
def test_bad_values_name_line_key_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text + "\n")
    with pytest.raises(ConfigError, match=expected):
        template.load(str(file))
