from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import bray
from bray.cli.launch import Launch
from bray.retention import RetentionPolicy
from bray_buffer import BufferConfig, ReplayConfig
from bray_core import metrics, nested
from bray_core.errors import AlreadyExistsError, ConfigError, DeadlineError, PortInUseError
from bray_core.layout import Layout
from bray_core.metrics.json_lines import curve


def test_a_local_run_creates_plain_components_and_resumes_versions(tmp_path: Path) -> None:
    example = np.zeros((1, 4), np.float32)
    with bray.init(tmp_path, "demo") as run:
        model = run.model("policy", torch.nn.Linear(4, 2), example)
        assert isinstance(model, bray.Model)
        weights = {"weight": np.ones((2, 4), np.float32), "bias": np.zeros(2, np.float32)}
        assert model.publish(weights) == 1
        model.checkpoint()
    with bray.init(tmp_path, "demo") as run:
        model = run.model("policy", torch.nn.Linear(4, 2), example)
        assert model.version == 1
        assert np.allclose(model(np.ones(4, np.float32)), 4.0)


class Closed:
    """Notes that it was closed."""

    def __init__(self, fails: bool = False) -> None:
        self.is_closed, self._fails = False, fails

    def close(self) -> None:
        self.is_closed = True
        if self._fails:
            raise OSError("the disk is full")


