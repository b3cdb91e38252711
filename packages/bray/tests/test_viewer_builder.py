"""The builder in a real Chromium: from a template to a file, a run, and its end."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page, expect
from viewer_visit import Visit, needs_chromium

from bray.templates import loading as template
from bray.viewer.server import Viewer
from bray_core import cli
from bray_core.trials.trial import Trial

pytestmark = [needs_chromium, pytest.mark.long]


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("building")
    viewer = Viewer(folder / "trials", builder=folder)
    yield viewer
    viewer.close()


@pytest.fixture
def folder(building: Viewer) -> Path:
    assert building._builder._drafts is not None
    return building._builder._drafts.folder


@pytest.fixture
def making(browser: Browser, building: Viewer) -> Iterator[Visit]:
    visit = Visit(browser, building)
    yield visit
    visit.context.close()
    assert not visit.problems


def field(page: Page, key: str) -> Any:
    return page.locator(f"[id='set-{key}']")


def error(page: Page, key: str) -> Any:
    return page.locator(f"[id='set-{key}-error']")


def yaml_of(page: Page) -> Any:
    return page.locator("#yaml")


def test_from_a_template_to_a_file_that_is_valid(
    making: Visit, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = making.open("builder")
    expect(field(page, "source.environment")).to_have_value("CartPole-v1")
    making.picture("builder-light")
    rate = page.get_by_label("learning_rate", exact=True)
    assert rate.get_attribute("placeholder") == "0.0003"
    expect(rate).to_have_accessible_description(re.compile("Adam's step size.*above 0"))
    rate.fill("fast")
    expect(error(page, "trainer.learning_rate")).to_have_text(
        "expected a number or {start, end, frames, shape}, got 'fast'"
    )
    expect(rate).to_have_attribute("aria-invalid", "true")
    expect(rate).to_have_accessible_description(re.compile("expected a number or .*, got 'fast'"))
    field(page, "keep.versions").fill("0")
    field(page, "model.hidden").fill("32, 0")
    expect(page.get_by_role("heading", name="3 problems")).to_be_visible()
    expect(error(page, "model.hidden")).to_have_text("expected numbers of 1 or more, got (32, 0)")
    making.picture("builder-errors-light")
    page.get_by_label("File").fill("walker.yaml")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#builder-news")).to_contain_text("fix the problems first")
    expect(field(page, "model.hidden")).to_be_focused()  # the first by line
    field(page, "model.hidden").fill("32 16")
    field(page, "keep.versions").fill("")
    rate.fill("2e-4")
    expect(page.locator(".problems")).to_be_hidden()
    expect(yaml_of(page)).to_have_value(re.compile(r"hidden: \[32, 16\][^#]*learning_rate: 0.0002"))
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#builder-news")).to_have_text("Saved walker.yaml.")
    written = yaml.safe_load((folder / "walker.yaml").read_text())
    assert written == {
        "algorithm": "ppo",
        "model": {"hidden": [32, 16]},
        "source": {"environment": "CartPole-v1"},
        "trainer": {"steps_per_replay": 512, "minibatch_size": 128, "learning_rate": 2e-4},
        "goal": {"episode_return": 475, "evaluate_at": 400, "max_frames": 500_000},
    }
    assert cli.main(["config", "check", str(folder / "walker.yaml")]) == 0
    assert "ppo on CartPole-v1: valid" in capsys.readouterr().out


@pytest.mark.long
def test_another_algorithm_has_another_form(making: Visit, folder: Path) -> None:
    page = making.open("builder")
    field(page, "trainer.epochs").fill("4")
    field(page, "trainer.gamma").fill("0.9")
    expect(yaml_of(page)).to_have_value(re.compile("gamma: 0.9"))
    field(page, "algorithm").select_option("dqn")
    # Those of the template that are no defaults, and the one that was changed here.
    removed = "trainer.steps_per_replay, trainer.epochs, trainer.minibatch_size"
    expect(page.locator("#builder-news")).to_have_text(f"dqn has no {removed}: removed.")
    expect(field(page, "buffer.capacity")).to_be_visible()
    expect(field(page, "trainer.epochs")).to_have_count(0)
    expect(field(page, "trainer.gamma")).to_have_value("0.9")
    field(page, "buffer.prioritized").select_option("true")
    field(page, "buffer.capacity").fill("5000")
    expect(yaml_of(page)).to_have_value(re.compile(r"algorithm: dqn\n[^#]*prioritized: true"))
    page.get_by_role("button", name="buffer.capacity: reset to the default").click()
    expect(yaml_of(page)).not_to_have_value(re.compile("capacity"))
    expect(field(page, "buffer.capacity")).to_be_focused()
    # A few tasks have defaults of their own: the form has them, and typing goes on.
    field(page, "algorithm").select_option("alphazero")
    expect(field(page, "trainer.noise_alpha").or_(field(page, "agent.noise_alpha"))).to_be_visible()
    before = field(page, "model.hidden").get_attribute("placeholder") or ""
    field(page, "source.environment").fill("tic-tac-toe")
    expect(field(page, "model.hidden")).not_to_have_attribute("placeholder", before)
    expect(field(page, "source.environment")).to_be_focused()


@pytest.mark.long
def test_text_and_form_are_in_step(making: Visit, folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "# my run\nalgorithm: dqn # which\nsource:\n  environment: CartPole-v1\n"
    )
    page = making.open("builder")
    page.get_by_label("Open").select_option("file/mine.yaml")
    expect(page.locator("#builder-news")).to_have_text("Opened mine.yaml.")
    text = yaml_of(page)
    text.fill(text.input_value() + "trainer:\n  gamma: 0.5\n  bath_size: 3\n")
    expect(field(page, "trainer.gamma")).to_have_value("0.5")
    problem = page.get_by_role("button", name="line 7: trainer.bath_size: unknown key")
    problem.click()  # has no field: its line is selected
    expect(text).to_be_focused()
    selected = "e => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert text.evaluate(selected) == "  bath_size: 3"
    text.fill("algorithm: [")
    expect(field(page, "trainer.gamma")).to_be_disabled()
    expect(page.locator(".problems")).to_contain_text("not valid YAML")
    text.fill("# my run\nalgorithm: dqn # which\nsource: {environment: X}\nseed: 3\n")
    expect(field(page, "seed")).to_have_value("3")
    field(page, "seed").fill("4")
    expect(text).to_have_value("# my run\nalgorithm: dqn\nseed: 4\nsource:\n  environment: X\n")


@pytest.mark.long
def test_a_draft_outlives_a_look_at_another_page(making: Visit) -> None:
    page = making.open("builder")
    field(page, "seed").fill("77")
    expect(yaml_of(page)).to_have_value(re.compile("seed: 77"))
    page.get_by_label("File").fill("another.yaml")
    page.get_by_role("link", name="Trials").click()
    expect(page.locator("nav a[aria-current]")).to_have_text("Trials")
    page.reload()
    page.get_by_role("link", name="Builder").click()
    expect(field(page, "seed")).to_have_value("77")
    expect(page.get_by_label("File")).to_have_value("another.yaml")


@pytest.mark.long
def test_what_was_not_saved_can_be_had_again(making: Visit) -> None:
    page = making.open("builder")
    field(page, "seed").fill("5")
    expect(yaml_of(page)).to_have_value(re.compile("seed: 5"))
    page.get_by_label("Open").select_option("template/atari")
    expect(field(page, "source.environment")).to_have_value("ALE/Pong-v5")
    page.get_by_role("button", name="Back to the unsaved reinforcement.yaml").click()
    expect(field(page, "seed")).to_have_value("5")
    expect(page.get_by_label("File")).to_have_value("reinforcement.yaml")


@pytest.mark.long
def test_a_file_that_changed_on_disk_is_told(making: Visit, folder: Path) -> None:
    file = folder / "shared.yaml"
    text = "algorithm: dqn\nsource:\n  environment: CartPole-v1\n"
    file.write_text(text)
    page = making.open("builder")
    page.get_by_label("Open").select_option("file/shared.yaml")
    field(page, "seed").fill("2")
    expect(yaml_of(page)).to_have_value(re.compile("seed: 2"))
    file.write_text(text + "seed: 9\n")
    page.get_by_role("button", name="Save").click()
    news = page.locator("#builder-news")
    expect(news).to_contain_text("shared.yaml was changed on disk since it was opened")
    assert file.read_text() == text + "seed: 9\n"
    page.get_by_label("File").fill("../shared.yaml")
    page.get_by_role("button", name="Save").click()
    expect(news).to_contain_text("expected a name of letters")
    page.get_by_label("File").fill("copy.yaml")
    page.get_by_role("button", name="Save").click()
    expect(news).to_have_text("Saved copy.yaml.")
    assert template.load(str(folder / "copy.yaml")).seed == 2


def test_a_run_is_started_watched_and_stopped(making: Visit, folder: Path) -> None:
    page = making.open("builder")
    field(page, "goal.evaluate_at").fill("1e9")  # it would go on and on
    field(page, "goal.max_frames").fill("100000000")
    page.get_by_label("File").fill("watched.yaml")
    page.get_by_role("button", name="Start").click()
    run = page.locator("[data-run=watched]")
    expect(run.locator(".state")).to_have_text("running")
    assert (folder / "watched.yaml").exists()  # saved first
    expect(run.locator("pre")).to_contain_text(re.compile(r"\w"))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#builder-news")).to_contain_text("was started here already")
    making.picture("builder-run-light")
    trial = Trial(folder / "trials" / "watched")
    record = trial.newest()
    assert record is not None
    ended = os.pidfd_open(record.pid)
    run.get_by_role("link", name="loop").click()
    expect(page.get_by_role("heading", name="watched")).to_be_visible()
    page.get_by_role("link", name="Builder").click()
    page.get_by_role("button", name="Stop watched").click()
    expect(run.locator(".state")).to_have_text("ended")
    expect(run).to_contain_text("stopped: Start resumes it")
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    assert trial.state == "interrupted"


def test_it_is_off_unless_it_was_turned_on(browser: Browser, tmp_path: Path) -> None:
    viewer = Viewer(tmp_path)
    visit = Visit(browser, viewer)
    page = visit.open("builder")
    expect(page.get_by_text("The builder is off")).to_be_visible()
    expect(page.locator("pre")).to_have_text(f"bray view {tmp_path} --builder .")
    visit.picture("builder-off")
    visit.context.close()
    viewer.close()
    assert not visit.problems


@pytest.mark.long
def test_keys_reach_the_first_problem_and_save(making: Visit, folder: Path) -> None:
    page = making.open("builder")
    field(page, "trainer.clip").fill("5")
    expect(page.locator(".problems li")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("e")
    expect(field(page, "trainer.clip")).to_be_focused()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("0.1")
    page.keyboard.press("Escape")
    page.get_by_label("File").fill("keys.yaml")
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.locator("#builder-news")).to_have_text("Saved keys.yaml.")
    assert template.load(str(folder / "keys.yaml")).parts.trainer.clip == 0.1


@pytest.mark.long
def test_every_field_has_a_label_in_the_dark_and_in_a_narrow_window(
    browser: Browser, building: Viewer
) -> None:
    visit = Visit(browser, building, color_scheme="dark")
    page = visit.open("builder")
    expect(field(page, "trainer.learning_rate")).to_be_visible()
    fields = "[...document.querySelectorAll('main input, main select, main textarea')]"
    assert page.evaluate(f"{fields}.filter((one) => !one.labels.length).length") == 0
    visit.picture("builder-dark")
    field(page, "trainer.clip").fill("5")
    expect(error(page, "trainer.clip")).to_be_visible()
    visit.picture("builder-errors-dark")
    page.set_viewport_size({"width": 420, "height": 800})
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(over) <= 0
    visit.picture("builder-narrow")
    visit.context.close()
    assert not visit.problems
