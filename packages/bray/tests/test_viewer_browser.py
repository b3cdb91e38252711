"""The viewer's page in a real Chromium, clicked through.

`VIEWER_SCREENSHOTS=folder` keeps screenshots there.
"""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from viewer_project import HOSTILE, append, trial
from viewer_visit import Visit, needs_chromium

from bray.viewer.server import Viewer

pytestmark = needs_chromium
TOKEN = "a token of this test"


def curves(page: Page, metric: str) -> Any:
    return page.locator("figure", has=page.locator(f"figcaption:has-text('{metric}')"))


def test_trials_are_chosen_and_their_curves_drawn(visit: Visit) -> None:
    page = visit.open("trials")
    returns = curves(page, "actor/episode_return")
    expect(returns.locator("path.line")).to_have_count(5)  # the five with the latest news
    page.get_by_role("button", name="none").click()
    expect(page.get_by_text("Select trials on the left")).to_be_visible()
    for name in ("ppo-1", "ppo-2"):
        page.locator("tbody tr", has_text=name).click()
    expect(returns.locator("path.line")).to_have_count(2)
    expect(page.locator("tr", has_text="ppo-1").locator(".swatch")).to_have_class("swatch c0")
    page.get_by_role("button", name="all", exact=True).click()
    expect(returns.locator("path.line")).to_have_count(6)  # pixels has recorded nothing
    expect(page.get_by_text("7 of 7, 7 selected")).to_be_visible()
    visit.picture("trials-light")


@pytest.mark.long
def test_the_filter_and_the_heads_of_columns_order_the_table(visit: Visit) -> None:
    page = visit.open("trials")
    page.locator("#filter").fill("ppo crash")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("#filter").fill("")
    page.get_by_role("button", name="Trial").click()
    names = page.locator("td.name")
    expect(names.first).to_have_text(HOSTILE)
    page.get_by_role("button", name="Trial ↑").click()
    expect(names.first).to_have_text("ppo-3")


@pytest.mark.long
def test_a_note_that_is_being_written_stays_with_its_trial(visit: Visit) -> None:
    """The order of the trials changes whenever one of them has news."""
    page = visit.open("trials")
    heading = page.get_by_role("heading", name="Notes on")
    shown = heading.text_content()
    assert shown
    page.locator("#note").fill("a warm start")
    for _ in range(2):
        page.get_by_role("button", name=re.compile("^Trial")).click()
        expect(heading).to_have_text(shown)
        expect(page.locator("#note")).to_have_value("a warm start")
    page.locator("#note").fill("")


@pytest.mark.long
def test_numbers_that_differ_in_their_last_digit_have_an_axis(visit: Visit) -> None:
    page = visit.open("trials")
    marks = "async (ends) => (await import('/static/chart.js')).ticks(...ends, 4)"
    for low, high in ((1, 1 + 2**-52), (0.3, 0.1 + 0.2), (475, 475.00000000000006)):
        assert len(page.evaluate(marks, [low, high])) <= 9
    assert page.evaluate(marks, [0, 10]) == [0, 5, 10]
    assert page.evaluate(marks, [-1, 1]) == [-1, -0.5, 0, 0.5, 1]
    assert page.evaluate(marks, [-1e308, 1e308]) == []


@pytest.mark.long
def test_x_smoothing_and_scales_change_the_curves(visit: Visit) -> None:
    page = visit.open("trials")
    returns = curves(page, "actor/episode_return")
    line = returns.locator("path.line").first
    expect(line).to_be_visible()
    rough = line.get_attribute("d")
    assert rough
    page.locator("#smoothing").fill("0.95")
    expect(returns.locator("path.band")).to_have_count(5)
    expect(line).not_to_have_attribute("d", rough)
    page.locator("#x").select_option("policy_version")
    expect(returns.locator(".x-label")).to_have_text("policy version")
    loss = curves(page, "trainer/loss")
    linear = loss.locator("text.left").all_text_contents()
    page.locator("#logY").check()
    expect(loss.locator("text.left").first).not_to_have_text(linear[0])
    texts = [float(text) for text in loss.locator("text.left").all_text_contents()]
    assert all(high / low >= 2.9 for low, high in itertools.pairwise(texts))
    page.reload()  # what was chosen is still chosen
    expect(page.locator("#logY")).to_be_checked()
    expect(page.locator("#x")).to_have_value("policy_version")


