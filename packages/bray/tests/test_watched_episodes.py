"""What `bray watch` plays is kept in the trial, frame by frame, with what the policy decided."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image
from test_composition_runs import run_of
from viewer_client import ask

import bray
from bray.trained import watching
from bray.trained.decisions import described
from bray.viewer.decisions import decisions_of
from bray.viewer.episodes import EpisodeStep
from bray.viewer.rendering import Painter
from bray.viewer.server import Viewer
from bray.viewer.text_picture import board_in, image_of
from bray_actor.environments.spec import EnvironmentSpec
from bray_actor.recording import read_episode
from bray_core import codec
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_core.process.user_modules import code_name

pytestmark = pytest.mark.usefixtures("evaluated_here")
SMALL: dict[str, Any] = {"steps_per_replay": 128, "hidden": [4], "num_envs": 2}
MATCHES = """
algorithm: ppo
model: {hidden: [4]}
source: {kind: matches, environment: "bray:tic-tac-toe", num_envs: 2}
trainer: {steps_per_replay: 64, epochs: 1, minibatch_size: 64}
goal: {max_frames: 64, evaluation_episodes: 2}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial of CartPole, trained for a moment, of which one episode was watched."""
    folder = tmp_path_factory.mktemp("watched")
    path = folder / "cart"
    unseen = {"render": {"first_episodes": 0}}
    bray.train("CartPole-v1", "ppo", frames=256, episodes=2, trial=path, **SMALL, **unseen).close()
    assert main(["watch", str(path), "--save", str(folder / "cart.webp")]) == 0
    return folder


@pytest.fixture
def viewer(project: Path) -> Iterator[Viewer]:
    viewer = Viewer(project)
    yield viewer
    viewer.close()


def test_a_watched_episode_is_drawn_by_its_environment(viewer: Viewer) -> None:
    (episode,) = ask(viewer, "/api/trials/cart/episodes").json["episodes"]
    address = f"/api/trials/cart/episodes/{episode['name']}"
    found = ask(viewer, address).json
    ticks = found["kinds"].count("tick")
    assert found["return"] == ticks
    assert found["kinds"][0] == "start"
    assert found["kinds"][-1] == "end"
    values = [value for value in found["values"] if value is not None]
    assert len(values) == ticks
    step = ask(viewer, f"{address}/steps/2").json
    (decision,) = step["decisions"]
    (chances,) = decision["probabilities"]
    assert sum(chances) == pytest.approx(1)
    assert decision["action"] == [float(np.argmax(chances))]
    assert decision["value"] == pytest.approx(values[1], rel=1e-4)
    assert {leaf["path"] for leaf in step["body"]} == {"observation", "reward"}  # no bytes
    picture = ask(viewer, f"{address}/steps/2/picture")
    with Image.open(io.BytesIO(picture.body)) as image:
        assert image.size == (300, 200)
        assert (0, 0, 0) in {colour for _, colour in image.getcolors(100_000)}  # the cart


def test_an_episode_that_takes_long_to_draw_is_cut(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "DRAWING_S", -1.0)
    with bray.load(project / "cart") as agent:
        watching.record_drawn(agent, agent.environment, tmp_path, seed=1)
    (file,) = tmp_path.iterdir()
    episode = read_episode(file)
    assert [one.kind for one in episode.requests] == ["start", "tick", "end"]
    assert not episode.is_whole


def test_the_first_launch_keeps_an_episode_that_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "cart"
    bray.train("CartPole-v1", algorithm="ppo", frames=256, episodes=2, trial=path, **SMALL).close()
    newest, other = sorted((path / "episodes").iterdir(), reverse=True)
    tick = codec.decode(read_episode(newest).requests[1].body)
    assert tick["frame"][:4] == b"RIFF"
    assert "frame" not in codec.decode(read_episode(other).requests[1].body)


class Counter(gymnasium.Env[Any, Any]):
    """Draws its number of steps, always into the same array."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._pixels = np.zeros((8, 8, 3), np.uint8)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(4, np.float32), 1.0, self._steps == 5, False, {}

    def render(self) -> Any:
        self._pixels[:] = 40 * self._steps
        return self._pixels


DRAWS = EnvironmentSpec.of(f"{__file__}:Counter")


