"""Templates: parts, their settings, errors; the commands `bray config`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bray import registry as recipe_command
from bray.algorithms import alphazero, dqn, ppo
from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.templates import schema as parts
from bray.templates import template
from bray.templates.template import RenderPart, Template
from bray_core import cli
from bray_core.errors import ConfigError


def write(folder: Path, text: str) -> str:
    (folder / "mine.yaml").write_text(text + "\n")
    return str(folder / "mine.yaml")


def test_a_shipped_template_loads_and_overrides_win() -> None:
    loaded = template.load("cartpole", ["trainer.learning_rate=3e-4", "model.hidden=[32]"])
    assert (loaded.recipe, loaded.environment) == ("ppo", "CartPole-v1")
    assert (
        loaded.settings
        == ppo.PPO.of("CartPole-v1", learning_rate=3e-4, hidden=(32,), num_envs=8).config
    )
    assert loaded.wire == Wire(num_processes=2)


@pytest.mark.parametrize("name", template.names())
def test_every_shipped_template_is_valid_and_its_comment_about_keys_true(name: str) -> None:
    loaded = template.load(name)
    written = yaml.safe_load(template.path_of(name).read_text())
    again = template.load(name, [f"seed={loaded.seed}"])
    assert again == loaded
    jsonschema.validate(written, parts.json_schema_of_all(), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "name", ["reinforcement", "imitation", "imitation-reinforcement", "league"]
)
def test_templates_to_start_from_show_all_seven_parts(name: str) -> None:
    written = yaml.safe_load(template.path_of(name).read_text())
    assert {*parts.PARTS, "render"} <= set(written)


def test_the_environment_wins_over_the_file_and_loses_to_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRAY_TRAINER__LEARNING_RATE", "1e-4")
    monkeypatch.setenv("BRAY_TRAINER__EPOCHS", "3")
    settings = template.load("cartpole", ["trainer.epochs=2"]).settings
    assert (settings.learning_rate, settings.epochs) == (1e-4, 2)
    monkeypatch.setenv("BRAY_TRAINER__EPOCH", "3")
    with pytest.raises(ConfigError, match=r"BRAY_TRAINER__EPOCH: trainer\.epoch: .*'epochs'"):
        template.load("cartpole")


@pytest.mark.parametrize("name", recipe_command.names())
def test_every_recipe_is_reachable_with_all_its_settings(name: str, tmp_path: Path) -> None:
    config = recipe_command.load(name).Config()
    made = Template(
        recipe=name,
        environment="CartPole-v1",
        settings=config,
        seed=7,
        enable="deploy",
        render=RenderPart(function="a.b:draw"),
        goal=Goal(max_frames=5),
        keep=RetentionPolicy(versions=3),
    )
    text = yaml.safe_dump(made.to_mapping())
    loaded = template.load(write(tmp_path, text))
    assert loaded == made
    held = {key for part in parts.PARTS for key in made.to_mapping().get(part, {})}
    assert held >= {field.name for field in fields(config)}
    schema = parts.json_schema_of_all()
    jsonschema.validate(made.to_mapping(), schema, jsonschema.Draft202012Validator)
    described = schema["$defs"][name]["properties"]
    for part in parts.PARTS:
        for key, value in described[part]["properties"].items():
            assert value["description"], f"{name}: {part}.{key}"


def test_every_named_setting_is_of_some_recipe() -> None:
    known = {
        field.name
        for name in recipe_command.names()
        for field in fields(recipe_command.load(name).Config)
    }
    named = {setting for settings in parts._SETTINGS.values() for setting in settings}
    assert named <= known


def test_a_task_may_have_defaults_of_its_own(tmp_path: Path) -> None:
    text = "recipe: alphazero\nsource:\n  environment: tic-tac-toe\n  num_games: 8"
    loaded = template.load(write(tmp_path, text))
    assert loaded.settings == replace(alphazero.DEFAULTS["tic-tac-toe"], num_games=8)


def test_a_trial_is_a_template(tmp_path: Path) -> None:
    made = Template(
        recipe="dqn", environment="CartPole-v1", settings=dqn.DQN.of("CartPole-v1", gamma=0.9).parts
    )
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "config.yaml").write_text(yaml.safe_dump(made.to_mapping()))
    assert template.load(str(tmp_path / "trial")) == made


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'cartpol'.*'cartpole'.*known: atari, cartpole"):
        template.load("cartpol")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no file 'absent\.yaml'"):
        template.load("absent.yaml")


SOURCE = "source: {environment: CartPole-v1}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recipe: pppo", r":1:1: recipe: expected .*ppo.*got 'pppo'"),
        ("recipe: 3", r":1:1: recipe: expected one of .*got 3"),
        (SOURCE, r":1:1: recipe: expected one of .*got None"),
        ("recipe: ppo", r":1:1: source: missing"),
        ("recipe: ppo\nsource:", r":2:1: source\.environment: missing"),
        ("recipe: ppo\nenable: tain\n" + SOURCE, r":2:1: enable: expected one of 'train'"),
        ("recipe: ppo\nseed: -1\n" + SOURCE, r":2:1: seed: expected 0 or more, got -1"),
        ("recipe: ppo\nmodel:\n  hidden: []\n" + SOURCE, r":3:3: model\.hidden: expected one or"),
        ("recipe: dqn\nmodel: {hiden: [3]}\n" + SOURCE, r":2:9: model\.hiden: .*'hidden'"),
        ("recipe: dqn\nbuffer:\n  capacity: 0\n" + SOURCE, r":3:3: buffer\.capacity: expected mo"),
        (
            "recipe: dqn\n" + SOURCE + "actor:\n  port: 1",
            r":4:3: actor\.port: unknown key; allowed: num_workers",
        ),
        ("recipe: ppo\nactor:\n  port: 70000\n" + SOURCE, r":3:3: actor\.port: .*got 70000"),
        ("recipe: ppo\ntrainer:\n  epochs: many\n" + SOURCE, r":3:3: trainer\.epochs: expected"),
        ("recipe: ppo\ntrainer:\n  clip: 2.0\n" + SOURCE, r":3:3: trainer\.clip: expected 0 to 1"),
        ("recipe: ppo\ngoal:\n  max_frames: -1\n" + SOURCE, r":3:3: goal\.max_frames: expected"),
        ("recipe: ppo\nkeep:\n  versions: 0\n" + SOURCE, r":3:3: keep\.versions: expected more"),
        ("recipe: ppo\nrender:\n  function: x\n" + SOURCE, r":3:3: render\.function: expected mod"),
        (
            "recipe: ppo\nsource:\n  environment: X\n  num_processes: 3",
            r":2:1: trainer\.steps_per_replay: expected a multiple of the 48 environments|"
            r"trainer\.steps_per_replay: expected a multiple of the 48",
        ),
        (
            "recipe: ppo\nactor: {num_workers: 3}\nsource: {environment: X, num_processes: 2}",
            r":2:9: actor\.num_workers: expected a divisor of source\.num_processes=2, got 3",
        ),
        (
            "recipe: ppo\nmodel: {memory_size: 3}\nsource: {environment: X, num_processes: 2}",
            r":2:9: model\.memory_size: expected 0 over the wire, got 3",
        ),
    ],
)
def test_bad_values_name_line_column_key_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        template.load(write(tmp_path, text))


def test_a_template_to_deploy_is_served_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "recipe: dqn\n" + SOURCE)
    for command in (["train", "mine.yaml", "enable=deploy"], ["serve", "mine.yaml"]):
        assert cli.main(command) == 2
        assert "trials/mine: no such folder: give an export or a trial" in capsys.readouterr().err


class TestConfigCommand:
    def test_check_says_that_all_is_well(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = write(tmp_path, "recipe: dqn\n" + SOURCE)
        assert cli.main(["config", "check", file, "trainer.gamma=0.5"]) == 0
        assert capsys.readouterr().out == f"{file}: dqn on CartPole-v1: valid\n"

    def test_check_says_what_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = write(tmp_path, "recipe: dqn\ntrainer:\n    gama: 1\n" + SOURCE)
        assert cli.main(["config", "check", file]) == 2
        said = capsys.readouterr().err
        assert f"{file}:3:5: trainer.gama: unknown key, did you mean 'gamma'?" in said

    def test_check_says_all_that_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = "recipe: dqn\ntrainer:\n  gamma: 7\n  learning_rate: -1\nmodel: {hidden: [x]}\n"
        file = write(tmp_path, text + SOURCE + "keep: {versions: 0}")
        assert cli.main(["config", "check", file]) == 2
        lines = capsys.readouterr().err.replace(f"{file}:", "").splitlines()
        keys = [line.removeprefix("error: ").split(": ")[:2] for line in lines]
        assert keys == [
            ["3:3", "trainer.gamma"],
            ["4:3", "trainer.learning_rate"],
            ["5:18", "model.hidden[0]"],
            ["7:8", "keep.versions"],
        ]

    def test_the_schema_is_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["config", "schema"]) == 0
        schema: Any = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator.check_schema(schema)
        settings = {"recipe": "dqn", "trainer": {"gama": 1}, "source": {"environment": "x"}}
        with pytest.raises(jsonschema.ValidationError, match="gama"):
            jsonschema.validate(settings, schema, jsonschema.Draft202012Validator)