@pytest.mark.long
def test_metrics_are_picked_and_values_read_under_the_pointer(visit: Visit) -> None:
    page = visit.open("trials")
    page.get_by_text("Metrics (4)").click()
    page.get_by_label("Filter metrics").fill("wait")
    page.get_by_role("checkbox", name="trainer/wait_s").check()
    waits = curves(page, "trainer/wait_s")
    expect(waits.locator("path.line")).to_have_count(5)
    page.get_by_role("checkbox", name="trainer/wait_s").uncheck()
    expect(waits).to_have_count(0)
    page.get_by_text("Metrics (4)").click()
    curves(page, "trainer/entropy").locator("svg").hover()
    tip = curves(page, "trainer/entropy").locator(".tip")
    expect(tip.locator(".row")).to_have_count(4)  # `live` has not come so far
    expect(tip).to_contain_text(re.compile(r"frames [\d.]+k"))
    expect(tip).to_contain_text(re.compile(r"ppo-1\s*0\.\d+"))
    visit.picture("trials-tip")


@pytest.mark.long
def test_dragging_over_a_chart_zooms_all(visit: Visit) -> None:
    page = visit.open("trials")
    loss = curves(page, "trainer/loss")
    expect(loss.locator("path.line")).to_have_count(5)
    box = loss.locator("svg").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60)
    expect(loss.locator(".dragged")).to_be_visible()
    page.mouse.up()
    returns = curves(page, "actor/episode_return")
    expect(returns.locator("path.line")).to_have_count(4)  # `live` ends before
    expect(returns.locator("text.below").first).to_have_text(re.compile(r"^(1[5-9]|2\d)\dk$"))
    page.keyboard.press("w")
    expect(returns.locator("path.line")).to_have_count(5)


def test_a_name_full_of_markup_stays_text(visit: Visit) -> None:
    page = visit.open("loop", HOSTILE)
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    visit.open("log", "ppo-2")
    expect(page.get_by_text("<b>not bold</b>").first).to_be_visible()
    assert page.locator("img[src=x], .lines .text b").count() == 0


@pytest.mark.long
def test_the_loop_shows_what_limits_the_run_and_goes_on(visit: Visit, viewed: Path) -> None:
    page = visit.open("loop", "live")
    expect(page.get_by_role("status")).to_have_text(re.compile("waits 75% .* playing limits"))
    gamecore = page.locator("[data-part=gamecore]")
    expect(gamecore).to_contain_text("limits the run")
    expect(page.locator(".flow", has_text="512 steps/s")).to_have_count(2)
    expect(page.locator("path.arrow.flows")).to_have_count(5)
    visit.picture("loop-light")
    before = page.locator("[data-part=model]").text_content()
    assert before
    (launch,) = (viewed / "live" / "launches").iterdir()
    append(launch, rows=40, seed=5, began_s=1_800_000_000, first=100)
    expect(page.locator("[data-part=model]")).not_to_have_text(before)
    expect(page.locator("[data-part=model]")).to_contain_text("139")  # its version now
    page.locator("#trial").select_option("ppo-1")
    expect(page.get_by_role("heading", name="ppo-1")).to_be_visible()
    expect(page.locator("path.arrow.flows")).to_have_count(0)  # it does not run


@pytest.mark.long
def test_versions_and_settings(visit: Visit) -> None:
    page = visit.open("versions", "ppo-1")
    expect(page.locator("tbody tr")).to_have_count(10)
    expect(page.locator("tbody tr").first).to_contain_text("29")
    page.get_by_role("link", name="Settings").click()
    expect(page.locator("pre").first).to_contain_text("capacity: 64")
    expect(page.get_by_role("cell", name="481.5")).to_be_visible()


@pytest.mark.long
def test_the_league_tells_cell_by_cell(visit: Visit) -> None:
    page = visit.open("league", "league")
    expect(page.locator(".ratings tr")).to_have_count(15)
    canvas, cell = page.locator("canvas.heat"), page.locator(".cell")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(cell).to_have_text(re.compile(r"v0 against v10: wins [\d.]+ % of 8 games"))
    box = canvas.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + 100)
    expect(cell).to_have_text(re.compile("v0 against v130"))
    assert page.evaluate(_COLOURS) > 20
    visit.picture("league-light")
    visit.open("league", "ppo-1")
    expect(
        page.get_by_text("has no league: runs whose policies play one another have one")
    ).to_be_visible()