@pytest.mark.parametrize("rate", [None, 0, "fast", float("nan"), float("inf")])
def test_an_environment_may_tell_no_rate_of_frames(
    rate: Any, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Counter.metadata, "render_fps", rate)
    drawn = EnvironmentSpec.of(code_name(Counter))
    with bray.load(project / "cart") as agent:
        watching.record_drawn(agent, drawn, tmp_path, seed=1)
        assert watching.save_video(agent, drawn, 1, seed=1, file=tmp_path / "all.gif")[1] == 6


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ("O..X", r"str of shape \[\]"),
        (None, r"NoneType of shape \[\]"),
        ([np.zeros((8, 8, 3), np.uint8)] * 2, r"list of shape \[2, 8, 8, 3\]"),
        (np.zeros((0, 0, 3), np.uint8), r"ndarray of shape \[0, 0, 3\]"),
        (np.full((8, 8, 3), 0.5), r"ndarray .* of float64 from 0.5 to 0.5: multiply it by 255"),
        (np.full((8, 8, 3), np.nan), "ndarray .* of float64 from nan to nan"),
        (np.full((8, 8, 3), 300), "ndarray .* of int64 from 300 to 300"),
    ],
)
def test_what_is_no_image_is_refused(
    drawn: Any, words: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counter, "render", lambda _: drawn)
    wanted = rf"expected `render\(\)` to return an image \[H, W, 3\] of bytes, got {words}"
    with bray.load(project / "cart") as agent, pytest.raises(ConfigError, match=wanted):
        agent.watch(save=tmp_path / "all.gif", environment=EnvironmentSpec.of(code_name(Counter)))


@pytest.mark.parametrize(("kind", "most"), [("gif", "65,535"), ("webp", "16,383")])
def test_a_video_that_would_be_too_wide_is_refused(kind: str, most: str, tmp_path: Path) -> None:
    wide = np.zeros((1, 65_536, 3), np.uint8)
    with pytest.raises(ConfigError, match=f"a .{kind} has at most {most} .* draws 65,536 × 1: let"):
        watching.write_video(tmp_path / f"all.{kind}", [wide], 30)


