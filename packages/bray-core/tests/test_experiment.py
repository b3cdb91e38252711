from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from bray_core import metrics, runtime
from bray_core.errors import AlreadyExistsError, ConfigError, MissingExtraError, NotFoundError
from bray_core.files.saved_file import write_atomic
from bray_core.trials.experiment import Experiment


def test_a_trial_has_its_folders_and_a_launch_its_own(tmp_path: Path) -> None:
    first = Experiment.open(tmp_path, "trial", {"seed": 1})
    first.close()
    second = Experiment.open(tmp_path, "trial")
    for folder in ("checkpoints", "models", "buffers", "episodes", "launches"):
        assert (tmp_path / "trial" / folder).is_dir()
    assert yaml.safe_load((second.path / "config.yaml").read_text()) == {"seed": 1}
    assert first.launch != second.launch
    second.close()
    second.close()


def test_a_running_trial_is_refused_and_another_is_not(tmp_path: Path) -> None:
    running = Experiment.open(tmp_path, "one")
    with pytest.raises(AlreadyExistsError, match=rf"already running in process {os.getpid()}"):
        Experiment.open(tmp_path, "one")
    Experiment.open(tmp_path, "two").close()
    running.close()
    Experiment.open(tmp_path, "one").close()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from bray_core import Experiment; "
        "Experiment.open(Path(sys.argv[1]), 'trial'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    Experiment.open(tmp_path, "trial").close()


