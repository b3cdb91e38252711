"""Templates: parts, their settings, errors; the commands `bray config`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import template_schema
import yaml

from bray import registry
from bray.goal import Goal
from bray.retention import RetentionPolicy
from bray.sources.cpu_precision import quickest_precision
from bray.templates import loading as template
from bray.templates.template import RenderPart, names
from bray.training.algorithm import PARTS, load_algorithm
from bray_core import cli
from bray_core.errors import ConfigError


def write(folder: Path, text: str) -> str:
    (folder / "mine.yaml").write_text(text + "\n")
    return str(folder / "mine.yaml")


def test_a_shipped_template_loads_and_overrides_win() -> None:
    loaded = template.load("cartpole", ["trainer.learning_rate=3e-4", "model.hidden=[32]"])
    assert (loaded.algorithm, loaded.environment) == ("ppo", "CartPole-v1")
    wanted = {"hidden": (32,), "num_envs": 16, "num_processes": 1, "steps_per_replay": 512}
    wanted |= {"minibatch_size": 128, "gae_lambda": 0.98}
    assert loaded.parts == load_algorithm("ppo").of("CartPole-v1", **wanted).parts


@pytest.mark.parametrize("name", names())
def test_every_shipped_template_is_valid_and_its_comment_about_keys_true(name: str) -> None:
    loaded = template.load(name)
    written = yaml.safe_load(template.path_of(name).read_text())
    again = template.load(name, [f"seed={loaded.seed}"])
    assert again == loaded
    template_schema.validate(written)


@pytest.mark.parametrize(
    "name", ["reinforcement", "imitation", "imitation-reinforcement", "league"]
)
def test_templates_to_start_from_show_all_seven_parts(name: str) -> None:
    written = yaml.safe_load(template.path_of(name).read_text())
    assert {*PARTS, "render"} <= set(written)


def test_the_environment_wins_over_the_file_and_loses_to_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRAY_TRAINER__LEARNING_RATE", "1e-4")
    monkeypatch.setenv("BRAY_TRAINER__EPOCHS", "3")
    settings = template.load("cartpole", ["trainer.epochs=2"]).parts.trainer
    assert (settings.learning_rate, settings.epochs) == (1e-4, 2)
    monkeypatch.setenv("BRAY_TRAINER__EPOCH", "3")
    with pytest.raises(ConfigError, match=r"BRAY_TRAINER__EPOCH: trainer\.epoch: .*'epochs'"):
        template.load("cartpole")


@pytest.mark.parametrize("name", registry.names())
def test_every_algorithm_is_reachable_with_all_its_settings(name: str, tmp_path: Path) -> None:
    algorithm = load_algorithm(name)
    made = replace(
        template.compose(name, algorithm.example),
        seed=7,
        enable="deploy",
        render=RenderPart(function="a.b:draw"),
        goal=Goal(max_frames=5),
        keep=RetentionPolicy(versions=3),
    )
    text = yaml.safe_dump(made.to_mapping())
    loaded = template.load(write(tmp_path, text))
    assert loaded == made
    for part in PARTS:
        held = made.to_mapping()[part]
        assert held.keys() == {field.name for field in fields(algorithm.config_of(part))}
    template_schema.validate(made.to_mapping())
    described = template_schema.template_schema()["$defs"][name]["properties"]
    for part in PARTS:
        for key, value in described[part]["properties"].items():
            assert value["description"], f"{name}: {part}.{key}"


@pytest.mark.parametrize("name", registry.names())
def test_no_setting_is_in_two_parts_so_each_can_be_given_by_its_own_name(name: str) -> None:
    algorithm = load_algorithm(name)
    for part in PARTS:
        for field in fields(algorithm.config_of(part)):
            whole = f"{part}.{field.name}"
            assert algorithm.part_of(field.name) == algorithm.part_of(whole) == whole
    with pytest.raises(ConfigError, match="nonsense: unknown setting of"):
        algorithm.part_of("nonsense")


def test_an_algorithm_and_a_task_make_a_template() -> None:
    made = template.compose("dqn", "CartPole-v1", ["n_step=2", "trainer.gamma=0.9", "seed=4"])
    assert (made.parts.agent.n_step, made.parts.trainer.gamma, made.seed) == (2, 0.9, 4)
    assert made.parts.model.hidden == (256, 256), "the algorithm's own default"
    assert isinstance(made.make(), load_algorithm("dqn"))


def test_a_key_within_a_setting_needs_no_part_either() -> None:
    written = ["kwargs.is_slippery=false", "encoders.camera=cnn"]
    made = template.compose("ppo", "FrozenLake-v1", written)
    assert made.parts.source.kwargs == {"is_slippery": False}
    assert made.parts.model.encoders == {"camera": "cnn"}
    with pytest.raises(ConfigError, match="trainr: unknown key, did you mean 'trainer'"):
        template.compose("ppo", "FrozenLake-v1", ["trainr.gamma=0.9"])


def test_a_task_may_have_defaults_of_its_own(tmp_path: Path) -> None:
    text = "algorithm: alphazero\nsource:\n  environment: tic-tac-toe\n  num_games: 8"
    loaded = template.load(write(tmp_path, text))
    assert loaded.parts == load_algorithm("alphazero").of("tic-tac-toe", num_games=8).parts
    assert loaded.parts.agent.num_simulations == 32


@pytest.mark.parametrize("name", ["appo", "impala", "ppo"])
def test_an_atari_game_has_the_defaults_of_the_algorithm(name: str) -> None:
    """They are of fields of the config's bases, whose types its own module need not know."""
    made = template.compose(name, "ALE/Pong-v5")
    assert made.parts == load_algorithm(name).of("ALE/Pong-v5").parts
    assert made.parts.trainer.precision == quickest_precision()