def test_frames_for_ffmpeg_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text('#!/bin/sh\nfor last; do :; done\nexec cat > "$last"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    shapes = [(8, 6), (8, 6, 3), (8, 6, 4), (9, 7, 3)]
    frames = [np.full(shape, 7, np.uint8) for shape in shapes]
    watching.write_video(tmp_path / "all.mp4", frames, 30)
    assert (tmp_path / "all.mp4").read_bytes() == bytes([7]) * (8 * 6 * 3 * len(shapes))


def test_a_trial_that_cannot_be_written_is_watched_all_the_same(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("a file")
    with bray.load(project / "cart") as agent:
        watching.save_video(agent, DRAWS, 1, seed=1, file=tmp_path / "all.gif", record=kept)
    assert f"the episode is not kept in {kept}: File exists" in caplog.text


def test_every_second_step_of_a_quick_environment_is_drawn(project: Path, tmp_path: Path) -> None:
    with bray.load(project / "cart") as agent:
        watching.record_drawn(agent, DRAWS, tmp_path / "kept", seed=1)
        _, shown = watching.save_video(agent, DRAWS, 1, seed=1, file=tmp_path / "all.webp")
    assert shown == 6
    (file,) = (tmp_path / "kept").iterdir()
    bodies = [codec.decode(one.body) for one in read_episode(file).requests[1:]]
    drawn = [Image.open(io.BytesIO(body["frame"])).convert("L").getpixel((4, 4)) for body in bodies]
    assert np.allclose(drawn, [0, 0, 80, 80, 160, 200], atol=3)
    with Image.open(tmp_path / "all.webp") as video:
        seen = []
        for number in range(6):
            video.seek(number)
            seen.append(video.convert("L").getpixel((4, 4)))
    assert np.allclose(seen, [0, 40, 80, 120, 160, 200], atol=3)


def test_an_episode_is_played_by_request_only_where_runs_may_be_started(
    project: Path, tmp_path: Path, viewer: Viewer
) -> None:
    mark = {"Content_Type": "application/json", "Bray_Page": "1"}
    body = '{"trial": "cart"}'
    assert ask(viewer, "/api/project").json["starts_runs"] is False
    assert ask(viewer, "/api/builder/watch", "POST", body, **mark).status == 403
    starting = Viewer(project, builder=tmp_path)
    try:
        assert ask(starting, "/api/project").json["starts_runs"] is True
        assert ask(starting, "/api/builder/watch", "POST", body).status == 403  # another site's
        for name in ("..", "none", "cart/../cart", "--help"):
            wrong = f'{{"trial": "{name}"}}'
            assert ask(starting, "/api/builder/watch", "POST", wrong, **mark).status == 404
        assert ask(starting, "/api/builder").json["runs"] == []
    finally:
        starting.close()


def test_games_of_turns_are_kept_as_boards(tmp_path: Path) -> None:
    path: Path = run_of(tmp_path, MATCHES)["path"]
    assert main(["watch", str(path), "--against", "random"]) == 0
    viewer = Viewer(path.parent)
    try:
        (episode,) = ask(viewer, f"/api/trials/{path.name}/episodes").json["episodes"]
        address = f"/api/trials/{path.name}/episodes/{episode['name']}"
        second = ask(viewer, f"{address}/steps/2").json
        (decision,) = second["decisions"]
        assert (decision["agent"], decision["policy"]) == ("player_1", "random")
        picture = ask(viewer, f"{address}/steps/2/picture")
        with Image.open(io.BytesIO(picture.body)) as image:
            assert image.size == (193, 193)  # three places of 64 pixels, and a line
            assert len(image.convert("RGB").getcolors(1000)) >= 3  # board, lines, one stone
    finally:
        viewer.close()


def test_decisions_of_every_kind_are_told() -> None:
    choice = described(np.int64(1), {"logits": np.array([0.0, np.log(3), -np.inf]), "value": 1})
    assert choice["probabilities"].tolist() == [0.25, 0.75, 0]
    several = described([0, 1], {"logits": [np.zeros(2), np.zeros(4)]})
    assert [head.tolist() for head in several["probabilities"]] == [[0.5] * 2, [0.25] * 4]
    reals = described(np.zeros(2), {"mean": np.ones(2), "log_std": np.zeros(2)})
    assert (reals["mean"].tolist(), reals["std"].tolist()) == ([1, 1], [1, 1])
    step = EpisodeStep(1, "tick", 0.0, {}, {"action": np.array([0, 1]), **several})
    (shown,) = decisions_of(step)
    assert shown["probabilities"] == [[0.5, 0.5], [0.25] * 4]
    assert described("left", None) == {"action": "left"}


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"bytes",
        {"action": "left", "value": [1, 2], "probabilities": {"a": 1}},
        {"action": [[1], [2, 3]], "probabilities": [["a"], None], "mean": "x"},
        {"agents": {"a": 1, "b": {"action": {"x": 1}, "value": float("nan")}}},
        {"agents": {f"agent {i}": {"action": np.zeros(10_000)} for i in range(100)}},
    ],
)
def test_replies_that_are_no_decisions_harm_nothing(reply: Any) -> None:
    found = decisions_of(EpisodeStep(1, "tick", 0.0, {}, reply))
    assert len(found) <= 32
    assert all(len(one["action"]) <= 64 for one in found)  # type: ignore[arg-type]


def test_a_frame_that_is_damaged_or_too_large_is_not_opened() -> None:
    def drawn(frame: Any) -> tuple[int, int]:
        step = EpisodeStep(1, "tick", 0.0, {"frame": frame}, {"action": np.int64(1)})
        return Painter(None, [step]).image(0).size

    def packed(width: int, kind: str) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", (width, 10)).save(file, kind)
        return file.getvalue()

    for kind in ("PNG", "WEBP", "JPEG"):
        assert drawn(packed(20, kind)) == (20, 10)
    cells = drawn(b"nothing")
    assert cells[0] == 560
    for frame in (packed(20, "PNG")[:40], packed(20, "BMP"), packed(3000, "PNG"), b"", 7):
        assert drawn(frame)[0] == 560


def test_boards_and_other_texts() -> None:
    assert board_in("x.o\n...\n.x.\n") == ["x.o", "...", ".x."]
    assert board_in(". X\nO .") == [".X", "O."]
    for other in ("", "Round: 1\nPot: 2", "..\n...", "x.o", "xy\n..", "abc\ndef"):
        assert board_in(other) == []
        assert image_of(other).shape[2] == 3
    first, second = image_of("x.\n.."), image_of("o.\n..")
    assert first.shape == second.shape == (129, 129, 3)
    assert (first != second).any()
    assert image_of("x" * 1_000_000).shape[1] < 3000
