"""A watched episode in a real Chromium: the environment's frame, and the decision beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from viewer_visit import Visit, needs_chromium

import bray
from bray.viewer.server import Viewer

pytestmark = [needs_chromium, pytest.mark.long, pytest.mark.usefixtures("evaluated_here")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of CartPole, trained for a moment, of which one episode was watched."""
    folder = tmp_path_factory.mktemp("watched")
    small = {"steps_per_replay": 128, "hidden": [4], "num_envs": 2}
    with bray.train(
        "CartPole-v1", algorithm="ppo", frames=256, episodes=2, trial=folder / "cart", **small
    ) as agent:
        for first in (folder / "cart" / "episodes").iterdir():
            first.unlink()
        agent.watch(save=folder / "cart.webp")
    return folder


@pytest.mark.timeout(200)
def test_the_page_lets_the_policy_play_where_it_may_start_runs(
    project: Path, browser: Browser, tmp_path: Path
) -> None:
    viewer = Viewer(project, builder=tmp_path)
    visit = Visit(browser, viewer)
    page = visit.open("episodes", "cart")
    expect(page.locator("tr[data-episode]")).to_have_count(1)
    page.get_by_role("button", name="Play an episode").click()
    expect(page.locator("tr[data-episode]")).to_have_count(2, timeout=150_000)
    expect(page.locator("tr.at .name")).to_have_text(re.compile(r"watched \d+"))
    expect(page.get_by_role("button", name="Play an episode")).to_be_enabled()
    visit.open("builder")
    expect(page.locator(".node").first).to_be_visible()
    expect(page.locator("[data-run]")).to_have_count(0)  # it is no run of a file
    visit.context.close()
    viewer.close()
    assert not visit.problems


def test_the_page_shows_frame_and_decision_beside_each_other(
    project: Path, browser: Browser
) -> None:
    viewer = Viewer(project)
    visit = Visit(browser, viewer)
    page = visit.open("episodes", "cart")
    image = page.locator("img.frame")
    expect(image).to_have_attribute("data-step", "1")
    assert page.evaluate("document.querySelector('img.frame').naturalWidth") == 300
    expect(page.locator(".chance")).to_have_count(2)
    taken = page.locator(".chance.taken span").first.inner_text()
    expect(page.locator(".decision b").first).to_have_text(taken)
    expect(page.get_by_text("Value of each step")).to_be_visible()
    page.get_by_text("All that was sent").click()
    expect(page.locator(".details")).to_contain_text("observation")
    page.keyboard.press("ArrowRight")
    expect(image).to_have_attribute("data-step", "2")
    expect(page.locator("details .leaf").first).to_be_visible()  # it stays open
    visit.picture("decision-light")
    expect(page.get_by_role("button", name="Play an episode")).to_be_hidden()
    visit.context.close()
    viewer.close()
    assert not visit.problems