def test_a_trial_is_a_template(tmp_path: Path) -> None:
    made = template.compose("dqn", "CartPole-v1", ["gamma=0.9"])
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "config.yaml").write_text(yaml.safe_dump(made.to_mapping()))
    assert template.load(str(tmp_path / "trial")) == made


def test_the_old_name_of_the_algorithm_is_read(tmp_path: Path) -> None:
    old = template.load(write(tmp_path, "recipe: dqn\nsource: {environment: CartPole-v1}"))
    assert old == template.compose("dqn", "CartPole-v1")
    both = write(tmp_path, "recipe: dqn\nalgorithm: ppo\nsource: {environment: CartPole-v1}")
    with pytest.raises(ConfigError, match="1:1: recipe: is `algorithm` today, and that is given"):
        template.load(both)


def test_another_environment_does_not_keep_the_goal_of_the_old_one() -> None:
    kept = template.load("cartpole").goal
    other = template.load("cartpole", [], "Acrobot-v1").goal
    assert (kept.episode_return, kept.max_frames) == (475, 1_000_000)
    assert (other.episode_return, other.evaluate_at, other.max_frames) == (None, None, 1_000_000)
    assert template.load("cartpole", [], "CartPole-v1").goal == kept
    said = template.load("cartpole", ["goal.episode_return=-90"], "Acrobot-v1").goal
    assert said.episode_return == -90


def test_code_of_a_users_own_is_named_by_its_file_and_never_run_from_a_text(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine_of_template.py").write_text(
        "from bray.algorithms.ppo import PPO\n\n\nclass Mine(PPO):\n    title = 'Mine'\n"
    )
    text = f"algorithm: {tmp_path}/mine_of_template.py:Mine\n" + SOURCE
    assert template.load(write(tmp_path, text)).make().title == "Mine"
    with pytest.raises(ConfigError, match="names code of yours, which is not run here"):
        template.parse(text, "posted")
    absent = f"algorithm: {tmp_path}/absent.py:Mine\n" + SOURCE
    with pytest.raises(ConfigError, match=r"expected module:Class or file\.py:Class.*no file"):
        template.load(write(tmp_path, absent))


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'cartpol'.*'cartpole'.*known: arithmetic, atari"):
        template.load("cartpol")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no file 'absent\.yaml'"):
        template.load("absent.yaml")


