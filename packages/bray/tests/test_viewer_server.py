"""The viewer's port: who may ask, what is refused, and how much an answer may weigh."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest
from PIL import Image
from viewer_client import ask
from viewer_project import HOSTILE, append, record, trial

from bray.cli import view as view_command
from bray.viewer import project
from bray.viewer.server import Viewer
from bray_core.errors import BrayError, ConfigError, NotFoundError, PortInUseError

TOKEN = "a token of this test"


def episode_of(viewer: Viewer, trial: str) -> str:
    name = ask(viewer, f"/api/trials/{trial}/episodes?number=1").json["episodes"][0]["name"]
    return f"/api/trials/{trial}/episodes/{name}"


@pytest.fixture(scope="module")
def guarded(viewed: Path) -> Iterator[Viewer]:
    viewer = Viewer(viewed, token=TOKEN)
    yield viewer
    viewer.close()


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/trials", "/api/nothing", "/login"])
def test_every_answer_tells_the_browser_to_trust_nothing_else(viewer: Viewer, path: str) -> None:
    headers = ask(viewer, path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_request_may_name_as_many_trials_as_are_compared(viewer: Viewer) -> None:
    names = urlencode([("trial", f"{'x' * 90}-{number:03}") for number in range(200)])
    assert ask(viewer, f"/api/metrics?{names}").status == 404, "there are none, and it says so"


def test_the_page_may_lie_below_a_path_of_a_proxy() -> None:
    """As of JupyterHub, `/user/me/proxy/7331/`: it asks for all relative to where it lies."""
    folder = Path(project.__file__).parent / "static"
    for file in folder.iterdir():
        assert not re.search(r"""["'`]/(api|static|login)""", file.read_text()), file.name


def test_the_page_asks_nothing_of_another_host() -> None:
    folder = Path(project.__file__).parent / "static"
    for file in folder.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static//etc/passwd",
        "/../../etc/passwd",
        "/api/trials/..",
        "/api/trials/..%2f..%2fetc",
        "/api/trials/%2fetc/log",
        "/api/trials/ppo-1%00/log",
        "/api/trials/ppo-1/episodes/..%2f..%2fconfig.yaml",
        "/api/trials/ppo-1/episodes/%2e%2e",
        "/api/metrics?trial=../demo/ppo-1",
        "/api/curves?trial=..&metric=a",
    ],
)
def test_what_is_not_in_a_listing_is_not_found(viewer: Viewer, path: str) -> None:
    answer = ask(viewer, path)
    assert answer.status == 404
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/curves?x=weeks", "x: expected one of frames, steps, seconds, policy_version"),
        ("/api/curves?smoothing=1", "smoothing: expected 0 to 0.9999, got '1'"),
        ("/api/curves?points=nan", "points: expected 4 to 2000, got 'nan'"),
        ("/api/trials/ppo-2/log?level=LOUD", "level: expected one of DEBUG"),
        ("/api/trials/ppo-2/log?before=-1", "before: expected a whole number"),
        ("/api/trials/ppo-1/episodes?number=1e9", "number: expected 1 to 200"),
        ("/api/trials/ppo-1/episodes?start=x", "start: expected a whole number"),
        (
            "/api/curves?" + "&".join(f"trial={n}" for n in range(300)),
            "trial: expected 200 at most",
        ),
    ],
)
def test_a_nonsensical_question_is_told_what_was_expected(
    viewer: Viewer, path: str, said: str
) -> None:
    answer = ask(viewer, path)
    assert answer.status == 400
    assert said in answer.json["error"]["message"]


def test_steps_and_pictures_of_an_episode(viewer: Viewer) -> None:
    episode = episode_of(viewer, "pixels")
    step = ask(viewer, f"{episode}/steps/1").json
    assert step["kind"] == "tick"
    assert step["body"][0]["shape"] == [4, 42, 42]
    picture = ask(viewer, f"{episode}/steps/1/picture")
    assert picture.headers["Content-Type"] == "image/png"
    assert Image.open(io.BytesIO(picture.body)).size == (252, 252)
    for wrong in ("22", "-1", "1.5", "٣"):
        assert ask(viewer, f"{episode}/steps/{quote(wrong)}").status == 400
    assert ask(viewer, f"{episode}/steps/1/picture?render=none").status == 400


