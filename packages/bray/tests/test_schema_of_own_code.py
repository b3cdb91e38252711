"""The JSON Schema of templates knows classes of one's own, in every form of a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from template_schema import template_schema

from bray.templates.json_schemas import OwnCode, json_schema_of_all
from bray_core.cli import main

CODE = '''
from dataclasses import dataclass
from bray.algorithms.ppo import PPO, PPOConfig
from bray.sources.source_kind import SourceKind, SourceKindConfig

@dataclass(frozen=True, kw_only=True, slots=True)
class MineConfig(PPOConfig):
    """Settings."""
    wariness: float = 0.5
    """How wary it is."""

class Mine(PPO):
    """PPO that is wary."""
    configs = {**PPO.configs, "trainer": MineConfig}

@dataclass(frozen=True, kw_only=True, slots=True)
class PoleConfig(SourceKindConfig):
    """Settings."""
    gravity: float = 9.8
    """Pull."""

class Poles(SourceKind[PoleConfig]):
    """A pole."""
    Config = PoleConfig
    def spaces(self):
        raise NotImplementedError
    def runner(self, seats, *, quotas, seed, worker):
        raise NotImplementedError
'''
SHORT = """
algorithm: {folder}/ours.py:Mine
source: {{environment: CartPole-v1}}
trainer: {{wariness: 0.2}}
"""
WITH_KIND = """
algorithm: {folder}/ours.py:Mine
source: {{kind: "{folder}/ours.py:Poles", gravity: 5.0}}
trainer: {{wariness: 0.2}}
"""
FULL = """
trainers:
  a: {{algorithm: "{folder}/ours.py:Mine", wariness: 0.2}}
  b: {{algorithm: dqn, batch_size: 32}}
agents: {{a: {{}}, b: {{}}}}
sources: {{pole: {{kind: "{folder}/ours.py:Poles", gravity: 5.0, agents: {{cart: a, other: b}}}}}}
goal: {{agent: a}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Templates of three forms, beside the code that they name."""
    folder = tmp_path_factory.mktemp("own~code")  # a name that a JSON pointer writes otherwise
    (folder / "ours.py").write_text(CODE)
    for name, text in (("short", SHORT), ("kind", WITH_KIND), ("full", FULL)):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder


@pytest.fixture(scope="module")
def schema(folder: Path) -> Any:
    """The schema with the code that the full template names."""
    templates = [str(folder / f"{name}.yaml") for name in ("short", "full")]
    own = OwnCode.named_in(templates)
    assert own.algorithms == (f"{folder}/ours.py:Mine",)
    assert own.sources == (f"{folder}/ours.py:Poles",)
    made = json_schema_of_all(own)
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("name", ["short", "kind", "full"])
@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("wariness: 0.2", "wariness: much"),
        ("wariness: 0.2", "warines: 0.2"),
        ("gravity: 5.0", "gravity: strong"),
        ("gravity: 5.0", "gravty: 5.0"),
    ],
)
def test_settings_of_own_code_are_held_to_it(
    folder: Path, schema: Any, name: str, was: str, now: str
) -> None:
    text = (folder / f"{name}.yaml").read_text()
    schema.validate(yaml.safe_load(text))
    if was in text:
        assert not schema.is_valid(yaml.safe_load(text.replace(was, now)))


@pytest.mark.parametrize("name", ["short", "kind", "full"])
def test_code_that_the_schema_does_not_know_is_not_refused(folder: Path, name: str) -> None:
    plain = jsonschema.Draft202012Validator(template_schema())
    text = (folder / f"{name}.yaml").read_text()
    plain.validate(yaml.safe_load(text))
    mine = f"{folder}/ours.py:Mine"
    wrong = text.replace(f'"{mine}"', "3").replace(mine, "3")
    assert not plain.is_valid(yaml.safe_load(wrong))


def test_the_trainer_beside_a_kind_is_held_to_its_algorithm(schema: Any) -> None:
    text = "{algorithm: ppo, source: {kind: matches, environment: x}, trainer: {clip: 0.1}}"
    schema.validate(yaml.safe_load(text))
    assert not schema.is_valid(yaml.safe_load(text.replace("clip", "clpi")))


def test_the_command_takes_templates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", str(folder / "full.yaml")]) == 0
    made = json.loads(capsys.readouterr().out)
    assert "wariness" in made["$defs"][f"{folder}/ours.py:Mine_settings"]["properties"]
    assert main(["config", "schema", str(folder / "nowhere.yaml")]) != 0
    assert "no file" in capsys.readouterr().err
