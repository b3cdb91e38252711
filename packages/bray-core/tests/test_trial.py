"""Trials on disk: found, read, removed, cloned."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bray_core.errors import AlreadyExistsError, BrayError, CodecError, ConfigError, NotFoundError
from bray_core.files.trial_folders import launches
from bray_core.trials import trial_lock
from bray_core.trials.experiment import Experiment
from bray_core.trials.trial import Trial, clone, flatten, remove, trials
from bray_core.trials.trial_notes import TrialNotes


def make(project: Path, name: str = "one", **config: object) -> Trial:
    Experiment.open(project, name, config).close()
    return Trial(project / name)


def test_a_project_lists_its_trials_alone(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make(tmp_path, name)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".removed-c-x" / "launches").mkdir(parents=True)
    assert [trial.name for trial in trials(tmp_path)] == ["a", "b"]
    with pytest.raises(NotFoundError, match="no folder"):
        trials(tmp_path / "absent")


def test_a_group_of_users_may_go_on_with_a_trial_where_the_process_says_so(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        trial = make(tmp_path)
        TrialNotes(tags=("kept",)).write(trial.path)
    finally:
        os.umask(before)
    files = [path for path in trial.path.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o664}
    assert {trial.path / ".lock", trial.path / "notes.json"} < set(files)


def test_what_is_no_trial_names_the_closest(tmp_path: Path) -> None:
    make(tmp_path, "cartpole")
    with pytest.raises(NotFoundError, match=r"no trial folder.*did you mean 'cartpole'"):
        Trial(tmp_path / "cartpol")


def test_settings_and_figures_are_read(tmp_path: Path) -> None:
    trial = make(tmp_path, seed=2, trainer={"rate": 0.1})
    assert trial.config() == {"seed": 2, "trainer": {"rate": 0.1}}
    assert flatten(trial.config()) == {"seed": 2, "trainer.rate": 0.1}
    assert (trial.result(), trial.metrics()) == ({}, {})
    with (launches(trial.path)[-1] / "metrics.jsonl").open("w") as file:
        file.write('{"frames": 10, "values": {"trainer/loss": 2.0, "old": 3.0}}\n')
        file.write('{"frames": 20, "values": {"trainer/loss": 1.0, "x": null}}\n')
        file.write('{"frames": 30, "val')  # as a crash leaves it
    assert trial.metrics() == {"trainer/loss": 1.0, "old": 3.0, "frames": 20}
    (trial.path / "result.json").write_text('{"frames": 20}')
    assert trial.result() == {"frames": 20}


@pytest.mark.parametrize(
    ("file", "method", "words"),
    [("config.yaml", "config", "config.yaml"), ("result.json", "result", "result.json.*delete it")],
)
@pytest.mark.parametrize("text", ["[", "[1]"])
def test_a_broken_file_is_named(
    tmp_path: Path, file: str, method: str, words: str, text: str
) -> None:
    trial = make(tmp_path)
    (trial.path / file).write_text(text)
    with pytest.raises(CodecError, match=words):
        getattr(trial, method)()


def test_a_trial_without_settings_or_launches(tmp_path: Path) -> None:
    (tmp_path / "bare" / "launches").mkdir(parents=True)
    trial = Trial(tmp_path / "bare")
    assert (trial.state, trial.config(), trial.newest()) == ("new", {}, None)
    assert trial.metrics() == {}


def test_removing_leaves_nothing_and_refuses_what_runs(tmp_path: Path) -> None:
    running = Experiment.open(tmp_path, "one")
    with pytest.raises(AlreadyExistsError, match="already running in process"):
        remove(Trial(tmp_path / "one"))
    running.close()
    remove(Trial(tmp_path / "one"))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    trial = make(tmp_path)
    (trial.path / "checkpoints" / "gone").symlink_to("nowhere")
    with pytest.raises(BrayError, match=r"one: cannot be cloned: .*No such file or directory"):
        clone(trial, "two", checkpoint=True)
    (trial.path / ".lock").unlink()
    (trial.path / ".lock").mkdir()
    with pytest.raises(ConfigError, match=r"project: cannot write .*one: Is a directory"):
        remove(trial)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_who_waited_for_a_trial_that_was_removed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(tmp_path)
    handle = trial_lock.lock_trial(trial.path)
    waits, removed = threading.Event(), threading.Event()

    def wait(seconds: float) -> None:
        waits.set()
        assert removed.wait(30)

    def take_it_away() -> None:
        assert waits.wait(30)
        (trial.path / ".lock").unlink()
        os.close(handle)
        removed.set()

    monkeypatch.setattr("bray_core.trials.trial_lock.time.sleep", wait)
    thread = threading.Thread(target=take_it_away)
    thread.start()
    with pytest.raises(AlreadyExistsError, match="was removed a moment ago: try again"):
        trial_lock.lock_trial(trial.path)
    thread.join()


def test_asking_whether_it_runs_does_not_keep_a_launch_out(tmp_path: Path) -> None:
    trial = make(tmp_path)
    asked = threading.Event()

    def ask() -> None:
        while not asked.is_set():
            trial_lock.is_running(trial.path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(5):
            Experiment.open(tmp_path, "one").close()
    finally:
        asked.set()
        thread.join()


def test_a_clone_has_the_settings_and_no_more(tmp_path: Path) -> None:
    trial = make(tmp_path, seed=2)
    (trial.path / "checkpoints" / "replay-000000001.pt").write_bytes(b"1")
    made = clone(trial, "two")
    assert made.config() == {"seed": 2}
    assert made.state == "new"
    assert not (made.path / "checkpoints").exists()
    Experiment.open(tmp_path, "two").close()
    assert made.state == "finished"


def test_a_clone_with_its_checkpoint_has_what_a_launch_goes_on_from(tmp_path: Path) -> None:
    trial = make(tmp_path, seed=2)
    kept = {
        "checkpoints/replay-000000001.pt",
        "models/policy/versions/1.safetensors",
        "models/policy/versions/index.json",
        "buffers/replay",
        "league.json",
    }
    for name in (*kept, "checkpoints/partial.pt", "models/policy/onnx/1/graph", "episodes/a"):
        (trial.path / name).parent.mkdir(parents=True, exist_ok=True)
        (trial.path / name).write_text(name)
    (trial.path / "result.json").write_text("{}")
    made = clone(trial, "two", checkpoint=True)
    files = {str(p.relative_to(made.path)) for p in made.path.rglob("*") if p.is_file()}
    assert files == kept | {"config.yaml"}
    (made.path / "buffers/replay").write_text("changed")
    assert (trial.path / "buffers/replay").read_text() == "buffers/replay"


def test_of_clones_of_one_name_at_once_the_second_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make(tmp_path)

    def lock_late(path: Path) -> int:
        clone(trial, "two")
        return trial_lock.lock_trial(path)

    monkeypatch.setattr("bray_core.trials.trial.lock_trial", lock_late)
    with pytest.raises(AlreadyExistsError, match=r"two exists already: choose another name"):
        clone(trial, "two", checkpoint=True)


def test_a_clone_is_refused(tmp_path: Path) -> None:
    trial = make(tmp_path)
    make(tmp_path, "two")
    with pytest.raises(AlreadyExistsError, match="exists already"):
        clone(trial, "two")
    with pytest.raises(ConfigError, match="trial: expected letters"):
        clone(trial, "../out")
    running = Experiment.open(tmp_path, "one")
    with pytest.raises(AlreadyExistsError, match="already running"):
        clone(trial, "three", checkpoint=True)
    (trial.path / "config.yaml").write_text("learning_rate: [")
    with pytest.raises(CodecError, match=r"config\.yaml: cannot be read: .*one"):
        clone(trial, "four")
    assert not (tmp_path / "four").exists()
    running.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
