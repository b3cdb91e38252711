"""Sinks that a template names: a table, Weights & Biases offline, MLflow's server, Trackio."""

from __future__ import annotations

import csv
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

import bray
from bray.sinks import mlflow_tracking, trackio_runs, weights_and_biases
from bray.templates.loading import compose, load
from bray_core import metrics
from bray_core.errors import ConfigError, MissingExtraError

TRAIN = """
import json, sys
import bray

sinks, frames = json.loads(sys.argv[1]), int(sys.argv[2])
bray.train("CartPole-v1", "ppo", frames=frames, goal=1e6, episodes=2, num_envs=4,
           steps_per_replay=128, minibatch_size=128, trial="project/walker", sinks=sinks).close()
"""


def train(folder: Path, sinks: list[Any], frames: int) -> dict[str, Any]:
    """Train for so many frames in a process of its own, and return the result."""
    command = [sys.executable, "-c", TRAIN, json.dumps(sinks), str(frames)]
    env = {**os.environ, "WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = (folder / "project/walker/bray.log").read_text()
    assert "ERROR" not in log, log
    result: dict[str, Any] = json.loads((folder / "project/walker/result.json").read_text())
    return result


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class TestCsv:
    def test_a_later_launch_goes_on_and_a_new_metric_is_a_new_column(self, tmp_path: Path) -> None:
        for launch in range(2):
            with bray.init(tmp_path, "walker", sinks=[{"csv": {"every_s": 0}}]) as run:
                for loss in (1.0, 2.0):
                    metrics.record("actor/steps", 10, kind="count")
                    metrics.record("trainer/loss", loss)
                    if launch:
                        metrics.record("trainer/entropy", 0.5)
                    run.metrics()
                if launch:
                    text = '{"reached": true, "evaluation_return": 7.5}'
                    (tmp_path / "walker" / "result.json").write_text(text)
        rows = table(tmp_path / "walker" / "figures.csv")
        written = [row for row in rows if row["trainer/loss"]]
        assert [row["frames"] for row in written] == ["10", "20", "30", "40"]
        assert [row["trainer/loss"] for row in written] == ["1.0", "2.0", "1.0", "2.0"]
        assert [row["trainer/entropy"] for row in written] == ["", "", "0.5", "0.5"]
        assert rows[-1]["result/evaluation_return"] == "7.5"
        assert list(rows[0])[:5] == ["frames", "steps", "policy_version", "seconds", "wall_time_s"]

    @pytest.mark.parametrize(("cut", "kept"), [(1, 1), (2, 1), (3, 0), (9, 0)])
    def test_a_row_that_was_cut_short_takes_none_after_it_along(
        self, tmp_path: Path, cut: int, kept: int
    ) -> None:
        for launch in range(2):
            with bray.init(tmp_path, "walker", sinks=[{"csv": {"every_s": 0}}]) as run:
                metrics.record("trainer/loss", 1.5 + launch)
                run.metrics()
            file = tmp_path / "walker" / "figures.csv"
            if not launch:
                os.truncate(file, file.stat().st_size - cut)
                before = file.read_bytes().count(b"\r\n") - 1
        with file.open(newline="") as opened:
            rows = list(csv.reader(opened))
        assert {len(row) for row in rows} == {len(rows[0])}
        of_both = [row["trainer/loss"] for row in table(file) if row["trainer/loss"]]
        assert of_both[-1] == "2.5"
        assert len(rows) - 1 >= before + kept

    def test_a_file_elsewhere_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"file: expected a name that ends in \.csv, without"):
            compose("ppo", "CartPole-v1", ["sinks.csv.file=../figures.csv"])


