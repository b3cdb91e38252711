"""Templates of named parts: what is read, the defaults of wires, overrides, the round trip."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import named_parts
import pytest
import template_schema
import yaml

from bray.sources.config import FrameSourceConfig, ServingActorConfig
from bray.sources.multi_agent_config import MatchesSourceConfig, MultiAgentSourceConfig
from bray.templates import loading
from bray.templates.composition import Composition
from bray.templates.part_settings import DatasetConfig, MixtureConfig
from bray.training.algorithm import load_algorithm
from bray.viewer.templates.template_files import TemplateFiles
from bray.viewer.templates.template_text import inspect_template, template_yaml
from bray_buffer import BufferConfig
from bray_core import cli
from bray_core.errors import ConfigError


def read(text: str) -> Composition:
    made = loading.parse(text, "mine.yaml").composition
    assert made is not None
    return made


def load(folder: Path, text: str, *overrides: str) -> Composition:
    (folder / "mine.yaml").write_text(text)
    made = loading.load(str(folder / "mine.yaml"), overrides).composition
    assert made is not None
    return made


@pytest.mark.parametrize("name", named_parts.ALL)
def test_what_is_written_out_reads_as_the_same_composition(name: str) -> None:
    made = read(named_parts.ALL[name])
    written = made.to_mapping()
    assert read(yaml.safe_dump(written, sort_keys=False)) == made
    template_schema.validate(written)
    json.dumps(written)


@pytest.mark.parametrize("name", named_parts.ALL)
def test_the_schema_takes_what_the_loader_takes(name: str) -> None:
    written = yaml.safe_load(named_parts.ALL[name])
    template_schema.validate(written)


@pytest.mark.parametrize(
    "wrong",
    [
        "trainers: {a: {algorithm: ppo, epoch: 3}}",
        "trainers: {a: {algorithm: ppo, epochs: 0}}",
        "trainers: {a: {epochs: 3}}",
        "trainers: {A: {algorithm: ppo}}",
        "trainers: {a: {algorithm: pppo}}",
        "sources: {a: {kind: matches, environment: go_v5, opponents: {rule: best}}}",
        "buffers: {a: {kind: dataset}}",
        "buffers: {a: {kind: heap, capacity: 3}}",
        "trainrs: {}\nmodels: {}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(wrong: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        template_schema.validate(yaml.safe_load(wrong))
    with pytest.raises(ConfigError):
        read(wrong)


def test_a_simulator_with_two_policies_and_two_algorithms() -> None:
    made = read(named_parts.HUNT)
    hunter, runner = made.learners["hunter"], made.learners["runner"]
    assert (hunter.algorithm, hunter.model, runner.algorithm) == ("ppo", "hunter", "impala")
    assert (hunter.parts.trainer.steps_per_replay, runner.parts.agent.segment_length) == (3840, 64)
    assert runner.parts.model.memory_size == 64
    game = made.sources["game"]
    assert isinstance(game.config, FrameSourceConfig)
    assert hunter.parts.source == runner.parts.source == game.config
    assert (game.config.num_processes, game.config.num_envs) == (4, 48)
    assert game.agents == {"hunter_*": "hunter", "runner_*": "runner"}
    assert made.models["runner"].spaces == made.models["hunter"].spaces
    assert made.models["runner"].spaces is not None
    assert made.main is hunter
    assert isinstance(hunter.make(), load_algorithm("ppo"))
    assert made.learner_of("runner") is runner


def test_a_league_has_learners_and_a_script() -> None:
    made = read(named_parts.LEAGUE)
    battle = made.sources["battle"]
    assert isinstance(battle.config, MatchesSourceConfig)
    assert battle.config.sides == {"red": "red_*", "blue": "blue_*"}
    assert battle.config.opponents.rule == "league"
    assert (battle.agents, battle.actor) == ({}, ServingActorConfig(num_workers=2, port=7300))
    medium = made.agents["medium"]
    assert (medium.model, medium.play, medium.is_frozen) == (None, "my_game:medium_script", True)
    assert (made.goal.win_rate, made.goal.against) == (0.95, "medium")
    assert made.learner_of("medium") is None
    assert made.learners["rival"].parts.source is battle.config


def test_demonstrations_come_from_a_data_set() -> None:
    made = read(named_parts.DRIVER)
    driver = made.learners["driver"]
    assert driver.inputs == {"demonstrations": "expert"}
    assert made.buffers["expert"].config == DatasetConfig(
        origin="recordings", path="recorded", batch_size=512
    )
    assert driver.parts.demonstrations == "recorded"
    assert made.sources["road"].agents == {"*": "driver"}


def test_models_and_agents_that_nobody_declares_are_made() -> None:
    made = read(named_parts.TAG)
    assert [*made.models] == [*made.agents] == ["wolf", "sheep"]
    field = made.sources["field"]
    assert isinstance(field.config, MultiAgentSourceConfig)
    assert (field.config.num_processes, field.config.is_atari) == (0, False)
    assert field.config.title == "simple_tag_v3"
    assert made.renders["field"].source == "field"
    assert made.learners["wolf"].parts.agent == load_algorithm("ppo").of("x-v0").parts.agent


def test_a_short_template_whose_source_has_a_kind_has_the_usual_names() -> None:
    made = read(named_parts.FOUR)
    assert ([*made.learners], [*made.sources]) == (["policy"], ["source"])
    assert made.sources["source"].config.opponents.latest_share == 0.2
    assert made.title == "ppo on connect_four_v3"


def test_a_mixture_is_filled_through_its_replay() -> None:
    made = read(named_parts.MIXED)
    assert made.learners["hopper"].inputs == {"experience": "both"}
    assert made.agents["hopper"].buffer == "played"
    assert made.learners["hopper"].parts.buffer.capacity == 20_000
    assert made.buffers["both"].config == MixtureConfig(of={"played": 0.75, "expert": 0.25})
    assert (made.buffers["played"].kind, made.buffers["both"].kind) == ("own", "mixture")


def test_an_agent_plays_into_the_only_buffer_of_a_mixture_that_takes_something() -> None:
    made = read(named_parts.MIXED.replace("agents: {hopper: {buffer: played}}\n", ""))
    assert made.agents["hopper"].buffer == "played"


def test_a_queue_may_be_said_in_full() -> None:
    text = named_parts.TAG + "buffers: {wolf: {kind: queue, batch_steps: 1024, capacity: 64}}\n"
    made = read(text)
    assert made.learners["wolf"].inputs == {"experience": "wolf"}
    assert made.buffers["wolf"].config == BufferConfig(batch_steps=1024, capacity=64)
    assert made.agents["wolf"].buffer == "wolf"


def test_singular_parts_beside_named_ones_are_those_of_all() -> None:
    text = """\
