"""Trials that somebody else wrote: the viewer shows no other file, waits for none, and goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from viewer_client import ask
from viewer_project import league, line, record, trial, write_log

from bray.viewer import (
    league_results,
    log_tail,
    project,
    rendering,
    request_bodies,
    video,
)
from bray.viewer.episodes import EpisodeStep, RecordedEpisodes
from bray.viewer.metric_log import MAX_NAMES, MetricLog
from bray.viewer.server import Viewer
from bray.viewer.templates import template_files
from bray.viewer.templates.template_files import TemplateFiles
from bray.viewer.trial_file import text
from bray_actor.recording import read_episode
from bray_core import codec
from bray_core.errors import ConfigError, NotFoundError, SpecError

SECRET = "root:x:0:0:secret"
LAUNCH = "launches/20261121-120000"
PAGES = (
    "/api/trials", "/api/metrics?trial=t", "/api/curves?trial=t&metric=trainer/loss",
    "/api/trials/t", "/api/trials/t/loop", "/api/trials/t/versions", "/api/trials/t/league",
    "/api/trials/t/ratings", "/api/trials/t/log", "/api/trials/t/log?after=0",
    "/api/trials/t/episodes", "/api/trials/t/episodes/e", "/api/trials/t/episodes/e/steps/1",
)  # fmt: skip
FILES = (
    "config.yaml", "result.json", "bray.log", "league.json", f"{LAUNCH}/launch.json", ".lock",
    f"{LAUNCH}/changes.diff", f"{LAUNCH}/metrics.jsonl", "episodes/e.episode",
    "models/policy/versions/index.json",
)  # fmt: skip
FOLDERS = ("launches", LAUNCH, "episodes", "models", "models/policy", "models/policy/versions")


def make(folder: Path, name: str = "t") -> Path:
    """Write a trial with every file that the viewer reads."""
    made = trial(folder, name, rows=5, seed=0)
    (made / "result.json").write_text('{"evaluation_return": 3.5}')
    (made / LAUNCH / "changes.diff").write_text("+mine")
    league(made, players=3)
    write_log(made, 20)
    record(made, episodes=1, pixels=False)
    (episode,) = (made / "episodes").iterdir()
    episode.rename(made / "episodes" / "e.episode")
    versions = made / "models" / "policy" / "versions"
    versions.mkdir(parents=True)
    index = {"format": 1, "versions": {"1": 1.0}, "pinned": []}
    (versions / "index.json").write_text(json.dumps(index))
    (versions / "1.safetensors").write_bytes(b"x" * 100)
    return made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where projects lie; `outside` is beside them."""
    (tmp_path / "project").mkdir()
    return tmp_path


@pytest.fixture
def shown(place: Path) -> Iterator[Viewer]:
    viewer = Viewer(place / "project")
    yield viewer
    viewer.close()


def answers(viewer: Viewer) -> dict[str, Any]:
    """Ask for every page of the trial `t`; none may be a fault of the server's."""
    found = {page: ask(viewer, page) for page in PAGES}
    assert {page: one.status for page, one in found.items() if one.status >= 500} == {}
    return found


def test_every_page_of_a_whole_trial_is_there(place: Path, shown: Viewer) -> None:
    make(place / "project")
    found = answers(shown)
    assert {one.status for one in found.values()} == {200}
    assert found["/api/trials/t/versions"].json[0]["versions"][0]["bytes"] == 100


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_a_link_out_of_the_project_shows_nothing_of_what_it_leads_to(
    place: Path, shown: Viewer, name: str
) -> None:
    made = make(place / "project")
    theirs = make(place, "outside")
    for file in theirs.rglob("*"):  # what would be shown of a file, were it read
        if file.suffix in (".yaml", ".diff"):
            file.write_text(f"# {SECRET}\n")
        elif file.name == "bray.log":
            file.write_text(f"2026-11-21 12:00:00,000 ERROR bray.run: {SECRET}\n")
        elif file.suffix == ".json":
            text_of = file.read_text().replace("v10", SECRET).replace("3.5", "77.125")
            file.write_text(text_of.replace('"1"', '"77125"'))
        elif file.suffix == ".jsonl":
            file.write_text(file.read_text().replace("trainer/loss", f"trainer/{SECRET}"))
    secret = theirs / "episodes" / f"{SECRET}.episode"
    shutil.copyfile(theirs / "episodes" / "e.episode", secret)
    (theirs / "models" / SECRET).mkdir()
    target = made / name
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.symlink_to(theirs / name)
    for page, answer in answers(shown).items():
        assert SECRET.encode() not in answer.body, page
        assert b"77.125" not in answer.body, page
        assert b"77125" not in answer.body, page
    with_passwd = made / "config.yaml"
    with_passwd.unlink(missing_ok=True)
    with_passwd.symlink_to("/etc/passwd")
    assert b"root:" not in ask(shown, "/api/trials/t").body