class TestTemplates:
    def test_sinks_stand_in_both_forms_and_on_the_command_line(self, tmp_path: Path) -> None:
        wanted = [{"wandb": {"project": "x", "tags": ["a"]}}, "csv"]
        written = json.dumps(wanted)
        short = compose("ppo", "CartPole-v1", [f"sinks={written}"])
        assert short.to_mapping()["sinks"] == wanted
        by_name = compose("ppo", "CartPole-v1", ["sinks.wandb.project=x", "sinks.csv="])
        assert by_name.sinks == {"wandb": {"project": "x"}, "csv": None}
        file = tmp_path / "full.yaml"
        file.write_text(
            "source: {kind: environments, environment: CartPole-v1}\n"
            f"trainers: {{one: {{algorithm: ppo}}}}\nmodels: {{one: {{}}}}\nsinks: {written}\n"
        )
        full = load(str(file))
        assert full.composition is not None
        assert full.sinks == full.composition.sinks == tuple(wanted)
        assert full.to_mapping()["sinks"] == wanted

    @pytest.mark.parametrize(
        ("written", "words"),
        [
            ("[wandbb]", "sinks.wandbb: no sink of this name, did you mean 'wandb'.*csv, mlflow"),
            (
                "[tensorboard]",
                "known: csv, .*; TensorBoard's events and JSON lines are writ",
            ),
            ("[{wandb: {projct: x}}]", "projct: unknown key, did you mean 'project'"),
            ("[{mlflow: {every_s: -1}}]", "every_s: expected 0 or more, got -1"),
            ("[{wandb: {mode: on}}]", "mode: expected one of 'online', 'offline'"),
            ("[csv, csv]", "is named twice"),
            ("csv", "sinks: expected a list"),
        ],
    )
    def test_nonsense_is_refused_in_words(self, written: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            compose("ppo", "CartPole-v1", [f"sinks={written}"])

    @pytest.mark.parametrize("sink", ["wandb", "mlflow", "trackio"])
    def test_a_library_that_is_absent_is_refused_before_the_trial_is_made(
        self, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        modules = {"wandb": weights_and_biases, "mlflow": mlflow_tracking, "trackio": trackio_runs}
        module = modules[sink]
        monkeypatch.setattr(module, "find_spec", lambda name: None)
        compose("ppo", "CartPole-v1", [f"sinks=[{sink}]"])  # `bray watch` elsewhere reads it
        with pytest.raises(MissingExtraError, match=rf"sink {sink} .*install bray\[{sink}\]"):
            bray.init(tmp_path, "walker", sinks=[sink])
        assert not (tmp_path / "walker").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_offline_in_weights_and_biases_is_continued(tmp_path: Path) -> None:
    settings = {"project": "robots", "tags": ["first"], "mode": "offline", "every_s": 0}
    train(tmp_path, [{"wandb": settings}], 512)
    result = train(tmp_path, [{"wandb": settings}], 1024)
    files = sorted((tmp_path / "project/walker/wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1, "both launches are one run"
    first, second = (list(records(file)) for file in files)
    begun = next(record.run for record in first if record.HasField("run"))
    assert (begun.project, begun.display_name, list(begun.tags)) == ("robots", "walker", ["first"])
    config = {one.key: one.value_json for one in begun.config.update}
    assert json.loads(config["trainer"])["minibatch_size"] == 128
    steps = [
        int(json.loads(item.value_json))
        for record in (*first, *second)
        if record.HasField("history")
        for item in record.history.item
        if "_step" in (item.key, *item.nested_key)
    ]
    assert steps == sorted(set(steps)), "the second launch goes on where the first ended"
    assert steps[-1] == result["frames"]
    summary = {
        item.key: json.loads(item.value_json)
        for record in second
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert summary["result/evaluation_return"] == result["evaluation_return"]


def records(file: Path) -> Iterator[Any]:
    """Yield the records of an offline run: a log in LevelDB's format, of protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    data, at, written = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        written += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(written)
            written = b""


TRACKIO = """
import json
import trackio
from trackio.sqlite_storage import SQLiteStorage

runs = list(trackio.Api().runs("robots"))
print(json.dumps([(run.name, run.config, SQLiteStorage.get_logs("robots", run.name, run_id=run.id))
                  for run in runs]))
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_in_trackio_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "kept"))
    sink = {"trackio": {"project": "robots", "group": "first", "every_s": 0}}
    train(tmp_path, [sink], 512)
    result = train(tmp_path, [sink], 1024)
    read = subprocess.run(
        [sys.executable, "-c", TRACKIO], capture_output=True, text=True, check=True
    )
    ((name, config, points),) = json.loads(read.stdout.splitlines()[-1])
    assert (name, config["_Group"]) == ("walker", "first"), "both launches are one run"
    assert config["trainer"]["minibatch_size"] == 128
    steps = [point["step"] for point in points]
    assert steps == sorted(steps)
    assert min(steps) <= 512 < steps[-1] == result["frames"]
    assert points[-1]["result/evaluation_return"] == result["evaluation_return"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Start a tracking server with a database of its own; yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db", "--workers", "1"]
    command += ["--artifacts-destination", str(tmp_path / "artifacts")]
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail((tmp_path / "server.log").read_text())
        yield address
    finally:
        os.killpg(process.pid, 15)  # uvicorn's worker is a process, too
        process.wait(30)


def ask(address: str, what: str, **content: Any) -> Any:
    request = urllib.request.Request(
        f"{address}/api/2.0/mlflow/{what}",
        json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_on_a_tracking_server_is_continued(tmp_path: Path, server: str) -> None:
    sink = {"mlflow": {"tracking_uri": server, "tags": {"robot": "two legs"}, "every_s": 0}}
    train(tmp_path, [sink], 512)
    result = train(tmp_path, [sink], 1024)
    found = ask(server, "experiments/search", max_results=10)["experiments"]
    (experiment,) = [one["experiment_id"] for one in found if one["name"] == "project"]
    (run,) = ask(server, "runs/search", experiment_ids=[experiment])["runs"]
    assert (run["info"]["run_name"], run["info"]["status"]) == ("walker", "FINISHED")
    tags = {one["key"]: one["value"] for one in run["data"]["tags"]}
    assert tags["robot"] == "two legs"
    assert tags["changed.goal.max_frames"] == "1024", "a parameter of MLflow cannot be changed"
    parameters = {one["key"]: one["value"] for one in run["data"]["params"]}
    assert parameters["goal.max_frames"] == "512"
    assert parameters["trainer.minibatch_size"] == "128"
    values = {one["key"]: one["value"] for one in run["data"]["metrics"]}
    assert values["result/evaluation_return"] == result["evaluation_return"]
    with urllib.request.urlopen(
        f"{server}/api/2.0/mlflow/metrics/get-history?run_id={run['info']['run_id']}"
        "&metric_key=actor/steps",
        timeout=60,
    ) as answer:
        steps = [int(one["step"]) for one in json.load(answer)["metrics"]]
    assert steps == sorted(steps)
    assert min(steps) <= 512 < max(steps) == result["frames"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_server_that_is_gone_costs_the_run_nothing(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}"
        command = [sys.executable, "-c", TRAIN]
        command += [json.dumps([{"mlflow": {"tracking_uri": gone}}, "csv"]), "512"]
        env = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "sink mlflow cannot be opened" in (tmp_path / "project/walker/bray.log").read_text()
    assert table(tmp_path / "project/walker/figures.csv")[-1]["result/frames"] == "512.0"
