"""What the viewer reads of a trial's other files: its state, log, league, versions, episodes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from viewer_project import HOSTILE, league, record, trial, write_log, write_record

from bray.viewer import league_results, log_tail, model_versions, project, rendering, video
from bray.viewer.episodes import EpisodeStep, RecordedEpisodes
from bray.viewer.project import Project
from bray.viewer.request_bodies import decode_body, describe_leaves
from bray_algo.league.elo import fit_elo
from bray_algo.league.payoff import PayoffTable
from bray_core import codec
from bray_core.errors import CodecError, ConfigError, NotFoundError, SpecError
from bray_core.trials.trial import Trial


def test_a_project_lists_its_trials_with_their_state_and_figures(viewed: Path) -> None:
    found = {trial["name"]: trial for trial in Project(viewed).summaries()}
    assert sorted(found) == sorted([HOSTILE, "league", "live", "pixels", "ppo-1", "ppo-2", "ppo-3"])
    states = {name: one["state"] for name, one in found.items()}
    assert states["live"] == "running"
    assert states["ppo-1"] == "finished"
    assert states["ppo-2"] == "crashed"
    lines = (viewed / "ppo-2/launches/20261121-120000/metrics.jsonl").read_text().splitlines()
    *_, last = newest = [json.loads(line) for line in lines[-10:]]  # in each ended 10 episodes
    assert found["ppo-2"]["frames"] == last["frames"] == 400 * 1024
    mean = np.mean([one["values"]["actor/episode_return"] for one in newest])
    assert found["ppo-2"]["return"] == pytest.approx(mean)
    assert found["ppo-2"]["updated_s"] == last["wall_time_s"]
    assert found["ppo-1"]["evaluation_return"] == 481.5
    assert found["pixels"]["frames"] is None


@pytest.mark.parametrize(
    "name", ["..", ".", "", "ppo-1/../ppo-2", "/etc", "ppo-1\0", "PPO-1", ".git"]
)
def test_a_name_that_is_not_in_the_listing_is_no_trial(viewed: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match="trial: no"):
        Project(viewed).trial(name)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        Project(tmp_path / "nowhere")


def test_a_launch_record_tells_how_it_ended(tmp_path: Path) -> None:
    path = trial(tmp_path, "t", rows=1, seed=0)
    assert project.state(path) == "crashed"
    launch = path / "launches" / "20261121-120000"
    write_record(launch, "interrupted")
    (launch / "changes.diff").write_bytes(b"+new\n\xff")
    assert project.state(path) == "interrupted"
    described = project.describe(path)
    assert described["launches"][0]["record"]["commit"] == "abc"
    assert described["launches"][0]["changes"].startswith("+new")
    assert "capacity: 64" in described["config"]
    (path / "result.json").write_text("[]")
    write_record(launch, None)
    assert project.state(path) == Trial(path).state == "crashed"
    (launch / "launch.json").write_text("{")
    assert project.state(path) == "crashed", "what cannot be read hides no trial"
    assert project.describe(path)["result"] == {}
    (tmp_path / "new" / "launches").mkdir(parents=True)
    assert project.state(tmp_path / "new") == "new"


def test_memory_of_metrics_is_bounded(viewed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_MAX_LOG_BYTES", 200_000)
    trials = Project(viewed)
    for name in ("ppo-1", "ppo-2", "ppo-3") * 2:
        assert trials.metrics(name).curve("trainer/loss", "frames")[0].size == 400
    assert len(trials._logs) < 3


def all_records(path: Path) -> list[tuple[str, str, str]]:
    """Read the log as a whole, plainly: level, component, text."""
    found: list[tuple[str, str, str]] = []
    for line in (path / "bray.log").read_text().splitlines():
        if re.match(r"\d{4}-", line):
            _, _, level, component, _, text = line.split(" ", 5)
            found.append((level, component, text))
        else:
            found[-1] = (*found[-1][:2], f"{found[-1][2]}\n{line}")
    return found


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR"])
@pytest.mark.parametrize("limit", [7, 1000])
def test_pages_of_the_log_add_up_to_it(
    tmp_path: Path, level: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, 2000)
    monkeypatch.setattr(log_tail, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(log_tail, "_MAX_SCAN_BYTES", 8000)
    pages: list[Any] = []
    end = None
    while end != 0:
        page = log_tail.before(tmp_path, level=level, limit=limit, end=end)
        pages = [*page["records"], *pages]
        end = page["start"]
    at = log_tail.LEVELS.index(level)
    wanted = [r for r in all_records(tmp_path) if log_tail.LEVELS.index(r[0]) >= at]
    assert [(r["level"], r["component"], r["text"]) for r in pages] == wanted


def test_a_log_is_followed_where_it_was_left(tmp_path: Path) -> None:
    assert log_tail.before(tmp_path, level="INFO", limit=5)["records"] == []
    assert log_tail.after(tmp_path, level="INFO", limit=5, start=3)["records"] == []
    write_log(tmp_path, 10)
    end = log_tail.before(tmp_path, level="INFO", limit=5)["end"]
    with (tmp_path / "bray.log").open("a") as file:
        file.write("2026-11-21 13:00:00,000 INFO bray.run: without a component\n2026-11-21 13:")
    page = log_tail.after(tmp_path, level="INFO", limit=5, start=end)
    assert [r["text"] for r in page["records"]] == ["without a component"]
    assert page["records"][0]["component"] == ""
    with (tmp_path / "bray.log").open("a") as file:
        file.write("00:01,000 ERROR bray.run: cut in two\n")
    page = log_tail.after(tmp_path, level="INFO", limit=5, start=page["end"])
    assert [r["text"] for r in page["records"]] == ["cut in two"]
    write_log(tmp_path, 3)  # another file, shorter
    assert len(log_tail.after(tmp_path, level="INFO", limit=5, start=page["end"])["records"]) == 3


def test_a_league_is_what_the_payoff_table_says(tmp_path: Path) -> None:
    league(tmp_path, players=6)
    table = PayoffTable.from_state(json.loads((tmp_path / "league.json").read_text())["payoff"])
    found = league_results.league(tmp_path)
    assert found["players"] == list(table.players)
    games = np.array(found["games"])
    assert (games == table.games).all()
    rates = np.array([[np.nan if rate is None else rate for rate in row] for row in found["rates"]])
    assert (np.isnan(rates) == (games == 0)).all()
    assert rates[games > 0] == pytest.approx(table.matrix()[games > 0], abs=1e-3)
    fit = fit_elo(table.wins + table.draws / 2, table.games)
    ratings = league_results.ratings(tmp_path)
    assert ratings["rating"] == pytest.approx(fit.rating, abs=0.1)
    assert ratings["low"] == pytest.approx(fit.interval()[0], abs=0.1)


def test_a_league_of_roles_and_one_that_is_broken(tmp_path: Path) -> None:
    league(tmp_path, players=3)
    state = json.loads((tmp_path / "league.json").read_text())
    both = {"league": {"learners": {"v0": "main"}}, "ratings": state["payoff"]}
    (tmp_path / "league.json").write_text(json.dumps(both))
    assert league_results.league(tmp_path)["roles"] == {"v0": "main"}
    for broken in ("{", "[]", '{"payoff": {"players": ["a"], "results": [[0, 5, 1, 0, 0, 1]]}}'):
        (tmp_path / "league.json").write_text(broken)
        with pytest.raises(CodecError, match="not a league"):
            league_results.league(tmp_path)
    with pytest.raises(NotFoundError, match="has no league"):
        league_results.league(tmp_path / "nowhere")


def test_only_so_many_players_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(league_results, "MAX_PLAYERS", 4)
    league(tmp_path, players=6)
    found = league_results.league(tmp_path)
    assert found["players"] == ["v20", "v30", "v40", "v50"]
    assert found["num_left_out"] == 2
    assert np.array(found["games"]).shape == (4, 4)


def test_versions_are_listed_with_time_and_size(viewed: Path) -> None:
    (model,) = model_versions.versions(viewed / "ppo-1")
    assert model["name"] == "policy"
    assert model["num_versions"] == 10
    assert [v["version"] for v in model["versions"]] == list(range(29, 19, -1))
    assert all(v["bytes"] > 64 * 64 * 4 and not v["pinned"] for v in model["versions"])
    assert model_versions.versions(viewed / "ppo-2") == []


def test_an_index_of_versions_that_is_broken_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "policy" / "versions"
    folder.mkdir(parents=True)
    (folder / "index.json").write_text("{")
    (model,) = model_versions.versions(tmp_path)
    assert "index" in model["problem"]
    assert model["versions"] == []


def test_episodes_are_paged_the_newest_first(viewed: Path) -> None:
    episodes = RecordedEpisodes()
    files = sorted((viewed / "ppo-1" / "episodes").iterdir(), reverse=True)
    first = episodes.page(viewed / "ppo-1", 0, 50)
    second = episodes.page(viewed / "ppo-1", 50, 50)
    assert first["total"] == 60
    assert len(second["episodes"]) == 10
    names = [one["name"] for one in first["episodes"] + second["episodes"]]
    assert names == [file.stem for file in files]
    newest = first["episodes"][0]
    assert newest["session"] == "ppo-1/59"
    assert newest["return"] == 20.0
    assert newest["num_steps"] == 22
    assert newest["outcome"] == "end"
    assert episodes.page(viewed / "ppo-2", 0, 50)["total"] == 0


def test_an_episode_tells_its_steps(viewed: Path) -> None:
    episodes = RecordedEpisodes()
    name = episodes.names(viewed / "ppo-1")[0]
    found = episodes.describe(viewed / "ppo-1", name)
    assert found["kinds"] == ["start", *["tick"] * 20, "end"]
    assert found["rewards"] == [None, None, *[1.0] * 20]
    step = episodes.steps(viewed / "ppo-1", name)[1]
    assert step.body["observation"]["position"] == pytest.approx(np.sin(np.arange(4)))
    assert step.reply["action"] == 1
    for wrong in ("..", "", "../pixels", name + "x"):
        with pytest.raises(NotFoundError, match="episode: no"):
            episodes.steps(viewed / "ppo-1", wrong)


def test_a_damaged_episode_hides_no_other(tmp_path: Path) -> None:
    record(tmp_path, episodes=2, pixels=False)
    (tmp_path / "episodes" / "20300101T000000-1-000001.episode").write_bytes(b"BRAYEP01 nonsense")
    episodes = RecordedEpisodes()
    page = episodes.page(tmp_path, 0, 10)
    assert "damaged" in page["episodes"][0]["problem"]
    assert [one.get("return") for one in page["episodes"]] == [None, 20.0, 20.0]
    with pytest.raises(SpecError, match="damaged"):
        episodes.steps(tmp_path, page["episodes"][0]["name"])


def test_a_body_is_codec_json_text_or_bytes() -> None:
    assert decode_body(codec.encode({"a": 1})) == {"a": 1}
    assert decode_body(b'{"a": [1, 2]}') == {"a": [1, 2]}
    assert decode_body("schön".encode()) == "schön"
    assert decode_body(b"\x00\xff\xfe") == b"\x00\xff\xfe"
    assert decode_body(b"") is None


def test_leaves_tell_type_shape_and_first_values() -> None:
    tree = {"x": np.array([[1.0, np.nan], [3.0, -2.0]]), "name": "<b>", "big": np.arange(1000)}
    found = {leaf["path"]: leaf for leaf in describe_leaves(tree)}
    assert found["x"]["values"] == [1.0, "nan", 3.0, -2.0]
    assert found["x"]["shape"] == [2, 2]
    assert (found["x"]["min"], found["x"]["max"]) == (-2.0, 3.0)
    assert found["name"]["text"] == "<b>"
    assert len(found["big"]["values"]) == 64
    assert describe_leaves(b"\x01\x02")[0]["text"] == "2 bytes: 01 02"
    assert describe_leaves(None) == []
    assert describe_leaves([]) == []
    json.dumps(describe_leaves({"d": np.array(["a"]), "o": True, "n": None, "e": np.empty((0, 3))}))


def step(observation: Any) -> EpisodeStep:
    return EpisodeStep(0, "tick", 0.0, {"observation": observation}, {"action": np.int64(1)})


def draw(step: EpisodeStep, render: rendering.RenderFunction | None = None) -> Image.Image:
    return rendering.Painter(render, [step]).image(0)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((84, 84), (252, 252)),
        ((84, 60, 3), (180, 252)),
        ((4, 42, 42), (252, 252)),
        ((3, 16, 8), (128, 256)),
    ],
)
def test_an_observation_that_looks_like_an_image_is_shown_as_one(
    shape: tuple[int, ...], size: tuple[int, int]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = draw(step({"vector": np.zeros(3), "screen": pixels}))
    assert image.size == size
    wanted = pixels if pixels.ndim == 2 else pixels[..., 0]
    if shape[0] == 4:
        wanted = pixels[-1]  # the newest of stacked frames
    elif shape[0] == 3:
        wanted = pixels[0]
    factor = size[1] // wanted.shape[0]
    assert (np.asarray(image)[::factor, ::factor, 0] == wanted).all()


def test_any_nested_arrays_are_drawn() -> None:
    trees: list[Any] = [
        {"a": np.zeros((3, 4)), "b": np.float32(1), "c": "text", "d": np.full(5, np.nan)},
        np.arange(10), [], None, b"\x00", "text", {"deep": {"er": np.zeros((2, 3, 4, 5))}},
    ]  # fmt: skip
    for tree in trees:
        assert draw(step(tree)).width == 560
    assert draw(EpisodeStep(0, "start", 0.0, None, None)).height == 60
    small = np.asarray(draw(step(np.array([-1.0, 1.0]))))
    assert {(178, 24, 43), (33, 102, 172)} <= {tuple(c) for c in small.reshape(-1, 3).tolist()}


def test_a_colour_means_the_same_in_all_steps_of_an_episode() -> None:
    steps = [step(np.array([value, value])) for value in (0.5, 2.0, -1.0)]
    painter = rendering.Painter(None, steps)
    corner = 14, 30
    strong, weak = painter.image(1).getpixel(corner), painter.image(0).getpixel(corner)
    assert strong == (33, 102, 172)
    assert weak == tuple(
        round(m + (e - m) / 4) for m, e in zip((232, 232, 235), strong, strict=True)
    )


class Figure:
    """What matplotlib's figures have."""

    def savefig(self, file: Any, format: str) -> None:
        Image.new("RGB", (30, 20), (1, 2, 3)).save(file, format)