@pytest.mark.parametrize("name", [None, 5, "", ".", "..", "a/b", "../x", "a b", "x" * 101, "\0"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ConfigError, match="trial: expected letters"):
        Experiment.open(tmp_path, name)


def test_a_project_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        Experiment.open(tmp_path / "file", "trial")


def settings(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_other_settings_are_the_trials_once_the_launch_goes_on(tmp_path: Path) -> None:
    Experiment.open(tmp_path, "trial", {"rate": 1}).close()
    trial = tmp_path / "trial"
    failed = Experiment.open(tmp_path, "trial", {"rate": 2})
    assert (settings(trial), settings(failed.launch)) == ({"rate": 1}, {"rate": 2})
    failed.close(ValueError("the network has another shape"))
    assert settings(trial) == {"rate": 1}
    assert not (failed.launch / "config.before.yaml").exists()
    going = Experiment.open(tmp_path, "trial", {"rate": 3})
    going.settle()
    going.settle()
    assert settings(trial) == {"rate": 3}
    assert yaml.safe_load((going.launch / "config.before.yaml").read_text()) == {"rate": 1}
    going.close(ValueError("later"))
    logged = (trial / "bray.log").read_text()
    assert "ends, failed: ValueError: later\nValueError: later\n" in logged
    going.settle()
    assert settings(trial) == {"rate": 3}
    same = Experiment.open(tmp_path, "trial", {"rate": 3})
    same.close()
    assert not (same.launch / "config.before.yaml").exists()
    Experiment.open(tmp_path, "trial").close()
    assert settings(trial) == {"rate": 3}


@pytest.mark.parametrize("ending", [None, ValueError("no"), KeyboardInterrupt()])
def test_a_launch_that_comes_to_its_end_goes_on(
    tmp_path: Path, ending: BaseException | None
) -> None:
    Experiment.open(tmp_path, "trial", {"rate": 1}).close()
    Experiment.open(tmp_path, "trial", {"rate": 2}).close(ending)
    assert settings(tmp_path / "trial") == {"rate": 2 if ending is None else 1}


def test_the_first_replay_that_was_trained_on_settles_it(tmp_path: Path) -> None:
    runtime.init(tmp_path, "trial", config={"rate": 1}).close()
    with runtime.init(tmp_path, "trial", config={"rate": 2}) as launched:
        metrics.record("actor/steps", 5, kind="count")
        launched.hub.gather()
        assert settings(tmp_path / "trial") == {"rate": 1}
        metrics.record("trainer/train_s", 0.1)
        launched.hub.gather()
        assert settings(tmp_path / "trial") == {"rate": 2}


@pytest.mark.parametrize("broken", ["config.yaml", "bray.log"])
def test_a_launch_that_fails_gives_the_trial_back(tmp_path: Path, broken: str) -> None:
    Experiment.open(tmp_path, "trial").close()
    file = tmp_path / "trial" / broken
    file.unlink(missing_ok=True)
    file.mkdir()
    with pytest.raises(ConfigError, match=r"project: cannot write .*trial: Is a directory"):
        Experiment.open(tmp_path, "trial", {"seed": 1})
    file.rmdir()
    Experiment.open(tmp_path, "trial").close()


def test_a_configuration_that_yaml_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config: YAML cannot hold it"):
        Experiment.open(tmp_path, "trial", {"seed": object()})
    Experiment.open(tmp_path, "trial").close()


def test_launches_of_one_second_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bray_core.trials.experiment.time.strftime", lambda *_: "20260101-000000")
    launches = []
    for _ in range(3):
        experiment = Experiment.open(tmp_path, "trial")
        experiment.close()
        launches.append(experiment.launch.name)
    assert launches == ["20260101-000000", "20260101-000000-1", "20260101-000000-2"]


def test_the_log_is_kept_while_it_is_open(tmp_path: Path) -> None:
    before = logging.getLogger("bray_core").level  # another trial of this process may be open
    experiment = Experiment.open(tmp_path, "trial")
    logging.getLogger("bray_core.test").warning("a word")
    logging.getLogger("bray_core.test").info("a detail")
    experiment.close()
    logging.getLogger("bray_core.test").error("too late")
    log = (experiment.path / "bray.log").read_text()
    assert "a word" in log
    assert "a detail" in log
    assert logging.getLogger("bray_core").level == before
    assert "too late" not in log
    assert f"launch {experiment.launch.name} begins in process {os.getpid()}" in log
    assert log.splitlines()[-1].endswith(f"launch {experiment.launch.name} ends, finished")


def test_levels_come_back_with_the_last_trial_and_one_that_was_set_stays() -> None:
    code = """if True:
        import logging, tempfile
        from bray_core.trials.experiment import Experiment

        own, unset = logging.getLogger("bray_model"), logging.getLogger("bray_core")
        own.setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory() as folder:
            first, second = (Experiment.open(folder, name) for name in "ab")
            first.close()
            assert (unset.level, own.level) == (logging.INFO, logging.ERROR)
            second.close()
            assert (unset.level, own.level) == (logging.NOTSET, logging.ERROR)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_atomic_writes_leave_the_old_or_the_new(tmp_path: Path) -> None:
    file = tmp_path / "x"
    write_atomic(file, b"one")
    write_atomic(file, b"two")
    assert file.read_bytes() == b"two"
    with pytest.raises(TypeError):
        write_atomic(file, "no bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("folder", ["", "checkpoints", "checkpoints/red", "episodes"])
def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path, folder: str) -> None:
    held = tmp_path / "trial" / folder
    held.mkdir(parents=True)
    killed = "from bray_core.files.saved_file import write_atomic; from pathlib import Path; "
    killed += "import os, sys; os.fsync = lambda file: os._exit(9); "
    killed += "write_atomic(Path(sys.argv[1]), b'half')"
    subprocess.run([sys.executable, "-c", killed, str(held / "progress.json")], check=False)
    (left,) = (path for path in held.iterdir() if path.is_file())
    own = held / ".notes.of.mine"
    own.touch()
    Experiment.open(tmp_path, "trial").close()
    assert left.exists(), "perhaps it is being written"
    for path in (left, own):
        os.utime(path, (0, 0))
    Experiment.open(tmp_path, "trial").close()
    assert not left.exists()
    assert own.exists()


@pytest.mark.parametrize("name", ["policy/onnx/.7", "writer/.text"])
def test_the_half_of_an_export_of_a_killed_process_is_removed(tmp_path: Path, name: str) -> None:
    place = tmp_path / "trial" / "models" / name
    place.parent.mkdir(parents=True)
    (place.parent / "7").mkdir()
    left = Path(tempfile.mkdtemp(dir=place.parent, prefix=f"{place.name}."))
    (left / "new").mkdir()
    (left / "new" / "model.onnx").write_bytes(b"half")
    Experiment.open(tmp_path, "trial").close()
    assert left.exists(), "perhaps it is being written"
    os.utime(left, (0, 0))
    Experiment.open(tmp_path, "trial").close()
    assert [path.name for path in place.parent.iterdir()] == ["7"]


def test_an_export_that_made_way_goes_back_where_nothing_took_its_place(tmp_path: Path) -> None:
    exports = tmp_path / "trial" / "models" / "policy" / "onnx"
    for left, contents in ((".7.abcdefgh", ("new", "old")), (".8.settings", ("mine",))):
        for content in contents:
            (exports / left / content).mkdir(parents=True)
            (exports / left / content / content).touch()
        os.utime(exports / left, (0, 0))
    Experiment.open(tmp_path, "trial").close()
    assert sorted(path.name for path in exports.iterdir()) == [".8.settings", "7"]
    assert (exports / "7" / "old").exists()


class TestRuntime:
    def test_one_a_process(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"call bray\.init first"):
            runtime.current()
        with runtime.init(tmp_path, "one") as opened:
            assert runtime.current() is opened
            with pytest.raises(AlreadyExistsError, match="call shutdown first"):
                runtime.init(tmp_path, "two")
        runtime.init(tmp_path, "two")
        runtime.shutdown()
        runtime.shutdown()

    def test_nonsense_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="runtime: expected 'local' or 'ray', got 'rai'"):
            runtime.init(tmp_path, "one", "rai")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="address: is for runtime='ray'"):
            runtime.init(tmp_path, "one", address="auto")

    def test_without_ray_it_names_the_extra(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(sys.modules, "bray_core.remote.cluster", raising=False)
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r"'ray' needs.*install bray-core\[ray\]"):
            runtime.init(tmp_path, "one", "ray")
        with pytest.raises(NotFoundError):
            runtime.current()
        Experiment.open(tmp_path, "one").close()

    @pytest.mark.ray
    @pytest.mark.usefixtures("ray_cluster")
    def test_a_cluster_that_was_there_before_stays(self, tmp_path: Path) -> None:
        import ray

        runtime.init(tmp_path, "one", "ray").close()
        assert ray.is_initialized()

    def test_close_releases_the_trial_even_if_ray_does_not_stop(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse() -> None:
            raise OSError("no")

        monkeypatch.setattr("bray_core.remote.cluster.init_ray", lambda *_, **__: True)
        monkeypatch.setattr("bray_core.remote.cluster.shutdown_ray", refuse)
        opened = runtime.init(tmp_path, "one", "ray")
        assert opened.runtime == "ray"
        with pytest.raises(OSError, match="no"):
            opened.close()
        Experiment.open(tmp_path, "one").close()
        runtime.shutdown()