def test_a_video_comes_as_a_file(viewer: Viewer) -> None:
    episode = episode_of(viewer, "pixels")
    answer = ask(viewer, f"{episode}/video?format=gif&frames_per_s=10")
    assert (
        answer.headers["Content-Disposition"]
        == f'attachment; filename="{episode.split("/")[-1]}.gif"'
    )
    with Image.open(io.BytesIO(answer.body)) as image:
        assert image.n_frames == 22
    assert ask(viewer, f"{episode}/video?format=exe").status == 400
    assert ask(viewer, f"{episode}/video?frames_per_s=0").status == 400


def test_nothing_is_written(viewer: Viewer, viewed: Path) -> None:
    def state() -> dict[str, str]:
        files = [file for file in viewed.rglob("*") if file.is_file()]
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    before = state()
    for one in ask(viewer, "/api/trials").json:
        name = quote(one["name"], safe="")
        for page in ("", "/loop", "/versions", "/league", "/ratings", "/log", "/episodes"):
            assert ask(viewer, f"/api/trials/{name}{page}").status in (200, 404)
    assert state() == before
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(viewer, "/api/trials/ppo-1", method).status == 403
        assert ask(viewer, "/api/trials/ppo-1", method, Bray_Page="1").status == 405


def test_what_has_not_changed_comes_without_a_body(viewer: Viewer) -> None:
    path = "/api/curves?trial=ppo-1&metric=trainer/loss"
    first = ask(viewer, path)
    again = ask(viewer, path, If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")


def test_a_part_of_a_curve_is_not_thinned_as_the_whole(viewer: Viewer) -> None:
    path = "/api/curves?trial=ppo-1&metric=trainer/loss&x=policy_version&points=50&from=100&to=140"
    (part,) = ask(viewer, path).json
    assert part["x"] == list(range(100, 141))
    assert ask(viewer, path.replace("100", "many")).status == 400


def test_a_hostile_name_is_only_a_name(viewer: Viewer) -> None:
    found = ask(viewer, f"/api/trials/{quote(HOSTILE, safe='')}").json
    assert found["name"] == HOSTILE


def test_another_hosts_name_is_refused_without_a_token(viewer: Viewer) -> None:
    assert ask(viewer, "/api/trials", Host="rebound.example").status == 403
    assert ask(viewer, "/", Host="rebound.example:7360").status == 403
    for host in ("localhost", "127.0.0.1:1", "[::1]:7360"):
        assert ask(viewer, "/api/project", Host=host).status == 200


def test_a_token_is_asked_for(guarded: Viewer) -> None:
    assert ask(guarded, "/api/trials").status == 401
    assert ask(guarded, "/static/app.js").status == 401
    assert ask(guarded, "/").headers["Location"] == "/login"
    assert ask(guarded, "/api/trials", Authorization="Bearer wrong").status == 401
    assert ask(guarded, "/api/trials", Cookie="bray-view=wrong").status == 401
    assert ask(guarded, "/api/trials", Cookie="bray-view=ü").status == 401
    assert ask(guarded, "/api/trials", Authorization=f"Bearer {TOKEN}").status == 200
    assert ask(guarded, "/login", Host="a.machine.example").status == 200


def test_the_form_takes_the_token_and_gives_a_cookie(guarded: Viewer) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    wrong = ask(guarded, "/login", "POST", urlencode({"token": "wrong"}), **form)
    assert wrong.status == 401
    assert b"Wrong token." in wrong.body
    right = ask(guarded, "/login", "POST", urlencode({"token": TOKEN}), **form)
    cookie = right.headers["Set-Cookie"]
    assert (right.status, right.headers["Location"]) == (303, "/")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert ask(guarded, "/", Cookie=cookie.split(";")[0]).status == 200


def test_a_port_beyond_this_machine_wants_a_token(viewed: Path) -> None:
    with pytest.raises(ConfigError, match="add --token-env"):
        Viewer(viewed, host="0.0.0.0")
    with pytest.raises(ConfigError, match="expected 0 to 65535, got 70000"):
        Viewer(viewed, port=70000)
    with pytest.raises(ConfigError, match="cannot listen"):
        Viewer(viewed, host="203.0.113.7", token=TOKEN)
    with pytest.raises(NotFoundError, match="no folder"):
        Viewer(viewed / "nowhere")


def test_a_port_in_use_is_named(viewer: Viewer, viewed: Path) -> None:
    port = urlsplit(viewer.address).port or 0
    with pytest.raises(PortInUseError, match=f"port {port} .* choose another with --port"):
        Viewer(viewed, port=port)


def test_a_render_function_of_the_user_draws_and_its_error_is_told(
    viewed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drawings_7.py").write_text(
        "import numpy as np\n"
        "def brightness(step):\n"
        "    return np.full((10, 10), 7 * step.index, np.uint8)\n"
        "def broken(step):\n"
        "    raise RuntimeError('out of ink')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    viewer = Viewer(viewed, renders=["drawings_7:brightness", "drawings_7:broken"])
    try:
        episode = episode_of(viewer, "pixels")
        picture = ask(viewer, f"{episode}/steps/3/picture?render=drawings_7:brightness")
        assert Image.open(io.BytesIO(picture.body)).getpixel((0, 0)) == (21, 21, 21)
        answer = ask(viewer, f"{episode}/steps/3/picture?render=drawings_7:broken")
        assert (answer.status, answer.json["error"]["message"]) == (500, "RuntimeError: out of ink")
        assert ask(viewer, f"{episode}/steps/3/picture").status == 200
    finally:
        viewer.close()


def test_a_large_project_is_answered_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"trial-{n:03d}" for n in range(100)]
    first = trial(tmp_path, names[0], rows=400, seed=0)
    for name in names[1:]:
        launch = tmp_path / name / "launches" / "1"
        launch.mkdir(parents=True)
        os.link(first / "launches/20261121-120000/metrics.jsonl", launch / "metrics.jsonl")
    record(first, episodes=1, pixels=False)
    (episode,) = (first / "episodes").iterdir()
    for n in range(9_999):
        os.link(episode, episode.with_name(f"20250101T000000-1-{n:06d}.episode"))
    read = []
    monkeypatch.setattr(
        project, "tail", lambda path, tail=project.tail: read.append(1) or tail(path)
    )
    viewer = Viewer(tmp_path)
    try:
        assert ask(viewer, "/api/trials", Accept_Encoding="gzip").num_bytes < 10_000
        before = len(read)
        assert len(ask(viewer, "/api/trials").json) == 100
        assert len(read) == before == 100  # the second time no file is read
        trials = urlencode([("trial", name) for name in names])
        curves = ask(viewer, f"/api/curves?metric=actor/episode_return&points=2000&{trials}")
        assert [one["count"] for one in curves.json] == [400] * 100
        assert len(curves.body) < 1_000_000
        page = ask(viewer, f"/api/trials/{names[0]}/episodes?start=5000")
        assert page.json["total"] == 10_000
        assert len(page.json["episodes"]) == 50
        assert len(page.body) < 15_000
    finally:
        viewer.close()


def test_a_growing_trial_is_followed(tmp_path: Path) -> None:
    growing = trial(tmp_path, "t", rows=30, seed=0)
    viewer = Viewer(tmp_path)
    try:
        path = "/api/curves?trial=t&metric=trainer/frames"
        assert ask(viewer, path).json[0]["count"] == 30
        append(growing / "launches" / "20261121-120000", rows=5, seed=5, first=30)
        assert ask(viewer, path).json[0]["count"] == 35
        assert ask(viewer, "/api/trials").json[0]["frames"] == 35 * 1024
    finally:
        viewer.close()


def test_the_command_says_where_and_ends_with_ctrl_c(viewed: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bray_core.cli",
        "view",
        str(viewed / "ppo-1"),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert said.startswith("open http://127.0.0.1:")
    assert "/#/loop/ppo-1 in a browser" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no folder nowhere"),
        ([".", "--token-env", "NO_SUCH_7"], "NO_SUCH_7 is not set"),
        ([".", "--render", "draw"], "expected module:function"),
    ],
)
def test_the_command_names_what_is_wrong(arguments: list[str], said: str) -> None:
    parser = argparse.ArgumentParser()
    view_command.view.add_arguments(parser)
    with pytest.raises(BrayError, match=said):
        view_command.view.run(parser.parse_args(arguments))
