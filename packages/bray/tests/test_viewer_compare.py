"""Trials beside each other, their notes and their report: what the page is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from viewer_client import ask
from viewer_project import HOSTILE, append, trial, write_record

from bray.viewer.comparison import differing
from bray.viewer.report.svg_chart import ChartCurve, chart
from bray.viewer.server import Viewer
from bray_core import cli

JSON = {"Content_Type": "application/json", "Bray_Page": "1"}


def settings(folder: Path, text: str) -> None:
    (folder / "config.yaml").write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three trials: two seeds of one group, and one of another environment."""
    for seed in (1, 2):
        folder = trial(tmp_path, f"cart-{seed}", rows=40, seed=seed)
        rate = 0.001 * seed
        settings(
            folder,
            f"algorithm: ppo\nseed: {seed}\nsource: {{environment: CartPole-v1}}\n"
            f"trainer: {{learning_rate: {rate}, hidden: [64, 64]}}\n",
        )
        (folder / "result.json").write_text(json.dumps({"evaluation_return": 100.0 * seed}))
    folder = trial(tmp_path, "walk", rows=40, seed=3)
    settings(
        folder,
        "sources:\n  near: {environment: Walker2d-v5}\n"
        "  far: {command: [./game, --port]}\nseed: 1\n",
    )
    return tmp_path


@pytest.fixture
def viewer(project: Path) -> Iterator[Viewer]:
    viewer = Viewer(project)
    yield viewer
    viewer.close()


def test_settings_that_differ_come_with_the_results(viewer: Viewer) -> None:
    found = ask(viewer, "/api/compare?trial=cart-1&trial=cart-2").json
    assert found["differing"] == ["seed", "trainer.learning_rate"]
    assert found["settings"][0] == "algorithm"
    first, second = found["trials"]
    assert first["settings"]["trainer.hidden"] == "64 64"
    assert (first["figures"]["evaluation_return"], second["figures"]["frames"]) == (100, 40960)
    assert found["figures"][0] == "evaluation_return"


