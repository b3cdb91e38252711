"""The calculator: products that are held out, settings that its file says, and whole runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Outcome
from bray.templates.loading import compose, load
from bray.templates.template import Template
from bray.text.task import FIRST_HELD_OUT_SEED
from bray.text.tasks.calculator import Calculator
from bray.text.tasks.small_models import small_model
from bray_core.errors import ConfigError
from bray_core.metrics.json_lines import curve

NAME = "bray.text.tasks.calculator:Calculator"


def trained(folder: Path, template: Template) -> Outcome:
    launch = Launch(project=folder, trial="one")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert report is None
    return outcome


def test_evaluations_ask_products_that_training_and_demonstrations_never_have() -> None:
    game = Calculator(digits=1)
    held_out = {game.reset(FIRST_HELD_OUT_SEED + seed)[0]["content"] for seed in range(200)}
    trained_on = {game.reset(seed)[0]["content"] for seed in range(2000)}
    shown = {
        one.content[0]["content"]  # type: ignore[index]
        for one in game.demonstrations(2000, np.random.default_rng(0))
    }
    assert len(held_out) > 1
    assert len(trained_on) > 70, "of 81 products nearly all are trained on"
    assert not held_out & (trained_on | shown)


@pytest.mark.parametrize("setting", [{"digits": 0}, {"digits": 4}, {"max_calls": 0}])
def test_settings_of_the_game_are_refused_by_name(setting: dict[str, int]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"^{name}: expected 1"):
        Calculator(**setting)
    with pytest.raises(ConfigError, match=r"^tool_share: expected 0 to 1, got 1\.5"):
        Calculator(tool_share=1.5)


@pytest.mark.parametrize("name", ["arithmetic", "calculator", "guess"])
def test_a_template_has_the_model_that_its_task_says(name: str) -> None:
    written = load(name)
    composed = compose("grpo", written.environment)
    part = composed.make().parts.model
    assert part == written.make().parts.model
    assert part.characters == small_model(written.environment)["model.characters"]


def test_tasks_of_other_folders_and_absent_ones_have_no_settings() -> None:
    assert small_model(NAME)["agent.max_tokens"] == 80
    for other in ("prompts.jsonl", "json:JSONDecoder", "bray.text.tasks.absent:Task", "", "a.py:B"):
        assert small_model(other) == {}


@pytest.mark.long
def test_the_template_takes_supervised_steps_then_trains_on_conversations(tmp_path: Path) -> None:
    small = [
        "supervised_until=-1",  # one supervised step is enough
        "supervised_look_every=1",
        "supervised_batch_size=8",
        "prompts_per_step=2",
        "group_size=4",
        "least_informative=0",
        "max_tokens=6",
        "goal.evaluation_episodes=4",
        "goal.max_frames=24",
    ]
    outcome = trained(tmp_path, load("calculator", small))
    assert outcome.frames == 24, "one batch of demonstrations and two rounds"
    _, sampled = curve(tmp_path / "one", "text/samples")
    assert sampled[-1] == 16


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tool_is_called_by_who_mostly_guessed(tmp_path: Path) -> None:
    outcome = trained(tmp_path, load("calculator", ["goal.episode_return=0.8"]).with_seed(1))
    assert outcome.evaluation_return >= 0.8, "demonstrations are right three times in ten"