SOURCE = "source: {environment: CartPole-v1}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algorithm: pppo", r":1:1: algorithm: expected .*ppo.*got 'pppo'"),
        ("algorithm: 3", r":1:1: algorithm: expected one of .*got 3"),
        (SOURCE, r":1:1: algorithm: expected one of .*got None"),
        ("algorithm: ppo", r":1:1: source\.environment: missing"),
        ("algorithm: ppo\nsource:", r":2:1: source\.environment: missing"),
        ("algorithm: ppo\nenable: tain\n" + SOURCE, r":2:1: enable: expected one of 'train'"),
        ("algorithm: ppo\nseed: -1\n" + SOURCE, r":2:1: seed: expected 0 to 9.*, got -1"),
        (
            "algorithm: ppo\nmodel:\n  hidden: []\n" + SOURCE,
            r":3:3: model\.hidden: expected one or",
        ),
        ("algorithm: dqn\nmodel: {hiden: [3]}\n" + SOURCE, r":2:9: model\.hiden: .*'hidden'"),
        (
            "algorithm: dqn\nbuffer:\n  capacity: 0\n" + SOURCE,
            r":3:3: buffer\.capacity: expected 1",
        ),
        (
            "algorithm: es\n" + SOURCE + "actor:\n  port: 1",
            r":4:3: actor\.port: unknown key; allowed: num_workers",
        ),
        ("algorithm: ppo\nactor:\n  port: 70000\n" + SOURCE, r":3:3: actor\.port: .*got 70000"),
        ("algorithm: ppo\ntrainer:\n  epochs: many\n" + SOURCE, r":3:3: trainer\.epochs: expected"),
        (
            "algorithm: ppo\ntrainer:\n  clip: 2.0\n" + SOURCE,
            r":3:3: trainer\.clip: expected 0 to 1",
        ),
        ("algorithm: ppo\ngoal:\n  max_frames: -1\n" + SOURCE, r":3:3: goal\.max_frames: expected"),
        ("algorithm: ppo\nkeep:\n  versions: 0\n" + SOURCE, r":3:3: keep\.versions: expected 1 or"),
        (
            "algorithm: ppo\nrender:\n  function: x\n" + SOURCE,
            r":3:3: render\.function: expected mod",
        ),
        (
            "algorithm: ppo\nsource:\n  environment: X\n  num_processes: 3",
            r":2:1: trainer\.steps_per_replay: expected a multiple of the 48 environments|"
            r"trainer\.steps_per_replay: expected a multiple of the 48",
        ),
        (
            "algorithm: ppo\nactor: {num_workers: 3}\nsource: {environment: X, num_processes: 2}",
            r":2:9: actor\.num_workers: expected a divisor of source\.num_processes=2, got 3",
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
    write(tmp_path, "algorithm: dqn\n" + SOURCE)
    for command in (["train", "mine.yaml", "enable=deploy"], ["serve", "mine.yaml"]):
        assert cli.main(command) == 2
        assert "trials/mine: no such folder: give an export or a trial" in capsys.readouterr().err


class TestConfigCommand:
    def test_check_says_that_all_is_well(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = write(tmp_path, "algorithm: dqn\n" + SOURCE)
        assert cli.main(["config", "check", file, "trainer.gamma=0.5"]) == 0
        assert capsys.readouterr().out == f"{file}: dqn on CartPole-v1: valid\n"

    def test_check_says_what_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = write(tmp_path, "algorithm: dqn\ntrainer:\n    gama: 1\n" + SOURCE)
        assert cli.main(["config", "check", file]) == 2
        said = capsys.readouterr().err
        assert f"{file}:3:5: trainer.gama: unknown key, did you mean 'gamma'?" in said

    def test_check_says_all_that_is_wrong(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = "algorithm: dqn\ntrainer:\n  gamma: 7\n  learning_rate: -1\nmodel: {hidden: [x]}\n"
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

    def test_a_template_is_explained_with_its_values(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("cartpole", write(tmp_path, "algorithm: ppo\n" + SOURCE)):
            assert cli.main(["config", "explain", name]) == 0
            title, _, *rows = capsys.readouterr().out.splitlines()
            assert title.startswith(f"{name}: PPO on CartPole-v1")
            values = {row.split()[0]: row.split()[1] for row in rows if row}
            assert values["source.environment"] == "CartPole-v1"
        assert cli.main(["config", "explain", "cartpole", "--json"]) == 0
        found = {one["setting"]: one["value"] for one in json.loads(capsys.readouterr().out)}
        wanted = template.load("cartpole").parts.trainer.learning_rate
        assert found["trainer.learning_rate"] == str(wanted)

    @pytest.mark.parametrize(
        ("words", "told"),
        [
            (["CartPole-v1"], "is a task: expected an algorithm before it, such as `bray config"),
            (["cartpol"], "unknown 'cartpol', did you mean 'cartpole'?"),
            (["cartpole", "Acrobot-v1"], "cartpole has its task, CartPole-v1: expected none"),
            (["league"], "names its parts, which are written where they are used: explain an"),
            (["selfplay"], "was removed: ppo with `source.kind: matches`"),
        ],
    )
    def test_what_cannot_be_explained_is_named(
        self, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.main(["config", "explain", *words]) == 2
        assert told in capsys.readouterr().err

    def test_the_schema_is_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["config", "schema"]) == 0
        schema: Any = json.loads(capsys.readouterr().out)
        assert schema == template_schema.template_schema()
        settings = {"algorithm": "dqn", "trainer": {"gama": 1}, "source": {"environment": "x"}}
        with pytest.raises(jsonschema.ValidationError, match="gama"):
            template_schema.validate(settings)


def test_what_aliases_stand_for_is_in_no_editors_way() -> None:
    shared = {"x-small": {"hidden": [16]}, "source": {"environment": "CartPole-v1"}}
    template_schema.validate({**shared, "algorithm": "ppo"})
    template_schema.validate({**shared, "trainers": {"a": {"algorithm": "ppo"}}})
    with pytest.raises(jsonschema.ValidationError):
        template_schema.validate({**shared, "algorithm": "ppo", "y-small": {}})
