"""Searches: ranges, Optuna's study, and trials in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

import bray
from bray.algorithms.ppo import PPO
from bray.searching.config import SearchOptions
from bray.searching.program import search_plan
from bray.searching.ranges import (
    Choices,
    NumberRange,
    num_values,
    of_mapping,
    read_ranges,
    split_settings,
)
from bray.searching.results import BEST, SearchResult
from bray.searching.search import SearchPlan, run_search
from bray.searching.study import Study
from bray.templates.loading import compose, load
from bray_core.cli import main
from bray_core.errors import (
    AlreadyExistsError,
    BrayError,
    ConfigError,
    MissingExtraError,
    SettingsError,
)
from bray_core.trials.trial import Trial, trials
from bray_core.trials.trial_lock import lock_trial

LOAD = partial(compose, "ppo", "CartPole-v1")
RATE = "trainer.learning_rate=1e-4..1e-2:log"
SMALL = ["num_envs=4", "trainer.steps_per_replay=256", "trainer.minibatch_size=256"]


class TestRanges:
    def test_what_varies_is_told_from_what_stays(self) -> None:
        fixed = ["num_envs=4", "network=../my_game.py:Net", "source.kwargs.name='a|b'", "seed="]
        ranges = [RATE, "hidden=[32]|[64, 64]", "trainer.epochs=1..5"]
        assert split_settings([*fixed, *ranges]) == (fixed, ranges)

    def test_each_form_is_read(self) -> None:
        written = [
            RATE,
            "trainer.gamma=0.9..1",
            "trainer.epochs=2..8",  # whole, as the setting takes no other numbers
            "trainer.steps_per_replay=128..512:log:int",
            "model.hidden=[32]|[64, 64]",
            "model.normalize_observation=true|false",
        ]
        assert read_ranges(written, [], LOAD) == [
            NumberRange("trainer.learning_rate", 1e-4, 1e-2, is_log=True),
            NumberRange("trainer.gamma", 0.9, 1.0),
            NumberRange("trainer.epochs", 2.0, 8.0, is_whole=True),
            NumberRange("trainer.steps_per_replay", 128.0, 512.0, is_log=True, is_whole=True),
            Choices("model.hidden", ("[32]", "[64, 64]")),
            Choices("model.normalize_observation", ("true", "false")),
        ]

    def test_whole_numbers_have_the_step_of_the_setting(self, tmp_path: Path) -> None:
        def of_es(*ranges: str) -> Any:
            return read_ranges(ranges, [], partial(compose, "es", "CartPole-v1"))

        (one,) = of_es("trainer.population=2..64")
        assert one == NumberRange("trainer.population", 2.0, 64.0, is_whole=True, step=2)
        assert num_values(one) == 32
        config = SearchOptions(sampler="random", trials=20)
        study = Study(tmp_path, "es", [one], config, {})
        drawn = {study.overrides(study.ask(20) or 0)[0] for _ in range(20)}
        assert {int(text.partition("=")[2]) % 2 for text in drawn} == {0}
        (one,) = read_ranges(["trainer.epochs=2..8"], [], LOAD)
        assert one.step == 1
        with pytest.raises(SettingsError, match="population: expected 2 or more"):
            of_es("trainer.population=0..64")

    def test_all_that_is_wrong_is_told_at_once(self) -> None:
        written = [
            "trainer.lerning_rate=1e-4..1e-2",
            "trainer.gamma=0.9..1.5",
            "trainer.epochs=8..2",
            "trainer.clip=0..1:log",
            "source.num_envs=1..8:whole",
            "model.hidden=[32]|abc",
            "trainer.value_coefficient=a..b",
            "trainer.gae_lambda=0.9..1",
            "trainer.gae_lambda=0.8..1",
        ]
        with pytest.raises(SettingsError) as caught:
            read_ranges(written, ["trainer.minibatch_size=-1"], LOAD)
        words = str(caught.value)
        for wanted in (
            "trainer.lerning_rate: unknown key, did you mean 'learning_rate'?",
            "trainer.gamma: expected 0 to 1, got 1.5",
            "trainer.epochs: expected a..b where a is less than b, got '8..2'",
            "trainer.clip: expected a..b:log with a above 0, got '0..1:log'",
            "source.num_envs: expected a..b with :log or :int, got :whole",
            "model.hidden: expected a list, got 'abc'",
            "trainer.value_coefficient: expected numbers in a..b, got 'a'",
            "trainer.gae_lambda: is given twice",
            "trainer.minibatch_size: expected 1 or more, got -1",
        ):
            assert words.count(wanted) == 1, words
        two = ["learning_rate=1e-4..1e-2", "trainer.learning_rate=1e-4..1e-3"]
        with pytest.raises(ConfigError, match=r"^learning_rate: is the same setting as trainer"):
            read_ranges(two, [], LOAD)
        with pytest.raises(ConfigError, match="expected one setting or more with a range"):
            read_ranges([], [], LOAD)

    @pytest.mark.parametrize("text", ["seed=1..3", "goal.max_frames=1000|2000"])
    def test_what_trials_are_compared_by_does_not_vary(self, text: str) -> None:
        with pytest.raises(SettingsError, match=r"expected one value, by which all trials are co"):
            read_ranges([RATE, text], [], LOAD)

    def test_an_end_that_suits_another_range_alone_is_none_that_is_wrong(self) -> None:
        load_ = partial(compose, "dqn", "CartPole-v1")
        warmup, capacity = "buffer.warmup_frames=100..400000", "buffer.capacity=200..500000"
        found = read_ranges([warmup, capacity], [], load_)
        assert found == [
            NumberRange("buffer.warmup_frames", 100.0, 400000.0, is_whole=True),
            NumberRange("buffer.capacity", 200.0, 500000.0, is_whole=True),
        ]
        with pytest.raises(SettingsError, match="warmup_frames: expected at most the capacity"):
            read_ranges([warmup], [], load_)

    def test_ranges_of_a_program(self) -> None:
        given: dict[str, Any] = {"learning_rate": "1e-4..1e-2:log", "hidden": [[32], [64, 64]]}
        assert of_mapping(given) == ["learning_rate=1e-4..1e-2:log", "hidden=[32]|[64, 64]"]
        for wrong in (0.5, "0.5", [], [1], {"a": 1}):
            with pytest.raises(ConfigError, match="x: expected"):
                of_mapping({"x": wrong})  # type: ignore[dict-item]

    def test_settings_of_a_search_are_checked(self) -> None:
        for wrong in ({"trials": 0}, {"jobs": 0}, {"sampler": "best"}, {"evaluations": 0}):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                SearchOptions(**wrong)
        with pytest.raises(ConfigError, match=r"seed: expected 0 to 2\.147"):
            SearchOptions(seed=2**32)
        with pytest.raises(ConfigError, match="address: is for runtime ray"):
            SearchOptions(address="auto")
        with pytest.raises(ConfigError, match="jobs: expected 1 where each trial starts a Ray"):
            SearchOptions(runtime="ray", jobs=2)


def plan(folder: Path, *overrides: str, **settings: Any) -> SearchPlan:
    return search_plan(
        "ppo", "CartPole-v1", overrides or [RATE], SearchOptions(**settings), folder / "poles"
    )


def study_of(one: SearchPlan) -> Study:
    one.folder.mkdir(parents=True, exist_ok=True)
    return Study(one.folder, "poles", one.ranges, one.config, one.began_with())


class TestStudy:
    @pytest.mark.long  # importances load scikit-learn
    def test_it_learns_what_matters_and_goes_on(self, tmp_path: Path) -> None:
        searched = plan(tmp_path, RATE, "trainer.epochs=1..8", "hidden=[32]|[64]", trials=8)
        study = study_of(searched)
        drawn = []
        for _ in range(6):
            number = study.ask(searched.most)
            assert number is not None
            load_ = dict(one.split("=") for one in study.overrides(number))
            assert 1e-4 <= float(load_["trainer.learning_rate"]) <= 1e-2
            assert load_["hidden"] in ("[32]", "[64]")
            LOAD(study.overrides(number))
            drawn.append(load_["trainer.learning_rate"])
            study.tell(number, float(load_["trainer.epochs"]), 100, is_pruned=False)
        study.fail(int(study.ask(searched.most) or 0), "out of memory")
        assert study.ask(searched.most) is not None
        again = study_of(searched)
        assert [one.number for one in again.trials() if one.state == "running"] == [7]
        assert again.unfinished() == [7]
        assert again.ask(searched.most) is None, "there are eight"
        assert again.trials()[6].error == "out of memory"
        drawn.append(dict(one.split("=") for one in again.overrides(7))["trainer.learning_rate"])
        assert len(set(drawn)) == 7
        importances = again.importances()
        assert set(importances) == {"trainer.learning_rate", "trainer.epochs", "hidden"}
        assert next(iter(importances)) == "trainer.epochs", "the value is the number of epochs"
        result = SearchResult(folder=tmp_path, trials=again.trials(), importances=importances)
        values = [one.value for one in result.ranked]
        assert values == sorted(values, reverse=True)  # type: ignore[type-var]
        assert result.best is not None
        assert result.best.trial in result.table().splitlines()[1]

    def test_a_trial_that_does_worse_is_pruned(self, tmp_path: Path) -> None:
        study = study_of(plan(tmp_path, trials=9))
        for value in (10.0, 11.0, 12.0, 13.0):
            number = int(study.ask(9) or 0)
            for evaluation in (1, 2, 3):
                assert not study.report(number, evaluation, value)
            study.tell(number, value, 100, is_pruned=False)
        number = int(study.ask(9) or 0)
        assert not study.report(number, 1, 1.0), "the first evaluation says too little"
        assert study.report(number, 2, 1.0)
        assert study.report(number, 2, 1.0), "a trial that goes on may evaluate again"
        study.tell(number, 1.0, 50, is_pruned=True)
        pruned = study.trials()[number]
        assert (pruned.state, pruned.value, pruned.frames) == ("pruned", 1.0, 50)

    def test_another_search_in_its_folder_is_refused(self, tmp_path: Path) -> None:
        study_of(plan(tmp_path))
        study_of(plan(tmp_path, trials=7, pruner="none"))
        with pytest.raises(ConfigError, match=r"a search that began with another ranges.*--folder"):
            study_of(plan(tmp_path, "trainer.learning_rate=1e-4..1e-3:log"))
        with pytest.raises(ConfigError, match="a search that began with another settings"):
            study_of(plan(tmp_path, RATE, "num_envs=4"))

    def test_a_grid_has_so_many_trials_and_tries_each(self, tmp_path: Path) -> None:
        searched = plan(tmp_path, "epochs=2..4", "hidden=[32]|[64]", sampler="grid")
        assert searched.most == 6
        study, tried = study_of(searched), set()
        while (number := study.ask(searched.most)) is not None:
            tried.add(tuple(study.overrides(number)))
            study.tell(number, 1.0, 1, is_pruned=False)
        assert len(tried) == 6
        with pytest.raises(ConfigError, match="learning_rate has infinitely many"):
            study_of(plan(tmp_path / "other", sampler="grid"))

    def test_a_file_that_is_no_study_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "poles").mkdir()
        (tmp_path / "poles" / "search.db").write_text("a list of my trials")
        with pytest.raises(
            ConfigError, match=r"search\.db: expected a study .* not a database: ch"
        ):
            study_of(plan(tmp_path))

    @pytest.mark.parametrize("name", ["does it learn?", "50%20", "{a}", "{}", "#1 ü"])
    def test_a_folder_may_have_any_name(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).mkdir()
        study = study_of(plan(tmp_path / name))
        assert study.ask(1) == 0
        assert (tmp_path / name / "poles" / "search.db").stat().st_size > 0
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_one_process_searches_in_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "poles").mkdir()
        handle = lock_trial(tmp_path / "poles")
        try:
            with pytest.raises(AlreadyExistsError, match="another process searches here"):
                bray.search("CartPole-v1", {"epochs": "1..2"}, "ppo", folder=tmp_path / "poles")
        finally:
            os.close(handle)

    def test_code_of_a_program_is_named_for_the_trials(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plans: list[Any] = []
        monkeypatch.setattr("bray.searching.program.run_search", plans.append)
        folder = tmp_path / "poles"
        bray.search(CartPoleEnv, {"epochs": "1..2"}, PPO, folder=folder)
        assert "environment: gymnasium.envs.classic_control.cartpole:CartPoleEnv" in plans[0].text
        assert "algorithm: bray.algorithms.ppo:PPO" in plans[0].text
        with pytest.raises(ConfigError, match="other processes can import"):
            bray.search(lambda: CartPoleEnv(), {"epochs": "1..2"}, "ppo", folder=folder)

    def test_a_trial_is_no_folder_of_a_search(self, tmp_path: Path) -> None:
        (tmp_path / "poles" / "launches").mkdir(parents=True)
        with pytest.raises(ConfigError, match="is a trial: choose another folder"):
            plan(tmp_path)


def command(folder: Path, *words: str) -> list[str]:
    program = (sys.executable, "-m", "bray_core.cli", "search", "cartpole", RATE, *SMALL)
    goal = ("--folder", str(folder), "--frames", "2048", "--episodes", "2", "--goal", "1000")
    return [*program, *goal, "--evaluations", "4", "--pruner", "none", *words]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "poles"
    words = command(folder, "--trials", "2", "--json")
    # The second trial is caught in the middle: it has a checkpoint, and no result.
    with (tmp_path / "first.log").open("wb") as log:
        first = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while not (folder / "t0001" / "config.yaml").exists():
            assert first.poll() is None, (tmp_path / "first.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    while Trial(folder / "t0001").state == "running":  # its process ends by itself
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one["state"] for one in found["trials"]] == ["complete"] * 2
    assert [one["frames"] for one in found["trials"]] == [2048] * 2
    assert [one.name for one in trials(folder)] == ["t0000", "t0001"]
    assert len(Trial(folder / "t0000").launches()) == 1
    assert len(Trial(folder / "t0001").launches()) == 2, "it went on"
    best = found["best"]
    assert best["value"] == max(one["value"] for one in found["trials"])
    assert best["value"] == Trial(folder / best["trial"]).result()["evaluation_return"]
    template = load(str(folder / BEST))
    rate = best["settings"]["trainer.learning_rate"]
    assert template.parts.trainer.learning_rate == pytest.approx(rate, rel=1e-6)
    assert template.to_mapping() == yaml.safe_load((folder / BEST).read_text())
    with sqlite3.connect(folder / "search.db") as database:  # as optuna-dashboard opens it
        assert database.execute("select count(*) from trials").fetchone() == (2,)
        evaluations = database.execute("select count(*) from trial_intermediate_values")
        assert evaluations.fetchone()[0] >= 4, "each trial was evaluated on its way"
    database.close()


def test_the_best_so_far_is_that_of_earlier_launches_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Runner:
        def __init__(self, study: Study, number: int, *_: object) -> None:
            self.study, self.number = study, number

        def run(self) -> None:
            self.study.tell(self.number, [5.0, 3.0, 9.0][self.number], 100, is_pruned=False)

    monkeypatch.setattr("bray.searching.search.TrialRunner", Runner)
    told: list[tuple[str, bool]] = []
    for most in (1, 3):
        run_search(
            plan(tmp_path, trials=most), lambda one, is_best: told.append((one.trial, is_best))
        )
    assert told == [("t0000", True), ("t0001", False), ("t0002", True)]


class Played:
    """Runs a trial that ends at once, with a return of 1."""

    def __init__(self, study: Study, number: int, *_: object) -> None:
        self.study, self.number = study, number

    def run(self) -> None:
        self.study.tell(self.number, 1.0, 100, is_pruned=False)


def of_replays(folder: Path, capacity: str, **settings: Any) -> SearchPlan:
    ranges = [capacity, "buffer.warmup_frames=1000|2000|3000"]
    return search_plan("dqn", "CartPole-v1", ranges, SearchOptions(**settings), folder / "replays")


@pytest.mark.parametrize("sampler", ["random", pytest.param("gp", marks=pytest.mark.long)])
def test_settings_that_do_not_go_together_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setattr("bray.searching.search.TrialRunner", Played)
    told: list[tuple[str, str]] = []
    searched = of_replays(tmp_path, "buffer.capacity=1000..3000", trials=8, sampler=sampler)
    found = run_search(searched, lambda one, _: told.append((one.state, one.error)))
    played = [one.settings for one in found.trials if one.state == "complete"]
    assert len(played) == 8, "those that are refused are none of them"
    for one in played:
        assert int(one["buffer.warmup_frames"]) <= one["buffer.capacity"]
    refused = [error for state, error in told if state == "refused"]
    assert len(refused) == found.count("refused") == len(found.trials) - 8 > 0
    assert all("warmup_frames: expected at most the capacity" in error for error in refused)
    # A greater `--trials` adds some to those that were trained.
    more = of_replays(tmp_path, "buffer.capacity=1000..3000", trials=9, sampler=sampler)
    assert run_search(more).count("complete") == 9


def test_a_grid_leaves_out_what_does_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bray.searching.search.TrialRunner", Played)
    found = run_search(of_replays(tmp_path, "buffer.capacity=1000|2000|3000", sampler="grid"))
    assert (found.count("complete"), found.count("refused")) == (6, 3)


@pytest.mark.parametrize(("sampler", "words"), [("tpe", "100 comb"), ("grid", "all 4 comb")])
def test_a_search_of_which_all_is_refused_ends_in_words(
    tmp_path: Path, sampler: str, words: str
) -> None:
    searched = of_replays(tmp_path, "buffer.capacity=3000|4000", sampler=sampler)
    ranges = [
        Choices("buffer.capacity", ("1000", "1500")),
        Choices("buffer.warmup_frames", ("2000", "3000")),
    ]
    with pytest.raises(BrayError, match=rf"{words}inations .* refused.*capacity=1[05]00.*ranges"):
        run_search(replace(searched, ranges=ranges))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_trials_side_by_side_and_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "poles"
    words = command(folder, "--trials", "4", "--jobs", "2")[3:]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text.count("the best so far") >= 1
    for wanted in ("t0003 of 4:", "4 trials: 4 complete", "what the return depends on: trainer."):
        assert wanted in text
    assert f"bray trials compare {folder}/t000" in text
    assert main(["trials", "compare", str(folder / "t0000"), str(folder / "t0001")]) == 0
    assert "trainer.learning_rate" in capsys.readouterr().out
    spans = [Trial(folder / f"t000{number}").newest() for number in range(2)]
    first, second = (one for one in spans if one is not None)
    assert second.began_s < (first.ended_s or 0.0), "two at a time"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_failures_end_the_search_in_words(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such physics')\n")
    settings: dict[str, Any] = {"learning_rate": "1e-4..1e-2:log"}
    template = tmp_path / "broken.yaml"
    template.write_text("algorithm: ppo\nsource: {environment: 'broken:Walker'}\n")
    with pytest.raises(BrayError, match=r"3 trials failed, one after the other; the last, .*t0002"):
        bray.search(str(template), settings, frames=512, folder=tmp_path / "broken-search")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_search_of_a_program(tmp_path: Path) -> None:
    found = bray.search(
        "CartPole-v1",
        {"hidden": [[16], [32]], "learning_rate": "1e-3..1e-2:log"},
        "ppo",
        config=SearchOptions(trials=2, evaluations=2),
        frames=1024,
        episodes=2,
        folder=tmp_path / "poles",
        num_envs=4,
        steps_per_replay=256,
        minibatch_size=256,
    )
    assert [one.state for one in found.trials] == ["complete"] * 2
    assert found.best is not None
    assert found.best.settings["hidden"] in ("[16]", "[32]")
    assert found.best_template.is_file()


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("ray_cluster")
def test_each_trial_is_a_run_on_ray(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    found = bray.search(
        "CartPole-v1",
        {"learning_rate": "1e-3..1e-2:log"},
        "ppo",
        config=SearchOptions(trials=2, evaluations=2, runtime="ray", address=address),
        frames=2048,
        episodes=2,
        folder=tmp_path / "poles",
        num_envs=4,
        steps_per_replay=256,
        minibatch_size=256,
    )
    assert [one.state for one in found.trials] == ["complete"] * 2, found.trials
    record = Trial(tmp_path / "poles" / "t0001").newest()
    assert record is not None
    assert record.ending == "finished"
    log = (tmp_path / "poles" / "t0001" / "bray.log").read_text()
    assert len(set(re.findall(r"process (\d+)", log))) > 2, "its parts were workers"


def test_without_optuna_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bray.searching.study.optuna", None)
    with pytest.raises(MissingExtraError, match=r"bray\[search\]"):
        bray.search("cartpole", {"trainer.epochs": "1..3"}, folder=tmp_path / "found")
    assert not (tmp_path / "found").exists()
