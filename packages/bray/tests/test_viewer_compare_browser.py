"""Comparing trials in a real Chromium: the table, parallel coordinates, notes, facets, a report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from viewer_project import trial, write_record
from viewer_visit import Visit, needs_chromium

from bray.viewer.server import Viewer

pytestmark = [needs_chromium, pytest.mark.long]
RATES = (0.0001, 0.001, 0.01)
RETURNS = (120.0, 480.0, 60.0)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six trials as a search leaves them: three learning rates, two networks."""
    project = tmp_path_factory.mktemp("searched") / "search"
    for number in range(6):
        name, rate = f"walk-{number + 1}", RATES[number % 3]
        folder = trial(project, name, rows=30, seed=number)
        hidden, played = ("[64, 64]", "CartPole-v1") if number < 3 else ("[256]", "Acrobot-v1")
        (folder / "config.yaml").write_text(
            f"algorithm: ppo\nseed: {number}\nmodel: {{hidden: {hidden}}}\n"
            f"source: {{environment: {played}}}\ntrainer: {{learning_rate: {rate}}}\n"
        )
        result = {"evaluation_return": RETURNS[number % 3] + number}
        (folder / "result.json").write_text(json.dumps(result))
        launch = next((folder / "launches").iterdir())
        write_record(launch, "finished")
        if number < 2:
            (launch / "changes.diff").write_text(f"+++ b/game.py\n+speed = {number}\n")
    return project


@pytest.fixture
def comparing(browser: Browser, searched: Path) -> Iterator[Visit]:
    viewer = Viewer(searched)
    visit = Visit(browser, viewer)
    yield visit
    visit.context.close()
    own = viewer.address
    viewer.close()
    assert not visit.problems
    assert all(url.startswith((own, "blob:")) for url in visit.requests)


def names(page: Page) -> list[str]:
    return [
        str(row.get_attribute("data-trial")) for row in page.locator(".compared tbody tr").all()
    ]


def line(page: Page, name: str) -> Any:
    return page.locator(f".trial-line[data-trial='{name}']")


def test_settings_are_sorted_by_result_and_those_alike_are_hidden(comparing: Visit) -> None:
    page = comparing.open("compare")
    expect(page.locator(".compared tbody tr")).to_have_count(6)
    heads = page.locator(".compared thead th")
    differing = ["seed", "model.hidden", "source.environment", "trainer.learning_rate"]
    expect(heads).to_have_text(["Trial", re.compile("evaluation_return"), *differing])
    assert names(page)[:2] == ["walk-5", "walk-2"]
    page.get_by_role("button", name="trainer.learning_rate").click()
    assert names(page)[0] in ("walk-1", "walk-4")
    page.get_by_role("button", name="trainer.learning_rate").click()
    assert names(page)[0] in ("walk-3", "walk-6")
    page.get_by_label("all settings").check()
    expect(page.get_by_role("button", name="algorithm")).to_be_visible()
    page.locator("#result").select_option("frames")
    expect(page.locator(".coordinate.result .name")).to_contain_text("frames")
    axis = page.locator("[data-axis='trainer.learning_rate'] .name")
    expect(axis).to_contain_text(re.compile("learning_rate$"))
    assert "…" not in (axis.text_content() or ""), "names are whole"
    comparing.picture("compare-light")


def test_a_range_of_an_axis_keeps_the_lines_that_pass(comparing: Visit) -> None:
    page = comparing.open("compare")
    expect(page.locator(".trial-line")).to_have_count(6)
    grip = page.locator("[data-axis='evaluation_return'] .grip")
    box = grip.bounding_box()
    assert box
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] * 0.3, steps=3)
    page.mouse.up()
    expect(page.locator(".trial-line:not(.out)")).to_have_count(2)
    expect(page.locator(".compared tbody tr")).to_have_count(2)
    expect(page.get_by_text("2 of 6 trials pass")).to_be_visible()
    expect(line(page, "walk-1")).to_have_class(re.compile("out"))
    page.mouse.click(x, box["y"] + 5)
    expect(page.locator(".compared tbody tr")).to_have_count(6)
    line(page, "walk-2").dispatch_event("pointerenter")
    expect(page.get_by_text(re.compile("walk-2: .*learning_rate 0.001"))).to_be_visible()