def test_links_that_stay_and_a_trial_that_is_a_link_are_followed(
    place: Path, shown: Viewer
) -> None:
    make(place, "disk")
    (place / "project" / "t").symlink_to(place / "disk")
    assert {one.status for one in answers(shown).values()} == {200}
    other = make(place / "project", "other")
    (other / "config.yaml").rename(place / "project" / "shared.yaml")
    (other / "config.yaml").symlink_to("../shared.yaml")
    assert "capacity: 64" in (text(other, other / "config.yaml") or "")
    (place / "disk" / "config.yaml").unlink()
    (place / "disk" / "config.yaml").symlink_to(place / "outside.yaml")
    (place / "outside.yaml").write_text(SECRET)
    through = place / "project" / "t"
    assert text(through, through / "config.yaml") is None


def test_pipes_and_devices_in_a_trial_hold_no_page_and_no_end(place: Path) -> None:
    for name in FILES:
        made = make(place / "project", f"t-{name.replace('/', '-')}")
        (made / name).unlink(missing_ok=True)
        os.mkfifo(made / name)
    made = make(place / "project")
    for name in FILES:
        (made / name).unlink(missing_ok=True)
        (made / name).symlink_to("/dev/zero")
    (place / "project" / "drafts").mkdir()
    os.mkfifo(place / "project" / "drafts" / "pipe.yaml")
    command = [sys.executable, "-m", "bray_core.cli", "view", "project", "--port", "0"]
    with subprocess.Popen(
        [*command, "--builder", "project/drafts"], text=True, stdout=subprocess.PIPE, cwd=place
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+?(?=/ )", process.stdout.readline())
            assert found is not None
            remote: Any = SimpleNamespace(address=found[0])
            pages = [page for page in PAGES if "ratings" not in page]  # these import torch
            for name in FILES:
                trial = "t-" + name.replace("/", "-")
                for page in pages:
                    path = page.replace("trial=t", f"trial={trial}").replace("/t/", f"/{trial}/")
                    assert ask(remote, path).status < 500
            for page in (*pages, "/api/builder", "/api/builder/open?file=pipe.yaml"):
                assert ask(remote, page).status < 500
            assert len(ask(remote, "/api/trials").json) == len(FILES) + 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


NUMBERS = ("9" * 400, "9" * 4000, "1e999", "NaN", "-Infinity", "true", '"x"', "[1]", "{}", "null")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_of_any_kind_is_shown_or_left_out(place: Path, shown: Viewer, number: str) -> None:
    made = make(place / "project")
    make(place / "project", "good")
    (made / "result.json").write_text(f'{{"evaluation_return": {number}, "reached": {number}}}')
    (made / LAUNCH / "launch.json").write_text(f'{{"format": 1, "began_s": {number}}}')
    row = json.dumps(line(1, np.random.default_rng(0), 0, 1.0))
    broken = re.sub(r'"(frames|wall_time_s|actor/episode_return)": [\d.]+', rf'"\1": {number}', row)
    (made / LAUNCH / "metrics.jsonl").write_text(f"{broken}\n{row}\n{broken}\n")
    (made / "config.yaml").write_text(f"buffer:\n  capacity: {number}\nrender: {number}\n")
    results = f"[[0, 1, {number}, 0, 0, 1], [0, 1, 1, {number}, 0, 1]]"
    (made / "league.json").write_text(
        f'{{"payoff": {{"players": ["a", "b"], "results": {results}}}, "league": {number}}}'
    )
    body = f'{{"reward": {number}, "observation": {number}}}'.encode()
    write_episode(made / "episodes" / "e.episode", [["tick", 0.0, body, body]] * 2)
    found = answers(shown)
    for page in ("/api/trials", "/api/trials/t", "/api/trials/t/loop", "/api/trials/t/episodes"):
        assert found[page].status == 200, page
    assert len(found["/api/trials"].json) == 2
    assert found["/api/curves?trial=t&metric=trainer/loss"].json[0]["count"] == 1
    assert ask(shown, "/api/trials/t/episodes/e/steps/1/picture").status == 200


def write_episode(path: Path, requests: list[Any], **change: Any) -> int:
    """Write an episode's file; return how long it is."""
    tree = {"session": "s", "began_s": 1.0, "outcome": "end", "is_whole": True}
    packed = msgspec.msgpack.encode(tree | {"requests": requests} | change)
    path.write_bytes(b"BRAYEP01" + zlib.compress(packed, 9))
    return path.stat().st_size


@pytest.mark.parametrize(
    "change",
    [
        {"requests": 3}, {"requests": [3]}, {"requests": [["tick", 0.0, b""]]},
        {"requests": [["tock", 0.0, b"", b""]]}, {"requests": [["tick", "x", b"", b""]]},
        {"requests": [["tick", float("nan"), b"", b""]]}, {"requests": [["tick", 0.0, "x", b""]]},
        {"session": 3}, {"session": None}, {"began_s": "x"}, {"began_s": float("inf")},
        {"outcome": []}, {"is_whole": 3}, {"requests": [[]] * 3_000_000},
    ],
)  # fmt: skip
def test_an_episode_of_wrong_types_is_a_damaged_one(
    place: Path, shown: Viewer, change: dict[str, Any]
) -> None:
    made = make(place / "project")
    path = made / "episodes" / "e.episode"
    write_episode(path, **{"requests": [], **change})
    with pytest.raises(SpecError):
        read_episode(path)
    listed = answers(shown)["/api/trials/t/episodes"].json["episodes"]
    assert "return" not in listed[0]
    assert ask(shown, "/api/trials/t/episodes/e").status == 400


def test_an_episode_costs_what_its_bytes_allow(
    place: Path, shown: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18 KB that stand for 18 MB: counted are the bodies that are decoded, and what is painted."""
    monkeypatch.setattr(video, "MAX_FRAMES", 20)
    made = make(place / "project")
    many = codec.encode({"observation": np.zeros((84, 84), np.uint8), "reward": 1.0})
    size = write_episode(made / "episodes" / "e.episode", [["tick", 0.0, many, b""]] * 2500)
    assert size < 40_000
    decoded: list[int] = []
    real = codec.decode
    monkeypatch.setattr(
        codec, "decode", lambda body, **rest: decoded.append(len(body)) or real(body, **rest)
    )
    (one,) = ask(shown, "/api/trials/t/episodes").json["episodes"]
    assert set(one) == {"name", "bytes"}, "what is long is summed up when it is opened"
    found = ask(shown, "/api/trials/t/episodes/e").json
    assert (found["num_steps"], found["return"]) == (2500, 2500.0)
    assert decoded == [], "a reward is read without the rest"
    assert ask(shown, "/api/trials/t/episodes/e/steps/7").status == 200
    assert len(decoded) == 1
    assert ask(shown, "/api/trials/t/episodes/e/steps/7/picture").status == 200
    assert len(decoded) < 4
    assert ask(shown, "/api/trials/t/episodes/e/video?format=gif").status == 200
    assert len(decoded) < 4 + 2 * video.MAX_FRAMES


def test_more_steps_than_are_shown_are_told_not_made(place: Path, shown: Viewer) -> None:
    made = make(place / "project")
    size = write_episode(made / "episodes" / "e.episode", [["tick", 0.0, b"", None]] * 150_000)
    assert size < 20_000
    answer = ask(shown, "/api/trials/t/episodes/e")
    assert (answer.status, "100000 requests at most" in answer.json["error"]["message"]) == (
        400,
        True,
    )
    assert ask(shown, "/api/trials/t/episodes").json["episodes"] == [{"name": "e", "bytes": size}]


def test_open_episodes_are_kept_up_to_a_size(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bray.viewer.episodes._MAX_KEPT_BYTES", 3_000_000)
    made = make(place / "project")
    episodes = RecordedEpisodes()
    for number in range(6):
        body = b"x" * 1_000_000
        write_episode(made / "episodes" / f"{number}.episode", [["tick", 0.0, body, None]])
    for number in range(6):
        assert len(episodes.steps(made, str(number))) == 1
    assert [path.stem for path in episodes._open] == ["4", "5"]


BODIES = {
    "lists": b"\xdd" + (1 << 20).to_bytes(4, "big") + b"\x90" * (1 << 20),
    "rewarded": b"\x82\xa1x\xdd" + (1 << 20).to_bytes(4, "big") + b"\x80" * (1 << 20)
    + b"\xa6reward\x01",
    "deep": b"\x91" * 500 + b"\x01",
    "json": b"[" * 900 + b"]" * 900,
    "json lists": b"[" + b"[]," * 600_000 + b"[]]",
    "keys": codec.encode({"k" * 1_000_000: [1] * 1000}),
    "huge array": codec.encode({"observation": np.ones((4, 1000, 2500), bool)}),
    "wide": codec.encode({"observation": np.ones((9, 200_000), np.float32)}),
    "many": codec.encode({f"k{number}": np.full((64, 64), number) for number in range(100)}),
    "extremes": codec.encode({"o": np.array([[1e308, -1e308] * 8] * 9), "h": np.float16([6e4])}),
    "none": codec.encode({"o": np.empty((0, 9, 9)), "c": np.zeros(3, np.complex64)}),
    "surrogate": b'{"a": "\\ud800", "reward": 1}',
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_is_shown_and_drawn_in_a_bounded_space(
    place: Path, shown: Viewer, body: bytes
) -> None:
    made = make(place / "project")
    write_episode(
        made / "episodes" / "e.episode", [["tick", float(n), body, b""] for n in range(2)]
    )
    step = ask(shown, "/api/trials/t/episodes/e/steps/1")
    assert step.status == 200
    assert len(step.body) < 200_000
    assert len(step.json["body"]) <= 200
    image = rendering.Painter(None, RecordedEpisodes().steps(made, "e")).image(0)
    assert max(image.size) <= 2048
    assert max(video.scaled_down(image).size) <= video.MAX_SIDE
    assert ask(shown, "/api/trials/t/episodes/e/steps/1/picture").status == 200
    assert ask(shown, "/api/trials/t/episodes/e").status == 200


@pytest.mark.parametrize(
    ("body", "reward"),
    [
        (codec.encode({"reward": 1.5}), 1.5), (codec.encode({"reward": np.float32(2)}), 2.0),
        (codec.encode({"reward": np.array([3], np.int64)}), 3.0), (b'{"reward": 4}', 4.0),
        (codec.encode({"reward": True}), 1.0), (codec.encode({"reward": 10**18}), 1e18),
        (codec.encode({"reward": [1.0]}), None), (codec.encode({"reward": "1"}), None),
        (codec.encode({"reward": np.zeros(2)}), None), (codec.encode({"reward": np.nan}), None),
        (codec.encode({"reward": np.zeros(1, np.complex64)}), None), (b"", None), (b"text", None),
        (b"\x81\xa6reward", None), (b'{"reward": ' + b"9" * 400 + b"}", None), (b"{", None),
        (b'{"reward": ' + b"[" * 5000, None), (b"\x81\xa6reward\xc7\x01\x05x", None),
    ],
)  # fmt: skip
def test_a_reward_is_a_number_or_none(body: bytes, reward: float | None) -> None:
    assert request_bodies.reward_of(body) == reward


def test_metrics_take_memory_by_their_values(tmp_path: Path) -> None:
    made = trial(tmp_path, "t", rows=0, seed=0)
    lines = [{"frames": n, "values": {f"name/{n}": 1.0}} for n in range(MAX_NAMES + 5000)]
    lines.append({"frames": 1, "values": {"x" * 2000: 1.0, "name/0": 2.0}})
    (made / LAUNCH / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    log = MetricLog(made)
    assert len(log.names()) == MAX_NAMES
    assert log.num_bytes < 10_000_000, "not names times lines"
    assert log.curve("name/0", "frames").y.tolist() == [1.0, 2.0]


def test_a_resumed_trial_has_all_its_metrics_and_gaps_between_launches(
    place: Path, shown: Viewer
) -> None:
    made = trial(place / "project", "t", rows=30, seed=0)
    after = made / "launches" / "20261122-120000"
    after.mkdir()
    rows = [line(n, np.random.default_rng(1), 0, 1.0) for n in range(20)]
    for row in rows:
        row["frames"] += 30 * 1024  # the axes go on, the counts of a process begin anew
        del row["values"]["actor/episode_return"]
    (after / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "actor/episode_return" in ask(shown, "/api/metrics?trial=t").json
    (before,) = (one for one in ask(shown, "/api/trials").json)
    assert before["return"] is not None
    (steps,) = ask(shown, "/api/curves?trial=t&metric=actor/steps").json
    assert steps["y"] == steps["x"], "played so far"
    assert steps["starts"] == [30]
    (loss,) = ask(shown, "/api/curves?trial=t&metric=trainer/loss&points=10&smoothing=0.5").json
    (start,) = loss["starts"]
    assert loss["x"][start - 1] <= 30 * 1024 < loss["x"][start]
    part = ask(shown, "/api/curves?trial=t&metric=actor/steps&from=40000").json[0]
    assert (part["starts"], part["y"]) == ([], part["x"])


def test_a_log_of_endless_lines_is_read_in_pages(place: Path, shown: Viewer) -> None:
    made = make(place / "project")
    head = "2026-11-21 12:00:00,000 INFO bray.run: "
    forged = f"x\r{head}forged"
    many = "\x01" * 7000
    (made / "bray.log").write_text(
        "".join(f"{head}{one}\n" for one in ("z" * 5_000_000, forged, *[many] * 300))
    )
    page = ask(shown, "/api/trials/t/log?limit=1000").json
    assert sum(len(one["text"]) for one in page["records"]) <= 2**20
    assert len(page["records"]) > 100
    seen, end = 0, None
    while end != 0:
        part = log_tail.before(made, level="INFO", limit=1000, end=end)
        seen += len(part["records"])
        assert end is None or part["start"] < end
        end = part["start"]
    assert seen == 302, "what stands after a carriage return begins no record"
    after = log_tail.after(made, level="INFO", limit=1000, start=page["end"])
    assert after["records"] == []


def test_drafts_are_regular_files_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "drafts"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text(SECRET)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "folder.yaml").mkdir()
    made = TemplateFiles(folder)
    for name in ("pipe.yaml", "link.yaml", "folder.yaml"):
        with pytest.raises(NotFoundError):
            made.open(name)
        with pytest.raises(ConfigError):
            made.save(name, "algorithm: dqn\nsource: {environment: CartPole-v1}\n", None)
    assert made.names() == []
    assert template_files.MAX_BYTES < 2**20


def test_settings_of_the_form_are_bounded_and_any_charset_is_json(place: Path) -> None:
    viewer = Viewer(place / "project", builder=place / "project")
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    try:
        for settings, said in ((deep, "nested too deeply"), ({"a": "x" * 40_000}, "bytes at most")):
            posted = json.dumps({"text": "", "settings": settings})
            answer = ask(viewer, "/api/builder/check", "POST", posted, Bray_Page="1")
            assert (answer.status, said in answer.json["error"]["message"]) == (400, True)
        kind = "application/json; charset=nonsense"
        answer = ask(
            viewer, "/api/builder/check", "POST", '{"text": ""}', Bray_Page="1", Content_Type=kind
        )
        assert answer.status == 200
        for origin in ("http://[", "null"):
            answer = ask(viewer, "/api/builder/check", "POST", "{}", Bray_Page="1", Origin=origin)
            assert answer.status == 403
    finally:
        viewer.close()


def test_a_league_of_any_content_is_a_table_or_told(tmp_path: Path) -> None:
    (tmp_path / "league.json").write_text(
        json.dumps({"payoff": {"players": ["x" * 5000] * 3000, "results": [[0, 2999, 1, 0, 0, 1]]}})
    )
    found = league_results.league(tmp_path)
    assert (len(found["players"]), len(found["players"][0])) == (league_results.MAX_PLAYERS, 200)
    assert len(league_results.ratings(tmp_path)["players"]) == league_results.MAX_PLAYERS


def test_a_trial_whose_name_is_no_text_is_not_listed(place: Path, shown: Viewer) -> None:
    make(place / "project")
    (place / "project" / os.fsdecode(b"\xff") / "launches").mkdir(parents=True)
    assert [one["name"] for one in ask(shown, "/api/trials").json] == ["t"]


def test_records_of_many_launches_are_shown_up_to_a_size(tmp_path: Path) -> None:
    for number in range(60):
        launch = tmp_path / "launches" / f"2026{number:04d}-000000"
        launch.mkdir(parents=True)
        (launch / "changes.diff").write_text("x" * 200_000)
    found = project.describe(tmp_path)["launches"]
    assert found[0]["name"] == "20260059-000000"
    assert sum(len(one["changes"]) for one in found) <= 2**22


def test_a_step_keeps_what_a_render_function_is_given(tmp_path: Path) -> None:
    record(tmp_path, episodes=1, pixels=True)
    (name,) = RecordedEpisodes().names(tmp_path)
    steps = RecordedEpisodes().steps(tmp_path, name)
    assert isinstance(steps[3], EpisodeStep)
    assert (steps[3].index, steps[-1].kind) == (3, "end")
    assert [step.index for step in steps[:3]] == [0, 1, 2]
    assert steps[2].body["observation"].shape == (4, 42, 42)