_COLOURS = """() => {
  const canvas = document.querySelector("canvas.heat");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


@pytest.mark.long
def test_an_episode_is_stepped_through(visit: Visit) -> None:
    page = visit.open("episodes", "pixels")
    image = page.locator("img.frame")
    expect(image).to_have_attribute("data-step", "1")  # the first tick
    assert page.evaluate("document.querySelector('img.frame').naturalWidth") == 252
    expect(page.locator(".details")).to_contain_text("uint8 [4, 42, 42]")
    page.locator("#tick").fill("10")
    expect(image).to_have_attribute("data-step", "10")
    expect(page.locator("#at")).to_contain_text("10 of 21: tick")
    page.locator("h1").click()
    for key, step in (("ArrowRight", "11"), ("ArrowLeft", "10"), ("End", "21"), ("Home", "0")):
        page.keyboard.press(key)
        expect(image).to_have_attribute("data-step", step)
    page.keyboard.press("ArrowDown")  # the other episode
    expect(page.locator("tr.at")).to_contain_text("pixels/0")


@pytest.mark.long
def test_an_episode_plays_to_its_end(visit: Visit) -> None:
    page = visit.open("episodes", "ppo-1")
    page.locator("#speed").select_option("60")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("img.frame")).to_have_attribute("data-step", "21")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.locator("#tick").fill("6")
    expect(page.locator(".details")).to_contain_text("observation/position")
    visit.picture("episode-light")


@pytest.mark.long
def test_episodes_are_paged_and_found_by_their_address(visit: Visit) -> None:
    page = visit.open("episodes", "ppo-1")
    expect(page.get_by_text("1–50 of 60")).to_be_visible()
    page.get_by_role("button", name="Older").click()
    expect(page.get_by_text("51–60 of 60")).to_be_visible()
    row = page.locator("tr[data-episode]").last
    name = row.get_attribute("data-episode")
    assert name
    row.click()
    expect(page.locator("section.episode b").first).to_have_text("ppo-1/0")
    visit.open("episodes", "ppo-1", name, "7")
    page.reload()
    expect(page.locator("img.frame")).to_have_attribute("data-step", "7")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["webp", "gif"])
def test_a_video_is_saved(visit: Visit, kind: str) -> None:
    page = visit.open("episodes", "pixels")
    expect(page.locator("img.frame")).to_have_attribute("data-step", "1")
    with page.expect_download() as download:
        page.locator(f"#video-{kind}").click()
    assert download.value.suggested_filename.endswith(f".{kind}")
    content = Path(download.value.path()).read_bytes()
    with Image.open(io.BytesIO(content)) as image:
        assert image.n_frames >= 21


@pytest.mark.long
def test_the_log_is_filtered_paged_and_followed(visit: Visit, viewed: Path) -> None:
    page = visit.open("log", "ppo-2")
    records = page.locator(".record")
    expect(records).to_have_count(300)
    expect(records.last).to_contain_text("line 1999")
    page.get_by_role("button", name="Older").click()
    expect(records).to_have_count(600)
    page.locator("#level").select_option("ERROR")
    expect(records).to_have_count(4)
    expect(records.first).to_contain_text("Traceback")
    page.locator("#log-filter").fill("line 1499")
    expect(records).to_have_count(1)
    page.locator("#log-filter").fill("")
    with (viewed / "ppo-2" / "bray.log").open("a") as file:
        file.write("2026-11-21 13:00:00,000 ERROR trainer/0 bray_trainer: the newest of all\n")
    expect(records.last).to_contain_text("the newest of all")
    visit.picture("log-light")


@pytest.mark.long
def test_keys_do_what_the_help_says(visit: Visit) -> None:
    page = visit.open("trials")
    expect(page.locator("tbody tr")).to_have_count(7)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("select all shown")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("n")
    expect(page.get_by_text("0 selected")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ppo-")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    expect(page.get_by_text("3 of 7, 1 selected")).to_be_visible()
    name = page.locator("tr.at .name").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    for number, words in enumerate(
        ("Trials", "Compare", "Loop", "System", "Versions", "League"), 1
    ):
        page.keyboard.press(str(number))
        expect(page.locator("nav a[aria-current]")).to_have_text(words)


@pytest.mark.long
def test_dark_and_light_by_system_and_by_switch(browser: Browser, viewer: Viewer) -> None:
    visit = Visit(browser, viewer, color_scheme="dark")
    page = visit.open("trials")
    paper = "getComputedStyle(document.body).backgroundColor"
    expect(curves(page, "trainer/loss").locator("path.line")).to_have_count(5)
    dark = page.evaluate(paper)
    visit.picture("trials-dark")
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_contain_text("light")
    light = page.evaluate(paper)
    assert sum(map(int, re.findall(r"\d+", dark)[:3])) < 150
    assert sum(map(int, re.findall(r"\d+", light)[:3])) > 600
    page.reload()
    expect(page.locator("#theme")).to_contain_text("light")
    page.keyboard.press("t")
    expect(page.locator("#theme")).to_contain_text("dark")
    assert page.evaluate(paper) == dark
    for name in ("loop/live", "league/league", "episodes/pixels", "log/ppo-2"):
        visit.open(*name.split("/"))
        expect(
            page.locator("[data-part=trainer], .ratings .number, img[data-step], .record").first
        ).to_be_visible()
        visit.picture(f"{name.split('/')[0]}-dark")
    visit.context.close()
    assert not visit.problems


@pytest.mark.long
def test_a_narrow_window_shows_all_without_scrolling_sideways(
    browser: Browser, viewer: Viewer
) -> None:
    visit = Visit(browser, viewer, viewport={"width": 420, "height": 800})
    for name in ("trials", "loop/live", "episodes/pixels", "log/ppo-2", "league/league"):
        page = visit.open(*name.split("/"))
        expect(page.locator("nav a[aria-current]")).to_be_visible()
        expect(page.locator("figure, .record, canvas, img[data-step]").first).to_be_visible()
        over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(over) <= 0, name
        visit.picture(f"{name.split('/')[0]}-narrow")
    visit.context.close()


@pytest.mark.long
def test_a_token_is_asked_for_in_the_page(browser: Browser, viewed: Path) -> None:
    viewer = Viewer(viewed, token=TOKEN)
    visit = Visit(browser, viewer)
    try:
        page = visit.open("trials")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Open").click()
        expect(page.get_by_text("Wrong token.")).to_be_visible()
        visit.picture("login")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(7)
    finally:
        visit.context.close()
        viewer.close()
    assert not visit.problems


@pytest.mark.long
def test_a_server_that_is_gone_is_told(browser: Browser, viewed: Path) -> None:
    viewer = Viewer(viewed)
    visit = Visit(browser, viewer)
    page = visit.open("trials")
    expect(page.locator("tbody tr")).to_have_count(7)
    viewer.close()
    expect(page.get_by_role("alert")).to_contain_text("is bray view still running?")
    visit.context.close()


def test_the_page_opens_with_few_requests(visit: Visit) -> None:
    page = visit.open("trials")
    expect(curves(page, "trainer/entropy").locator("path.line")).to_have_count(5)
    asked = [url for url in visit.requests if "/api/" in url]
    assert len(asked) <= 3 + 4 + 1  # project, trials, metrics, a chart each; one poll may be in it


@pytest.mark.long
@pytest.mark.parametrize("is_logarithmic", [False, True])
def test_a_resumed_trials_curve_has_a_gap_and_keeps_its_metrics(
    browser: Browser, tmp_path: Path, is_logarithmic: bool
) -> None:
    folder = trial(tmp_path, "resumed", rows=30, seed=0)
    after = folder / "launches" / "20261122-120000"
    after.mkdir()
    append(after, rows=20, seed=1, first=40)
    text = (after / "metrics.jsonl").read_text()
    (after / "metrics.jsonl").write_text(text.replace("actor/episode_return", "actor/other"))
    viewer = Viewer(tmp_path)
    visit = Visit(browser, viewer)
    try:
        page = visit.open("trials")
        returns, loss = curves(page, "actor/episode_return"), curves(page, "trainer/loss")
        if is_logarithmic:
            page.locator("#logX").check()
            page.locator("#logY").check()
        expect(returns.locator("path.line")).to_have_count(1)
        expect(loss.locator("path.line")).to_have_attribute("d", re.compile("^M[^M]+M[^M]+$"))
        expect(returns.locator("path.line")).to_have_attribute("d", re.compile("^M[^M]+$"))
        assert not visit.problems
    finally:
        visit.context.close()
        viewer.close()
