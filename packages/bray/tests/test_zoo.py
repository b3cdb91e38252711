"""`bray zoo` and `bray train --zoo`: tuned settings by task."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest
from zoo_defaults import defaults

from bray.templates.loading import compose
from bray.zoo.entries import ZooEntry, entries, find
from bray_core.cli import main
from bray_core.errors import NotFoundError

ROOT = Path(__file__).parents[3]
ENTRIES = list(entries().values())
GAMES = {entry.task for entry in ENTRIES if entry.task.startswith("ALE/")}
_LOADED_ELSEWHERE = ("minigrid:", "highway_env:", "gymnasium_robotics:")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_its_settings_are_those_of_the_algorithm(entry: ZooEntry) -> None:
    template = compose(entry.algorithm, entry.task, entry.overrides())
    assert template.algorithm == entry.algorithm
    assert template.goal.max_frames == entry.goal.get("max_frames")
    assert template.goal.episode_return == entry.goal["episode_return"]
    assert find(entry.name) is find(f"{entry.task}/{entry.algorithm}") is entry


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES if entry.figures], ids=lambda entry: entry.name
)
def test_its_figures_stand_on_their_page(entry: ZooEntry) -> None:
    """No score that is not published: one row of the page has task, algorithm and all returns."""
    figures = entry.figures
    assert figures is not None
    rows = (ROOT / figures.page).read_text().replace("−", "-").replace(",", "").splitlines()
    assert len(figures.returns) in (0, len(figures.seeds))
    wanted = [f"{value:g}" for value in figures.returns]
    wanted += [str(figures.frames)] if figures.frames else []
    found = [row for row in rows if _is_about(row, entry)]
    assert any(set(wanted) <= set(_numbers(row)) for row in found), (wanted, found)
    for row in found:
        for key, value in entry.settings.items():
            if entry.algorithm in row.lower() and (" train" in row or "`R " in row):
                written = json.dumps(value).replace(" ", "").replace(",", "")
                assert f"{key}={written}" in row or f"{key}={value:.0e}".replace("e-0", "e-") in row


def _is_about(row: str, entry: ZooEntry) -> bool:
    if entry.task in GAMES:  # their page is about games alone
        return not any(game in row for game in GAMES - {entry.task})
    task = entry.task.removesuffix("-v5")
    return f"R {entry.algorithm} {task} " in f"{row} " or (
        "`R " not in row and task in row and entry.algorithm in row.lower()
    )


def _numbers(row: str) -> list[str]:
    return [f"{float(word):g}" if "." in word else word for word in re.findall(r"-?\d+\.?\d*", row)]


def test_settings_train_and_what_is_written_goes_before_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--zoo", "acrobot-v1", "steps_per_replay=64", "hidden=[4]"]
    command += ["--frames", "64", "--episodes", "1", "num_envs=2", "segment_length=32"]
    command += ["goal.episode_return=-600", "--json", "--project", str(tmp_path)]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["frames"] == 64
    (trial,) = tmp_path.iterdir()
    assert trial.name == "ppo-Acrobot-v1-1"
    written = (trial / "config.yaml").read_text()
    for setting in ("gae_lambda: 0.94", "epochs: 4", "steps_per_replay: 64", "max_frames: 64"):
        assert setting in written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--zoo", "HalfCheeta-v5"], "no settings for 'HalfCheeta-v5', did you mean 'HalfCheetah"),
        (["--zoo", "CartPole-v1/sac"], "no settings for 'CartPole-v1/sac'"),
        (["ppo", "--zoo", "CartPole-v1"], "names algorithm and task already, got 'ppo', too"),
        (["--zoo", "CartPole-v1", "--env", "X"], "names algorithm and task already, got 'X'"),
        (["--zoo", "CartPole-v1", "learning_speed=1"], "unknown setting"),
        ([], "what: missing: name a template, such as `bray train cartpole`"),
    ],
)  # fmt: skip
def test_mistakes_are_told(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_task_whose_package_is_absent_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bray.cli.train.find_spec", lambda name: None)
    assert main(["train", "--zoo", "MiniGrid-DoorKey-5x5-v0"]) == 2
    message = "needs the module minigrid, which is not installed: uv pip install 'minigrid'"
    assert message in capsys.readouterr().err


def test_the_list_and_an_entry_are_tables_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list"]) == 0
    table = capsys.readouterr().out
    assert re.search(r"^CartPole-v1/dqn +dqn +500 \(3 seeds\) +67,712$", table, re.M)
    assert re.search(r"^CarRacing-v3 +ppo +not measured +–$", table, re.M)
    assert main(["zoo", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == [entry.name for entry in ENTRIES]
    assert main(["zoo", "show", "CartPole-v1/dqn", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"]["seeds"] == [1, 2, 3]
    assert shown in listed
    assert main(["zoo", "show", "fetchreach-v4"]) == 0
    out = capsys.readouterr().out
    for words in ("hindsight: 4", "mujoco<3.6",
                  "try: bray train --zoo gymnasium_robotics:FetchReach-v4"):  # fmt: skip
        assert words in out
    assert main(["zoo", "show", "CarRacing-v3"]) == 0
    assert "not measured: these settings promise nothing" in capsys.readouterr().out
    assert main(["zoo", "show", "MountainCar-v0"]) == 0
    assert "mean return -106.9 / -132.1 / -102.8, seeds 1 / 2 / 3, after" in capsys.readouterr().out
    assert main(["zoo", "show", "Pendulum-v1"]) == 0
    out = capsys.readouterr().out
    for words in ("mean return -165.7 / -138.2 / -141.1, seeds 1 / 2 / 3, after 10,432 frames",
                  "2026-11-21, benchmarks/training/", "also: Pendulum-v1/td3"):  # fmt: skip
        assert words in out
    assert main(["zoo", "show", "Pong"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_name_that_is_near_is_told() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'CartPole-v1'"):
        find("Cartpole")


def test_figures_rest_on_defaults_that_have_not_changed() -> None:
    """Who changes a default writes the former value into the entries that were measured with it.

    Then `zoo_defaults.json` is written anew: `python packages/bray/tests/zoo_defaults.py`.
    """
    kept = json.loads((Path(__file__).parent / "zoo_defaults.json").read_text())
    for algorithm in sorted({entry.algorithm for entry in ENTRIES if entry.figures}):
        now = defaults(algorithm)
        changed = {
            name: (value, now.get(name))
            for name, value in kept[algorithm].items()
            if now.get(name) != value
        }
        assert not changed, (algorithm, changed)


def test_what_was_measured_with_former_defaults_names_them() -> None:
    former = {"steps_per_replay", "minibatch_size", "learning_rate", "entropy_coefficient"}
    early = [one for one in ENTRIES if one.algorithm == "ppo" and one.figures is not None]
    early = [one for one in early if one.figures and one.figures.measured < date(2026, 11, 22)]
    assert len(early) == 5
    for entry in early:
        assert former <= set(entry.settings), entry.name