def test_all_is_closed_where_workers_are_too_slow_to_tell_their_last_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer writes its checkpoint when it is closed, and the launch its end."""
    run = bray.init(tmp_path, "demo")
    part = run.close_with(Closed())
    gather = Mock(side_effect=DeadlineError("no answer within 5 s"))
    monkeypatch.setattr(run._runtime.hub, "gather", gather)
    run.close(KeyboardInterrupt())
    assert part.is_closed
    assert "the last metrics are lost: no answer within 5 s" in caplog.text
    (record,) = (tmp_path / "demo" / "launches").glob("*/launch.json")
    assert json.loads(record.read_text())["ending"] == "interrupted"


def test_what_fails_while_a_run_is_closed_keeps_nothing_else_open(tmp_path: Path) -> None:
    run, error = bray.init(tmp_path, "demo"), KeyboardInterrupt()
    parts = [run.close_with(Closed(fails)) for fails in (False, True, False)]
    run.close(error)
    assert all(part.is_closed for part in parts)
    assert error.__notes__ == ["while the run was closed: OSError: the disk is full"]
    with pytest.raises(OSError, match="the disk is full"), bray.init(tmp_path, "demo") as run:
        run.close_with(Closed(fails=True))


def test_a_model_on_ray_gets_its_placement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []

    class Handle:
        def __init__(self, *arguments: object, **options: object) -> None:
            made.append(options)

        def close(self) -> None:
            pass

    monkeypatch.setattr("bray_model.remote.RemoteModel", Handle)
    example = np.zeros((1, 4), np.float32)
    with bray.init(tmp_path, "demo") as run:
        local = run.model("here", torch.nn.Linear(4, 2), example, placement="proxy")
        assert isinstance(local, bray.Model), "a local run has one process"
        with pytest.raises(ConfigError, match="placement: expected one of caller, workers, proxy"):
            run.model("odd", torch.nn.Linear(4, 2), example, placement="worker")  # type: ignore[arg-type]
        monkeypatch.setattr(bray.Run, "is_local", False)
        for host, where in (("127.0.0.1", "127.0.0.1"), ("10.0.0.7", None)):
            monkeypatch.setattr("bray_core.remote.cluster.this_host", lambda host=host: host)
            run.model("policy", torch.nn.Linear(4, 2), example, placement="workers", num_workers=3)
            told = made.pop()
            assert (told["placement"], told["num_workers"], told["host"]) == ("workers", 3, where)


def test_a_trainer_on_ray_has_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []

    class Handle:
        def __init__(self, *arguments: object) -> None:
            made.append(arguments)

        def stop(self) -> None:
            made.append(("stop",))

        def close(self) -> None:
            made.append(("close",))

    monkeypatch.setattr("bray_trainer.remote.RemoteTrainer", Handle)
    with bray.init(tmp_path, "demo") as run:
        monkeypatch.setattr(bray.Run, "is_local", False)
        run.trainer("ppo", Handle, num_cpus=0.5, num_workers=2)
    assert made == [("ppo", Handle, 2, 0.5, 0.0), ("stop",), ("close",)]


def test_a_failed_start_leaves_the_trial_as_it_was(tmp_path: Path) -> None:
    """Such as one with a network of another shape, and with less room for what is kept."""
    few = RetentionPolicy(checkpoints=1, versions=1)
    segment = {"x": np.zeros((4, 3), np.float32)}
    layout = Layout(nested.spec(segment))
    example = np.zeros((1, 4), np.float32)
    with bray.init(tmp_path, "trial", config={"size": 4}) as run:
        model = run.model("policy", torch.nn.Linear(4, 2), example)
        buffer = run.buffer("memory", layout, ReplayConfig(batch_size=2, capacity=8))
        buffer.push(*[segment] * 4)
        for _ in range(3):
            model.publish(model.weights()[1])
            model.checkpoint()
    trial = tmp_path / "trial"

    def content() -> dict[str, bytes]:
        return {
            str(path.relative_to(trial)): path.read_bytes()
            for path in sorted(trial.rglob("*"))
            if path.is_file() and path.parts[len(trial.parts)] not in ("launches", "bray.log")
        }

    before = content()
    assert len(before) > 4
    failing = bray.init(tmp_path, "trial", config={"size": 8}, keep=few)
    failing.buffer("memory", layout, ReplayConfig(batch_size=2, capacity=2))
    failing.close(ValueError("no such device"))
    assert content() == before
    with bray.init(tmp_path, "trial", config={"size": 8}, keep=few) as run:
        run.report({"frames": 1}, lambda: None)
    assert "size: 8" in (trial / "config.yaml").read_text()
    assert len(list(trial.glob("models/policy/versions/*.safetensors"))) == 1


def test_what_ends_a_run_is_not_hidden_by_what_fails_then(tmp_path: Path) -> None:
    class Component:
        def close(self) -> None:
            raise RuntimeError("cannot be closed")

    failed = bray.init(tmp_path, "trial")
    failed.close_with(Component())
    why = ValueError("why it ends")
    failed.close(why)
    assert "RuntimeError: cannot be closed" in why.__notes__[0]
    finished = bray.init(tmp_path, "trial")
    finished.close_with(Component())
    with pytest.raises(RuntimeError, match="cannot be closed"):
        finished.close()


def test_one_run_a_process(tmp_path: Path) -> None:
    with bray.init(tmp_path, "one"), pytest.raises(AlreadyExistsError):
        bray.init(tmp_path, "two")


def test_an_unknown_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runtime"):
        bray.init(tmp_path, "demo", runtime="cloud")  # type: ignore[arg-type]


def test_a_replay_is_kept_with_the_trial_and_a_queue_is_not(tmp_path: Path) -> None:
    segment = {"x": np.zeros((4, 3), np.float32)}
    layout = Layout(nested.spec(segment))
    replays = ReplayConfig(capacity=8, batch_size=2)
    for expected in (0, 3):
        with bray.init(tmp_path, "trial") as run:
            replay = run.buffer("replay", layout, replays)
            queue = run.buffer("queue", layout, BufferConfig(batch_size=2))
            assert replay.stats()["queued"] == expected
            assert queue.stats()["queued"] == 0
            for buffer in (replay, queue):
                buffer.push(*[segment] * (3 - expected))
    assert [path.name for path in (tmp_path / "trial" / "buffers").iterdir()] == ["replay"]
    with bray.init(tmp_path, "trial") as run, pytest.raises(ConfigError, match="config: expected"):
        run.buffer("other", layout, {})  # type: ignore[arg-type]


@pytest.mark.ray
def test_a_replay_goes_on_with_either_runtime(ray_cluster: None, tmp_path: Path) -> None:
    segment = {"x": np.zeros((4, 3), np.float32)}
    layout = Layout(nested.spec(segment))
    for runtime, expected in (("local", 0), ("ray", 3), ("local", 6)):
        with bray.init(tmp_path, "trial", runtime) as run:  # type: ignore[arg-type]
            replay = run.buffer("replay", layout, ReplayConfig(capacity=16, batch_size=2))
            assert replay.stats()["queued"] == expected, runtime
            replay.push(*[segment] * 3)
            while replay.stats()["queued"] < expected + 3:  # on its way to the worker
                time.sleep(0.01)


def test_the_metrics_of_a_launch_begin_with_it(tmp_path: Path) -> None:
    metrics.record("actor/steps", 1000, kind="count")
    for trial in ("one", "two"):
        with bray.init(tmp_path, trial) as run:
            metrics.record("actor/steps", 10, kind="count")
            assert run.metrics()["actor/steps"] == 10
            metrics.record("actor/steps", 5, kind="count")
        frames, steps = curve(tmp_path / trial, "actor/steps")
        assert (frames, steps) == ([10, 15], [10, 15]), "the last window is written too"
    with bray.init(tmp_path, "one"):
        metrics.record("actor/steps", 10, kind="count")
    assert curve(tmp_path / "one", "actor/steps")[0] == [10, 15, 25], "it goes on"


def test_metrics_are_served(tmp_path: Path) -> None:
    with bray.init(tmp_path, "trial") as run:
        metrics.record("task/wins", 2, kind="count")
        address = run.serve_metrics(0)
        with urllib.request.urlopen(address) as response:
            assert b"\nbray_task_wins_total 2\n" in response.read()
        port = int(address.split(":")[2].partition("/")[0])
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is already in use"):
            run.serve_metrics(port)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address)


def test_a_launch_says_where_its_metrics_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Launch(project=tmp_path, trial="trial", metrics_port=0).open({}, RetentionPolicy()):
        said = capsys.readouterr().err.strip()
        assert said.startswith("metrics at http://127.0.0.1:")
        assert urllib.request.urlopen(said.removeprefix("metrics at ")).status == 200
        port = int(said.split(":")[2].partition("/")[0])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortInUseError):
        Launch(project=tmp_path, trial="trial", metrics_port=port).open({}, RetentionPolicy())
    Launch(project=tmp_path, trial="trial").open({}, RetentionPolicy()).close()
    with pytest.raises(ConfigError, match="--metrics-port: expected 0 to 65535, got 70000"):
        Launch(project=tmp_path, trial="trial", metrics_port=70_000)