@pytest.mark.parametrize(
    "drawn",
    [
        np.full((20, 30, 3), (1, 2, 3), np.uint8),
        Image.new("RGBA", (30, 20), (1, 2, 3, 255)),
        Figure(),
    ],
)
def test_a_render_function_returns_pixels_an_image_or_a_figure(drawn: Any) -> None:
    image = draw(step(0), lambda step: drawn)
    assert image.size == (30, 20)
    assert image.getpixel((0, 0)) == (1, 2, 3)
    assert rendering.png(image).startswith(b"\x89PNG")


def test_a_render_function_that_returns_something_else_is_told() -> None:
    for drawn, said in ((np.zeros((20, 30)), "float64"), (None, "object"), ("x", "got")):
        with pytest.raises(SpecError, match=said):
            draw(step(0), lambda step, drawn=drawn: drawn)


def test_render_functions_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_renders_7.py").write_text("def draw(step): return step\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert rendering.load_render("my_renders_7:draw")(5) == 5
    assert list(rendering.render_functions(["my_renders_7:draw"])) == [
        "observation",
        "my_renders_7:draw",
    ]
    for wrong, said in (
        ("draw", "expected module:function"),
        ("my_renders_7:number", "no function 'number'"),
        ("no_such_module_7:draw", "cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=said):
            rendering.load_render(wrong)


@pytest.mark.parametrize("kind", list(video.FORMATS))
def test_a_video_has_every_frame_at_its_time(kind: str) -> None:
    frames = [Image.new("RGB", (40, 30), (20 * n, 0, 255 - 20 * n)) for n in range(10)]
    frames[3] = frames[3].resize((80, 60))  # a figure that changed its size
    with Image.open(io.BytesIO(video.encode(frames, kind, 10.0))) as image:
        assert image.n_frames == 10
        assert image.size == (40, 30)
        image.seek(9)
        image.load()
        assert image.info["duration"] == 100
        red, _, blue = image.convert("RGB").getpixel((5, 5))
        assert abs(red - 180) < 12
        assert abs(blue - 75) < 12


def test_a_long_video_leaves_steps_out() -> None:
    small, large = Image.new("RGB", (10, 10)), Image.new("RGB", (2048, 2048))
    assert video.frame_steps(100, small) == range(100)
    assert len(video.frame_steps(100_000, small)) <= video.MAX_FRAMES
    assert len(video.frame_steps(1000, large)) * 2048 * 2048 * 3 <= 512 * 2**20
