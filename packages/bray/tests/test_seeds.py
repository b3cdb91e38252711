"""`bray train --seeds`, and what the seeds of a group say together, in words and as curves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bray.cli.train
from bray.goal import Goal, Outcome, conclude
from bray.viewer.seed_curves import over_seeds, summarised
from bray_core.cli import main
from bray_core.errors import BrayError
from bray_core.trials.seed_group import SeedSpread, groups, spread


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Seeds that were trained, with their trials: the return is ten times the seed; 3 fails."""
    done: list[tuple[int, str]] = []

    def run_launch(template: Any, launch: Any, goal: Goal) -> tuple[Outcome, None]:
        done.append((template.seed, launch.trial))
        if template.seed == 3:
            raise BrayError("the simulator is gone")
        with bray.init(launch.project, launch.trial, config=template.to_mapping()) as run:
            run.experiment.settle()
        mean = 10.0 * template.seed
        outcome = Outcome(
            reached=mean >= 20, evaluation_return=mean, frames=goal.budget, seconds=1.0, version=1
        )
        return conclude(launch.project / launch.trial, outcome), None

    monkeypatch.setattr(bray.cli.train, "run_launch", run_launch)
    return done


def command(tmp_path: Path, *more: str) -> list[str]:
    project = ["--project", str(tmp_path), "--frames", "100", "--goal", "1000"]
    return ["train", "ppo", "CartPole-v1", *project, *more]


def test_one_trial_each_and_one_report(
    tmp_path: Path, trained: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, "--seeds", "2")) == 1, "the first did not reach its goal"
    assert trained == [(1, "ppo-CartPole-v1-1"), (2, "ppo-CartPole-v1-2")]
    text = capsys.readouterr().out
    assert "ppo-CartPole-v1-1  1     10      100     not reached" in text
    assert "ppo-CartPole-v1: median 15, interquartile mean 15, 10 to 20, over 2 seeds" in text


def test_a_seed_that_fails_is_told_and_a_rerun_does_the_rest(
    tmp_path: Path, trained: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = command(tmp_path, "--seeds", "4", "--json", "--trial", "walk")
    assert main(wanted) == 2
    captured = capsys.readouterr()
    assert "error: walk-3: the simulator is gone" in captured.err
    report = json.loads(captured.out)
    assert [one["evaluation_return"] for one in report["seeds"]] == [10.0, 20.0, None, 40.0]
    assert [one["error"] for one in report["seeds"]] == ["", "", "the simulator is gone", ""]
    assert report["evaluation_return"]["median"] == 20.0
    trained.clear()
    assert main(wanted) == 2
    assert trained == [(3, "walk-3")], "those that have ended are not trained again"
    assert json.loads(capsys.readouterr().out) == report
    assert main([*wanted, "--go-on", "--seed", "4"]) == 0
    assert [seed for seed, _ in trained] == [3, 4, 5, 6, 7]


def test_the_result_of_other_settings_is_not_reported_as_theirs(
    tmp_path: Path, trained: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = command(tmp_path, "--seeds", "1", "--trial", "best")
    assert main(wanted) == 1
    assert main([*wanted, "--goal", "500"]) == 1, "of another goal it is"
    for other, words in (
        (["--seed", "2"], "has ended with seed=1, here it is 2"),
        (["hidden=[8]"], r"has ended with model.hidden=[64, 64], here it is [8]"),
        (["learning_rate=0.5"], "trainer.learning_rate="),
    ):
        capsys.readouterr()
        assert main([*wanted, *other]) == 2
        assert words in capsys.readouterr().err
    assert len(trained) == 1


@pytest.mark.parametrize("count", ["0", "-1", "1001"])
def test_a_number_of_seeds_out_of_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: str
) -> None:
    assert main(command(tmp_path, "--seeds", count)) == 2
    assert f"--seeds: expected 1 to 1000, got {count}" in capsys.readouterr().err


def test_trials_compare_takes_a_group_and_shows_its_spread(
    tmp_path: Path, trained: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(command(tmp_path, "--seeds", "2", "--trial", "walk"))
    capsys.readouterr()
    assert main(["trials", "compare", "walk", "--project", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["walk", "evaluation_return", "2", "15", "15", "10", "20"] in rows
    assert main(["trials", "compare", "run", "--project", str(tmp_path)]) == 2
    assert "expected two trials or more, got 'run' alone" in capsys.readouterr().err


def test_what_seeds_say_together() -> None:
    assert spread([]) is None
    assert spread([math.nan, -math.inf]) is None
    found = SeedSpread(num_seeds=5, median=3, interquartile_mean=3, least=1, greatest=100)
    assert spread([100, 2, 3, 1, 4, math.nan]) == found


def test_groups_are_of_names_that_differ_by_the_last_number() -> None:
    assert groups(["a-2", "a-10", "a-1", "b-1", "c", "walk-1-1", "walk-1-2"]) == {
        "a": ["a-1", "a-2", "a-10"],
        "walk-1": ["walk-1-1", "walk-1-2"],
    }


def test_curves_of_seeds_become_one_with_a_band() -> None:
    x = np.array([0.0, 10.0])
    curves = [(x, np.array([0.0, v])) for v in (1.0, 2.0, 3.0, 100.0)] + [
        (np.array([10.0, 20.0]), np.array([4.0, 5.0]))
    ]
    for by, middle in (("median", [0, 3, 5]), ("iqm", [0, 3, 5])):
        found = over_seeds(curves, by, 100)
        assert [column.tolist() for column in found] == [
            [0, 10, 20],
            middle,
            [0, 2, 5],  # the quartiles: one seed far away does not widen the band
            [0, 4, 5],
        ]
    middle, low, high = (column.tolist() for column in over_seeds(curves, "mean", 100)[1:])
    assert middle == [0, 22, 5]
    assert (low, high) == ([0, 2, 5], [0, 22, 5])  # the band holds the line
    assert len(over_seeds(curves, "median", 2)[0]) == 2


def test_trials_without_a_group_stay_as_they_are() -> None:
    line = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    nothing = np.empty(0), np.empty(0)
    known = {"a-1": line, "a-2": line, "b-1": line, "e-1": nothing, "e-2": nothing}
    drawn, alone = summarised(list(known), known.__getitem__, "median", 10)
    assert [(one["name"], one["trial"], one["count"]) for one in drawn] == [
        ("a (2 seeds)", "a-1", 2),
        ("e (2 seeds)", "e-1", 0),
    ]
    assert alone == ["b-1"]
    assert summarised(list(known), known.__getitem__, "each", 10) == ([], list(known))