algorithm: dqn
model: {hidden: [32]}
sources:
  easy: {environment: CartPole-v1, num_envs: 2}
  hard: {environment: Acrobot-v1, num_envs: 2}
actor: {num_workers: 2}
"""
    made = read(text)
    assert [*made.models] == [*made.learners] == [*made.agents] == ["policy"]
    assert made.learners["policy"].parts.model.hidden == (32,)
    assert {one.actor.num_workers for one in made.sources.values()} == {2}
    assert made.learners["policy"].parts.source.environment == "CartPole-v1"


def test_gamecores_of_an_environment_have_processes_by_either_name() -> None:
    text = "algorithm: ppo\nsource: {kind: gamecores, environment: CartPole-v1, count: 2, lanes: 8}"
    config = read(text).sources["source"].config
    assert (config.num_processes, config.num_envs) == (2, 8)
    one = read("algorithm: ppo\nsource: {kind: gamecores, environment: CartPole-v1}")
    assert one.sources["source"].config.num_processes == 1


def test_a_frozen_model_plays_and_nobody_trains_it(tmp_path: Path) -> None:
    text = """\
models: {old: {load: trials/old}}
trainers: {new: {algorithm: ppo, steps_per_replay: 512}}
sources: {duel: {kind: matches, environment: connect_four_v3, num_envs: 8}}
goal: {win_rate: 0.6, against: old}
"""
    made = read(text)
    assert made.agents["old"].load == made.models["old"].load == "trials/old"
    assert made.sources["duel"].agents == {"*": "new"}
    assert read(yaml.safe_dump(made.to_mapping())) == made


def test_an_algorithm_gives_its_defaults_for_the_task_that_it_plays() -> None:
    text = "trainers: {pong: {algorithm: ppo}}\nsources: {game: {environment: Pong}}"
    parts = read(text).learners["pong"].parts
    wanted = load_algorithm("ppo").of("Pong").parts
    assert (parts.trainer, parts.source, parts.actor) == (
        wanted.trainer,
        wanted.source,
        wanted.actor,
    )


# Overrides.


def test_a_setting_alone_is_found_where_only_one_part_has_it(tmp_path: Path) -> None:
    made = load(tmp_path, named_parts.TAG, "num_envs=4", "seed=7", "goal.agent=sheep")
    assert (made.sources["field"].config.num_envs, made.seed) == (4, 7)
    assert made.main.name == "sheep"
    names = "trainers.wolf.learning_rate, trainers.sheep.learning_rate"
    with pytest.raises(ConfigError, match=f"learning_rate: expected one of {names}"):
        load(tmp_path, named_parts.TAG, "learning_rate=1e-4")
    with pytest.raises(ConfigError, match="num_env: unknown setting, did you mean 'num_envs'"):
        load(tmp_path, named_parts.TAG, "num_env=4")


def test_dotted_overrides_win_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAY_TRAINERS__WOLF__LEARNING_RATE", "1e-4")
    monkeypatch.setenv("BRAY_TRAINERS__SHEEP__EPOCHS", "3")
    monkeypatch.setenv("BRAY_MODELS__SHEEP__HIDDEN", "[8]")
    made = load(tmp_path, named_parts.TAG, "trainers.sheep.epochs=2")
    assert made.learners["wolf"].parts.trainer.learning_rate == 1e-4
    assert made.learners["sheep"].parts.trainer.epochs == 2
    assert made.learners["sheep"].parts.model.hidden == (8,)
    assert made.learners["wolf"].model == "wolf", "a model of its own, beside the declared one"


def test_a_singular_key_means_the_only_part(tmp_path: Path) -> None:
    made = load(tmp_path, named_parts.DRIVER, "trainer.epochs=2", "source.num_envs=8")
    assert made.learners["driver"].parts.trainer.epochs == 2
    names = "trainers.wolf.epochs, trainers.sheep.epochs"
    with pytest.raises(ConfigError, match=rf"trainer\.epochs: expected one of {names}"):
        load(tmp_path, named_parts.TAG, "trainer.epochs=2")


def test_settings_reach_the_only_parts_of_a_short_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAY_TRAINERS__POLICY__CLIP", "0.1")
    wanted = ["num_envs=2", "sources.source.sides={}", "model.hidden=[8]", "epochs=2"]
    made = load(tmp_path, named_parts.FOUR, *wanted)
    policy = made.learners["policy"]
    assert (policy.parts.trainer.clip, policy.parts.trainer.epochs) == (0.1, 2)
    assert (policy.parts.model.hidden, made.sources["source"].config.num_envs) == ((8,), 2)
    other = load(tmp_path, named_parts.FOUR, "trainers.policy.algorithm=appo")
    assert other.learners["policy"].algorithm == "appo"


def test_another_environment_needs_one_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(named_parts.DRIVER)
    made = loading.load(str(path), environment="CartPole-v1")
    assert (made.environment, made.goal.episode_return) == ("CartPole-v1", None)
    path.write_text("algorithm: ppo\nsources: {a: {environment: A-v0}, b: {environment: B-v0}}")
    with pytest.raises(ConfigError, match=r"--env: expected .* one source, got several"):
        loading.load(str(path), environment="CartPole-v1")


# Kinds of one's own.


OWN = """\
from dataclasses import dataclass
from bray.sources.source_kind import SourceKind, SourceKindConfig

