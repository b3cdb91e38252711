"""The builder's port: what may be written and run, and by whom; text and settings in step."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from viewer_client import Answer, ask

from bray.templates import loading as template
from bray.templates.template import names
from bray.viewer.server import Viewer
from bray.viewer.started_runs import StartedRuns
from bray.viewer.templates.template_files import TemplateFiles
from bray.viewer.templates.template_text import inspect_template, template_yaml
from bray_core import cli
from bray_core.errors import AlreadyExistsError, ClosedError, ConfigError, NotFoundError

VALID = "algorithm: dqn\nsource:\n  environment: CartPole-v1\n"
MANY = "trainers:\n" + "".join(f" t{i}:\n" for i in range(401))


@pytest.fixture
def building(tmp_path: Path) -> Iterator[Viewer]:
    (tmp_path / "mine").mkdir()
    viewer = Viewer(tmp_path / "trials", builder=tmp_path / "mine")
    yield viewer
    viewer.close()


def send(viewer: Viewer, path: str, content: Any = None, **headers: str) -> Answer:
    """Post as the page does, unless a header says otherwise; an empty one is left out."""
    sent = {"Bray_Page": "1", "Content_Type": "application/json", **headers}
    body = content if isinstance(content, str) else json.dumps(content)
    given = {name: value for name, value in sent.items() if value}
    return ask(viewer, f"/api/builder/{path}", "POST", body, **given)


def save(viewer: Viewer, **content: Any) -> Answer:
    return send(viewer, "save", {"file": "a.yaml", "text": VALID, "stamp": None, **content})


@pytest.mark.parametrize(
    "headers",
    [
        {"Bray_Page": ""},
        {"Bray_Page": "0"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["save", "start", "stop", "check", "nothing"])
def test_another_sites_page_can_have_nothing_done(
    building: Viewer, tmp_path: Path, path: str, headers: dict[str, str]
) -> None:
    content = {"file": "a.yaml", "text": VALID, "stamp": None, "trial": "a"}
    answer = send(building, path, content, **headers)
    assert answer.status == 403
    assert "of this page itself" in answer.json["error"]["message"]
    assert not list((tmp_path / "mine").iterdir())


def test_the_page_itself_may(building: Viewer, tmp_path: Path) -> None:
    answer = send(
        building,
        "save",
        {"file": "a.yaml", "text": VALID, "stamp": None},
        Origin=building.address,
        Sec_Fetch_Site="same-origin",
    )
    assert answer.status == 200
    assert (tmp_path / "mine" / "a.yaml").read_text() == VALID


def test_a_viewer_that_only_reads_refuses(viewer: Viewer, viewed: Path) -> None:
    assert ask(viewer, "/api/builder").json == {"folder": None, "project": str(viewed)}
    for path in ("check", "save", "start", "stop"):
        answer = send(viewer, path, {"file": "a.yaml", "text": VALID, "trial": "live"})
        assert answer.status == 403
        assert "--builder FOLDER" in answer.json["error"]["message"]
    for path in ("schema?algorithm=ppo", "open?template=cartpole"):
        assert ask(viewer, f"/api/builder/{path}").status == 403


def test_a_token_is_asked_for_here_too(tmp_path: Path) -> None:
    viewer = Viewer(tmp_path / "trials", token="a token", builder=tmp_path)
    try:
        assert save(viewer).status == 401
        assert ask(viewer, "/api/builder").status == 401
        assert send(viewer, "check", {"text": VALID}, Authorization="Bearer a token").status == 200
    finally:
        viewer.close()


@pytest.mark.parametrize(
    "name",
    [
        "../a.yaml", "/etc/a.yaml", "sub/a.yaml", "..", "", ".yaml", ".a.yaml", "a.yml", "a.yaml/",
        "a.yaml\0", "a\n.yaml", "a.yaml\n", "-a.yaml", "%2e%2e.yaml", "a\\b.yaml",
        "ä.yaml", "x" * 200 + ".yaml",
    ],
)  # fmt: skip
def test_no_name_leaves_the_folder(building: Viewer, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    for path, content in (
        ("save", {"file": name, "text": VALID, "stamp": None}),
        ("start", {"file": name}),
    ):
        answer = send(building, path, content)
        assert (answer.status, answer.json["error"]["message"][:20]) == (
            400,
            "file: expected a nam",
        )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_neither_followed_nor_replaced(building: Viewer, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("a: 1")
    (tmp_path / "mine" / "a.yaml").symlink_to(secret)
    os.mkfifo(tmp_path / "mine" / "pipe.yaml")
    assert ask(building, "/api/builder").json["files"] == []
    assert ask(building, "/api/builder/open?file=a.yaml").status == 404
    answer = save(building)
    assert (answer.status, "is a link" in answer.json["error"]["message"]) == (400, True)
    assert secret.read_text() == "a: 1"


def test_a_file_that_changed_on_disk_is_not_written_over(building: Viewer, tmp_path: Path) -> None:
    file = tmp_path / "mine" / "a.yaml"
    first = save(building).json
    assert file.stat().st_mode & 0o777 == 0o644
    assert save(building).status == 409  # there is one already
    second = save(building, text=VALID + "seed: 2\n", stamp=first["stamp"])
    assert second.status == 200
    file.write_text(VALID + "seed: 3\n")
    answer = save(building, stamp=second.json["stamp"])
    assert answer.status == 409
    assert "a.yaml was changed on disk since it was opened" in answer.json["error"]["message"]
    assert file.read_text() == VALID + "seed: 3\n"
    opened = ask(building, "/api/builder/open?file=a.yaml").json
    file.chmod(0o600)
    assert save(building, stamp=opened["stamp"]).status == 200
    assert file.stat().st_mode & 0o777 == 0o600
    stamp = ask(building, "/api/builder/open?file=a.yaml").json["stamp"]
    file.unlink()
    assert "was deleted since" in save(building, stamp=stamp).json["error"]["message"]
    assert [p.name for p in (tmp_path / "mine").iterdir()] == []


def test_only_what_is_valid_is_saved(building: Viewer, tmp_path: Path) -> None:
    answer = save(building, text=VALID + "trainer: {gamma: 3, epochs: 1}\n")
    assert answer.status == 400
    said = answer.json["error"]["message"]
    assert "a.yaml:4:11: trainer.gamma: expected 0 to 1" in said
    assert "trainer.epochs: unknown key" in said
    assert save(building, text=VALID + "#" * 40_000).status == 400
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("save", "{", "body: expected JSON"),
        ("save", "[" * 10_000, "body: expected JSON"),
        ("save", [1], "body: expected a JSON object, got list"),
        ("save", {"file": 3}, "file: expected a text, got int"),
        ("save", {"file": "a.yaml"}, "text: expected a text, got NoneType"),
        ("check", {"text": VALID, "settings": 3}, "settings: expected an object"),
        ("check", {"text": "a" * 50_000}, "text: expected 32768 bytes at most"),
        ("check", {"text": MANY}, "text: expected a template of 400 parts at most"),
        ("start", {"file": "absent.yaml"}, "file: no absent.yaml in"),
        ("stop", {"trial": "absent"}, "trial: no run of 'absent' was started here"),
    ],
)
def test_nonsense_is_told(building: Viewer, path: str, content: Any, said: str) -> None:
    answer = send(building, path, content)
    assert answer.status in (400, 404)
    assert said in answer.json["error"]["message"]


def test_what_is_opened(building: Viewer, tmp_path: Path) -> None:
    (tmp_path / "mine" / "long.yaml").write_text("#" * 40_000)
    (tmp_path / "mine" / "bytes.yaml").write_bytes(b"\xff")
    for query, status in (("file=long.yaml", 400), ("file=bytes.yaml", 400), ("file=x.yaml", 404)):
        assert ask(building, f"/api/builder/open?{query}").status == status
    for query in ("template=../cartpole", "", "template=nothing"):
        assert ask(building, f"/api/builder/open?{query}").status == 400
    opened = ask(building, "/api/builder/open?template=cartpole").json
    assert template.parse(opened["text"], "cartpole") == template.load("cartpole")
    assert (opened["name"], opened["stamp"]) == ("cartpole.yaml", None)


def test_the_schema_of_an_algorithm_knows_its_tasks_defaults(building: Viewer) -> None:
    path = "/api/builder/schema?algorithm=alphazero&task="
    shown = [ask(building, path + task).json["schema"] for task in ("tic-tac-toe", "unknown")]
    game, other = [one["properties"]["model"]["properties"]["hidden"] for one in shown]
    assert game["default"] == [128, 64] != other["default"]
    assert (
        "did you mean"
        in ask(building, "/api/builder/schema?algorithm=pppo").json["error"]["message"]
    )


@pytest.mark.parametrize("name", names())
def test_a_template_is_the_same_run_when_the_form_has_written_it(name: str) -> None:
    text = template.path_of(name).read_text()
    again = template_yaml(inspect_template(text)["settings"], "")
    assert template.parse(again, name) == template.parse(text, name)
    assert len(yaml.safe_load(again)) <= len(yaml.safe_load(text))


def test_only_what_differs_from_the_defaults_is_written() -> None:
    text = (
        "# mine\n# to keep\n\nalgorithm: ppo # not kept\nseed: 1\nkeep:\n"
        "source: {environment: CartPole-v1}\n"
        "trainer: {learning_rate: 3e-4, gamma: 0.9, epochs: 10}\nmodel: {hidden: [64, 64]}\n"
        "agent: {segment_lenght: 3}\n"
    )
    assert template_yaml(inspect_template(text)["settings"], text) == (
        "# mine\n# to keep\n\nalgorithm: ppo\nagent:\n  segment_lenght: 3\n"
        "source:\n  environment: CartPole-v1\ntrainer:\n  gamma: 0.9\n"
    )
    changed = inspect_template(text)["settings"] | {
        "model": {"hidden": [32]},
        "trainer": {"clip": "x"},
    }
    found = inspect_template(template_yaml(changed, ""))
    assert found["text"].startswith("algorithm: ppo\nmodel:\n  hidden: [32]\n")
    assert [(one["key"], one["line"]) for one in found["problems"]] == [
        ("agent.segment_lenght", 5),
        ("trainer.clip", 9),
    ]


def test_text_that_cannot_be_a_form_is_told_with_its_line() -> None:
    for text, line in (("algorithm: [", 2), ("a: 1\nb: &x [1]\nc: *x\n", 3), ("algorithm: x\n", 1)):
        found = inspect_template(text + "\n")
        assert found["form"] is None
        assert [one["line"] for one in found["problems"]] == [line]
    assert inspect_template("[1]")["settings"] is None
    assert inspect_template(f"{VALID}seed: 2020-01-01")["settings"]["seed"] == "2020-01-01"


def test_lines_that_stand_for_more_than_a_memory_holds_are_not_expanded() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    names = "abcdefghijk"
    lines += [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in itertools.pairwise(names)
    ]
    assert "aliases such as *a" in inspect_template("\n".join(lines))["problems"][0]["text"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="--builder: no folder"):
        Viewer(tmp_path, builder=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="expected a name of letters"):
        TemplateFiles(tmp_path).open("a/../b.yaml")


class TestRuns:
    @pytest.fixture
    def runs(self, tmp_path: Path) -> Iterator[StartedRuns]:
        runs = StartedRuns(tmp_path, tmp_path / "trials")
        yield runs
        runs.close()

    def test_an_error_of_the_run_is_its_output(self, runs: StartedRuns, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(VALID.replace("dqn", "dqqn"))
        runs.start("a.yaml")
        run = ended(runs)
        assert run["code"] == cli.EXIT_ERROR
        assert "algorithm: expected one of" in run["lines"][-1]

    def test_one_run_of_a_trial_at_a_time_and_none_after_the_end(
        self, runs: StartedRuns, tmp_path: Path
    ) -> None:
        (tmp_path / "a.yaml").write_text(VALID)
        runs.start("a.yaml")
        with pytest.raises(AlreadyExistsError, match="trial a: was started here already"):
            runs.start("a.yaml")
        runs.close()
        runs.close()
        (run,) = runs.listing()
        assert run["state"] == "ended"
        with pytest.raises(ClosedError):
            runs.start("a.yaml")

    def test_a_trial_that_another_process_runs_is_refused_by_its_lock(
        self, runs: StartedRuns, tmp_path: Path
    ) -> None:
        from bray_core.trials.experiment import Experiment

        (tmp_path / "a.yaml").write_text(VALID)
        held = Experiment.open(tmp_path / "trials", "a")
        try:
            runs.start("a.yaml")
            run = ended(runs)
        finally:
            held.close()
        assert run["code"] == cli.EXIT_ERROR
        assert re.search(rf"already running in process {os.getpid()}", run["lines"][-1])


def ended(runs: StartedRuns) -> dict[str, Any]:
    """Return the only run as soon as it has ended."""
    (run,) = runs._runs.values()
    run._process.wait(60)
    run._reader.join(60)
    (found,) = runs.listing()
    assert found["state"] == "ended"
    return found
