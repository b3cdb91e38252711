"""The builder's graph in a real Chromium: from an empty folder to a policy that is served."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page, expect
from viewer_visit import Visit, needs_chromium

from bray.viewer.server import Viewer

pytestmark = [needs_chromium, pytest.mark.long]


@pytest.fixture
def making(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """The builder's page of an empty folder."""
    viewer = Viewer(tmp_path / "trials", builder=tmp_path)
    visit = Visit(browser, viewer)
    yield visit
    visit.context.close()
    viewer.close()
    assert not visit.problems


def part(page: Page, name: str) -> Any:
    return page.locator(f"[data-part='{name}']")


def wire(page: Page, start: str, end: str) -> Any:
    return page.locator(f"[data-wire='{start} {end}']")


def field(page: Page, key: str) -> Any:
    return page.locator(f"[id='set-{key}']")


def drag(page: Page, start: str, end: str) -> None:
    """Pull a line from a part's port to another part."""
    expect(part(page, end)).to_be_visible()  # as drawn after the change before
    part(page, start).locator(".port").hover()
    page.mouse.down()
    part(page, end).hover(position={"x": 60, "y": 30})
    page.mouse.up()


@pytest.mark.timeout(400)
def test_from_an_empty_folder_to_a_served_policy(making: Visit, tmp_path: Path) -> None:
    page = making.open("builder")
    expect(part(page, "trainers.policy")).to_be_visible()
    page.get_by_label("Open").select_option("new/template")
    expect(page.locator("#builder-news")).to_contain_text("add a source and a trainer")
    expect(page.locator(".node")).to_have_count(0)
    page.get_by_label("Add").select_option("source")
    expect(field(page, "sources.source.environment")).to_have_value("CartPole-v1")
    page.get_by_label("Add").select_option("trainer")
    expect(part(page, "buffers.policy")).to_have_class(re.compile("implied"))
    field(page, "trainers.policy.steps_per_replay").fill("64")
    field(page, "trainers.policy.minibatch_size").fill("32")
    page.get_by_label("Add").select_option("model")
    expect(part(page, "models.policy_2")).not_to_have_class(re.compile("implied"))
    page.get_by_label("Name", exact=True).fill("net")
    page.get_by_role("button", name="Rename").click()
    drag(page, "trainers.policy", "models.net")
    expect(wire(page, "trainers.policy", "models.net")).not_to_have_class(re.compile("implied"))
    page.get_by_role("button", name="Whole template").click()
    field(page, "goal.max_frames").fill("600")
    expect(page.locator("#yaml")).to_have_value(re.compile("max_frames: 600"))
    expect(page.locator(".problems")).to_be_hidden()
    page.get_by_label("File").fill("walker.yaml")
    page.get_by_role("button", name="Start").click()
    trained = page.locator("[data-run='walker']")
    expect(trained).to_contain_text("frames in", timeout=250_000)
    expect(trained.locator(".state")).to_have_text("ended", timeout=60_000)
    assert yaml.safe_load((tmp_path / "walker.yaml").read_text()) == {
        "sources": {"source": {"environment": "CartPole-v1"}},
        "trainers": {
            "policy": {
                "algorithm": "ppo",
                "model": "net",
                "steps_per_replay": 64,
                "minibatch_size": 32,
            }
        },
        "models": {"net": {}},
        "goal": {"max_frames": 600},
    }
    flow = wire(page, "trainers.policy", "models.net").locator(".wire-figure")
    expect(flow).to_have_text(re.compile(r"version \d"))
    making.picture("builder-graph-light")
    page.get_by_role("button", name="Serve").first.click()
    served = page.locator("[data-run='serve walker']")
    expect(served).to_contain_text(re.compile(r"listening on tcp://127\.0\.0\.1:\d+"))
    address = re.search(r"tcp://[\d.:]+", served.locator("pre").inner_text())
    assert address is not None
    played = subprocess.run(
        [
            *(sys.executable, "-m", "bray_core.cli", "play", "CartPole-v1"),
            *("--address", address[0], "--episodes", "1"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    assert "over 1 episode (lowest" in played.stdout
    page.get_by_role("button", name="Stop serve walker").click()
    expect(served.locator(".state")).to_have_text("ended")


def test_two_policies_are_joined_by_keyboard_and_problems_are_at_their_part(
    making: Visit,
) -> None:
    page = making.open("builder")
    expect(part(page, "sources.source")).to_be_visible()
    page.get_by_label("Add").select_option("trainer")
    expect(part(page, "trainers.policy_2")).to_have_attribute("aria-pressed", "true")
    expect(part(page, "models.policy_2")).to_contain_text("1 problem")  # nobody plays it
    making.picture("builder-graph-problem-light")
    part(page, "agents.policy_2").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="agent policy_2")).to_be_visible()
    page.get_by_label("Connect to").select_option("sources.source")
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(wire(page, "sources.source", "agents.policy_2")).to_be_visible()
    expect(part(page, "models.policy_2")).not_to_contain_text("problem")
    name = page.get_by_label("Name of sources.source → agents.policy_2")
    name.fill("second_*")
    name.press("Enter")
    expect(page.locator("#yaml")).to_have_value(re.compile(r"second_\*: policy_2"))
    page.get_by_role("button", name="Disconnect sources.source → agents.policy_2").click()
    expect(wire(page, "sources.source", "agents.policy_2")).to_have_count(0)
    page.get_by_role("button", name="models.policy_2: nobody plays it").click()
    expect(page.get_by_role("heading", name="model policy_2")).to_be_visible()
    over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.evaluate(over) <= 0


@pytest.mark.timeout(300)
def test_figures_are_on_the_wires_while_a_run_trains(making: Visit, tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text(
        "algorithm: ppo\nmodel: {hidden: [4]}\n"
        "source: {environment: CartPole-v1, num_envs: 2}\n"
        "trainer: {steps_per_replay: 64, minibatch_size: 64, epochs: 1}\n"
        "goal: {episode_return: 100000, max_frames: 1000000000}\n"
    )
    page = making.open("builder")
    expect(part(page, "trainers.policy")).to_be_visible()
    page.get_by_label("Open").select_option("file/long.yaml")
    expect(page.locator("#builder-news")).to_contain_text("Opened long.yaml")
    page.get_by_role("button", name="Start").click()
    run = page.locator("[data-run='long']")
    flow = wire(page, "trainers.policy", "models.policy").locator(".wire-figure")
    expect(flow).to_have_text(re.compile(r"version \d"), timeout=200_000)
    before = flow.text_content() or ""
    expect(flow).not_to_have_text(before)  # it goes on
    expect(run.locator(".state")).to_have_text("running")
    steps = wire(page, "sources.source", "agents.policy").locator(".wire-figure")
    expect(steps).to_have_text(re.compile(r"steps/s"))
    page.get_by_role("button", name="Stop long").click()
    expect(run.locator(".state")).to_have_text("ended")