def test_a_setting_that_is_absent_differs_and_comes_last() -> None:
    columns = [{"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 2}, {}]
    assert differing(columns) == ["c", "b"]


def test_the_environments_of_trials_are_told_for_facets(viewer: Viewer) -> None:
    found = {one["name"]: one["environment"] for one in ask(viewer, "/api/trials").json}
    assert found["cart-1"] == "CartPole-v1"
    assert found["walk"] == "Walker2d-v5 + ./game --port"


def test_the_code_of_two_trials_is_compared(viewer: Viewer, project: Path) -> None:
    for name, line in (("cart-1", "+learning_rate = 1\n"), ("cart-2", "+learning_rate = 2\n")):
        launch = next((project / name / "launches").iterdir())
        write_record(launch, "finished")
        (launch / "changes.diff").write_text(f"--- a/game.py\n+++ b/game.py\n{line}")
    record = next((project / "cart-2" / "launches").iterdir()) / "launch.json"
    content = json.loads(record.read_text())
    content |= {"commit": "def", "packages": {**content["packages"], "numpy": "0.1"}}
    record.write_text(json.dumps(content))
    found = ask(viewer, "/api/difference?trial=cart-1&trial=cart-2").json
    assert ["commit", "abc", "def"] in found["launch"]
    assert [name for name, *_ in found["packages"]] == ["numpy"]
    assert "-+learning_rate = 1" in found["changes"]
    assert "++learning_rate = 2" in found["changes"]
    assert ask(viewer, "/api/difference?trial=cart-1").status == 400
    assert ask(viewer, "/api/difference?trial=cart-1&trial=..").status == 404


def test_notes_are_saved_by_the_page_alone_and_found_in_the_list(viewer: Viewer) -> None:
    nothing = {"tags": [], "text": ""}
    body = json.dumps({"tags": ["good"], "text": "<b>", "before": nothing})
    path = "/api/trials/cart-1/notes"
    assert ask(viewer, path, "POST", body, Content_Type="application/json").status == 403
    saved = ask(viewer, path, "POST", body, **JSON)
    assert saved.json == {"tags": ["good"], "text": "<b>"}
    assert ask(viewer, path).json == saved.json
    tags = {one["name"]: one["tags"] for one in ask(viewer, "/api/trials").json}
    assert (tags["cart-1"], tags["cart-2"]) == (["good"], [])
    late = ask(viewer, path, "POST", body, **JSON)  # a page that still shows no notes
    assert late.status == 409
    assert "changed meanwhile" in late.json["error"]["message"]


@pytest.mark.parametrize(
    "body",
    ["[]", "{", '{"tags": "a"}', '{"tags": [], "text": 1}', '{"tags": [], "before": {"tags": 1}}'],
)
def test_notes_that_are_none_are_refused(viewer: Viewer, body: str) -> None:
    assert ask(viewer, "/api/trials/cart-1/notes", "POST", body, **JSON).status == 400


def test_notes_lie_in_trials_alone(viewer: Viewer) -> None:
    body = json.dumps({"tags": [], "text": "x", "before": {"tags": [], "text": ""}})
    for name in ("..", "%2e%2e", "none", "cart-1%2f..%2fcart-2"):
        assert ask(viewer, f"/api/trials/{name}/notes", "POST", body, **JSON).status == 404


class Page(HTMLParser):
    """The elements of a page, and the addresses that it names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = {"href", "src", "srcset", "data", "action", "xlink:href"}
        self.addresses += [str(value) for name, value in attrs if name in known]


def test_a_report_says_whose_code_differs(project: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    command = ["trials", "report", "cart", "--project", str(project), "--output", str(output)]
    launches = [next((project / f"cart-{seed}" / "launches").iterdir()) for seed in (1, 2)]
    for launch in launches:
        write_record(launch, "finished")
        (launch / "changes.diff").unlink(missing_ok=True)
    assert cli.main(command) == 0
    assert "None: all trials ran the same commit and changes" in output.read_text()
    (launches[1] / "changes.diff").write_text("+one\n+two\n")
    assert cli.main(command) == 0
    rows = output.read_text().partition("Code that differs")[2]
    assert "<td>cart-1</td><td>abc</td><td>none</td>" in rows
    assert "<td>cart-2</td><td>abc</td><td>2 lines</td>" in rows


def test_a_report_is_one_file_that_needs_no_other(viewer: Viewer, project: Path) -> None:
    folder = trial(project, HOSTILE, rows=5, seed=1)
    settings(folder, "seed: '<img src=x>'\n")
    answer = ask(
        viewer, "/api/report?trial=cart-1&trial=cart-2&trial=%3Cimg%20src=x%20onerror=alert(1)%3E"
    )
    assert answer.status == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    text = answer.body.decode()
    page = Page(text)
    assert page.addresses == []
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert page.tags.count("svg") >= 3
    assert "cart (2 seeds)" in text  # seeds are drawn as one
    assert 'class="band' in text
    assert "trainer.learning_rate" in text
    assert ask(viewer, "/api/report").status == 400
    assert ask(viewer, "/api/report?trial=cart-1&seeds=some").status == 400


def test_reports_and_notes_of_the_command_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def bray(*words: str) -> int:
        return cli.main(["trials", *words, "--project", str(project)])

    assert bray("note", "cart-1", "--tag", "good", "--tag", "old", "--text", "The best.") == 0
    assert bray("note", "cart-1", "--untag", "old") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [f"{project / 'cart-1'}: good", "The best."]
    assert bray("note", "cart-1", "--tag", "a,b") == 2
    output = project / "report.html"
    assert bray("report", "cart", "--output", str(output), "--metric", "trainer/loss") == 0
    text = output.read_text()
    assert "The best." in text
    assert Page(text).tags.count("svg") == 1
    assert bray("report", f"{project}/cart-1", "--output", str(output)) == 0
    assert "The best." in output.read_text()
    assert bray("report", f"{project.parent}/elsewhere/cart-1", "--output", str(output)) == 2
    assert "a report is of one project: --project names its folder" in capsys.readouterr().err
    assert bray("report", "cart", "--output", str(project / "none" / "report.html")) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_report_of_a_resumed_trial_leaves_a_gap(project: Path) -> None:
    after = project / "walk" / "launches" / "20261122-120000"
    after.mkdir()
    append(after, rows=20, seed=1, first=60)
    output = project / "report.html"
    words = ["report", "walk", "--output", str(output), "--metric", "trainer/loss"]
    assert cli.main(["trials", *words, "--project", str(project)]) == 0
    found: Any = [part for part in output.read_text().split('"') if part.startswith("M")]
    assert [part.count("M") for part in found] == [2]


def test_points_that_fall_together_are_a_dot() -> None:
    drawn = {
        frames: chart("loss", "frames", [ChartCurve(x=frames, y=[5.0] * len(frames), slot=0)])
        for frames in ((7,), (7, 7, 7), (7, 8))
    }
    assert [svg.count("<circle") for svg in drawn.values()] == [1, 1, 0]