@dataclass(frozen=True, kw_only=True)
class Config(SourceKindConfig):
    num_envs: int = 4

class Arena(SourceKind):
    Config = Config

    def spaces(self):
        return {}

    def runner(self, seats, **play):
        return None

class Bare:
    pass
"""


def test_a_source_of_your_own_has_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "arena.py").write_text(OWN)
    text = f"algorithm: ppo\nsource: {{kind: '{tmp_path}/arena.py:Arena', environment: pit}}"
    made = load(tmp_path, text)
    assert made.sources["source"].config.environment == "pit"
    assert made.learners["policy"].parts.source.num_envs == 4
    with pytest.raises(ConfigError, match=r"sources\.source\.kind: .* code of yours, which is not"):
        read(text)
    with pytest.raises(ConfigError, match=r"expected a subclass of .*SourceKind, got .*Bare"):
        load(tmp_path, text.replace(":Arena", ":Bare"))
    hindsight = text.replace("ppo", "dqn") + "\nbuffer: {hindsight: 2}"
    with pytest.raises(ConfigError, match="DQN asks for `frame_skip`, which its settings do not"):
        load(tmp_path, hindsight)


# Commands and the builder.


def test_the_commands_know_both_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(named_parts.HUNT)
    assert cli.main(["config", "check", str(tmp_path / "mine.yaml")]) == 0
    assert "mine.yaml: ppo, impala on hunt: valid" in capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(named_parts.HUNT.replace("agent: hunter,", ""))
    assert cli.main(["config", "check", str(tmp_path / "mine.yaml")]) != 0
    told = capsys.readouterr().err
    assert "mine.yaml:16:1: goal.agent: missing: 2 learn: expected one of hunter, runner" in told


def test_a_trial_of_named_parts_is_a_template(tmp_path: Path) -> None:
    made = read(named_parts.TAG)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(made.to_mapping()))
    assert loading.load(str(tmp_path)).composition == made


def test_the_builder_shows_named_parts_as_text(tmp_path: Path) -> None:
    text = named_parts.TAG
    shown = inspect_template(text)
    assert (shown["problems"], shown["form"]) == ([], None)
    assert shown["settings"] == yaml.safe_load(text)
    assert yaml.safe_load(template_yaml(yaml.safe_load(text), text)) == yaml.safe_load(text)
    files = TemplateFiles(tmp_path)
    files.save("tag.yaml", text, None)
    assert files.open("tag.yaml")["text"] == text
    wrong = inspect_template(text.replace('": wolf', '": wulf'))["problems"]
    assert [(one["key"], one["line"]) for one in wrong] == [("sources.field.agents.adversary_*", 8)]