def test_two_trials_are_told_apart_by_settings_and_code(comparing: Visit) -> None:
    page = comparing.open("compare")
    page.get_by_label("First trial").select_option("walk-1")
    page.get_by_label("Second trial").select_option("walk-2")
    settings = page.get_by_role("region", name="Settings that differ")
    expect(settings.locator("tbody tr")).to_have_count(2)
    expect(settings).to_contain_text("learning_rate")
    diff = page.locator("pre.diff")
    expect(diff.locator(".added")).to_contain_text(["+++ walk-2", "++speed = 1"])
    page.get_by_label("Second trial").select_option("walk-6")
    expect(diff.locator(".removed")).to_contain_text(["--- walk-1", "-+++ b/game.py"])


def test_tags_and_a_note_are_written_and_found(comparing: Visit, searched: Path) -> None:
    page = comparing.open("trials")
    page.get_by_role("button", name="Trial").click()
    page.locator("tbody tr", has_text="walk-3").click()
    expect(page.get_by_role("heading", name="Notes on walk-3")).to_be_visible()
    page.get_by_label("Tags").fill("odd, to repeat")
    page.get_by_label("Note", exact=True).fill("Falls at once. <b>Why?</b>")
    page.get_by_role("button", name="Save notes").click()
    expect(page.get_by_text("Saved.")).to_be_visible()
    expect(page.locator("tr", has_text="walk-3").locator(".tag")).to_have_text(["odd", "to repeat"])
    assert json.loads((searched / "walk-3" / "notes.json").read_text())["text"].startswith("Falls")
    page.locator("#filter").fill("repeat")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Tags").fill("mine")
    (searched / "walk-3" / "notes.json").write_text('{"tags": ["theirs"], "text": ""}')
    expect(page.locator("tbody tr")).to_have_count(0)  # the filter lets it go, what is typed stays
    page.get_by_role("button", name="Save notes").click()
    expect(page.locator(".notes")).to_contain_text("changed meanwhile")


def test_facets_draw_environments_apart_and_seeds_are_one_band(comparing: Visit) -> None:
    page = comparing.open("trials")
    page.get_by_role("button", name="all", exact=True).click()
    returns = page.locator("figure", has=page.locator("figcaption:has-text('episode_return')"))
    expect(returns.locator("path.line")).to_have_count(6)
    page.get_by_label("Facets").select_option("environment")
    expect(returns).to_have_count(2)
    expect(returns.nth(0).locator("figcaption")).to_contain_text("Acrobot-v1")
    expect(returns.nth(0).locator("path.line")).to_have_count(3)
    page.get_by_label("Seeds").select_option("iqm")
    expect(returns.nth(1).locator("path.line")).to_have_count(1)
    expect(returns.nth(1).locator("path.band")).to_have_count(1)
    comparing.picture("facets-light")


def test_a_report_is_saved_and_opens_from_the_disk(
    comparing: Visit, browser: Browser, tmp_path: Path
) -> None:
    page = comparing.open("compare")
    with page.expect_download() as download:
        page.get_by_role("link", name="Save a report").click()
    file = tmp_path / download.value.suggested_filename
    assert file.suffix == ".html"
    download.value.save_as(file)
    context = browser.new_context(offline=True, viewport={"width": 400, "height": 800})
    report = context.new_page()
    asked: list[str] = []
    report.on("request", lambda request: asked.append(request.url))
    report.goto(file.as_uri())
    expect(report.get_by_role("heading", level=1)).to_have_text("search: 6 trials")
    expect(report.locator("svg path.line").first).to_be_visible()
    assert asked == [file.as_uri()]
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert report.evaluate(over) <= 0
    context.close()
