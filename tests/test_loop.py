"""The whole loop, short: both runtimes, resume, Ctrl-C, serve and play from the export."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bray_actor import read_episode
from bray_core import codec
from bray_core.cli import main

BRAY = [sys.executable, "-m", "bray_core.cli"]
SEVERAL = """\
trainers:
  near: {algorithm: dqn, steps_per_collect: 8, replays_per_collect: 32}
  far: {algorithm: dqn, steps_per_collect: 8, replays_per_collect: 32}
sources:
  near: {kind: environments, environment: CartPole-v1, agents: {agent: near}}
  far: {kind: environments, environment: CartPole-v1, agents: {agent: far}}
goal: {agent: near, max_frames: 1000000}
"""
"""Two policies, which take turns with training."""
SHORT = ("goal.episode_return=20", "goal.evaluate_at=30", "goal.evaluation_episodes=8")
"""A goal that an almost untrained policy reaches."""


def bray(*arguments: str, timeout_s: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BRAY, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def train(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = bray("train", "cartpole", "--project", str(project), *SHORT, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def result(project: Path, trial: str = "cartpole") -> dict[str, object]:
    loaded: dict[str, object] = json.loads((project / trial / "result.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one finished local trial; its words in `words.txt`."""
    project = tmp_path_factory.mktemp("trials")
    done = train(project, "actor.record_every=10")
    (project / "words.txt").write_text(done.stdout)
    return project


def test_local_run_reaches_its_goal_and_says_what_comes_next(trained: Path) -> None:
    words = (trained / "words.txt").read_text()
    trial = trained / "cartpole"
    assert "reached its goal" in words
    for hint in ("bray view", "bray serve", "bray play", "tensorboard --logdir"):
        assert hint in words
    for figure in ("return ", "frames ", "frames_per_s ", "loss ", "version ", "lag "):
        assert figure in words
    assert re.search(r"logits.*\d", words), "the export's differences are printed"
    assert list(trial.glob("launches/*/events.out.tfevents.*"))
    assert list(trial.glob("models/policy/onnx/*/manifest.json"))
    assert float(str(result(trained)["evaluation_return"])) >= 20


@pytest.mark.long
def test_the_same_seed_gives_the_same_returns(trained: Path, tmp_path: Path) -> None:
    train(tmp_path)
    again, first = result(tmp_path), result(trained)
    assert again["episode_returns"] == first["episode_returns"]
    assert again["frames"] == first["frames"]
    train(tmp_path, "--seed", "2", "--trial", "other")
    assert result(tmp_path, "other")["episode_returns"] != first["episode_returns"]


def test_one_in_ten_episodes_is_on_disk(trained: Path) -> None:
    files = sorted((trained / "cartpole" / "episodes").iterdir())
    assert files
    for path in files:
        episode = read_episode(path)
        assert episode.requests[0].kind == "start"
        ticks = [codec.decode(r.body) for r in episode.requests if r.kind == "tick"]
        assert all(set(tick) >= {"observation"} for tick in ticks)


def test_tensorboard_events_hold_the_figures(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (launch,) = (trained / "cartpole" / "launches").iterdir()
    events = EventAccumulator(str(launch))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"trainer/loss", "trainer/policy_lag_versions", "actor/episode_return"} <= tags
    lags = [e.value for e in events.Scalars("trainer/policy_lag_versions")]
    assert set(lags) == {0.0}, "an on-policy replay has no lag"


def test_a_line_of_metrics_has_every_axis_and_every_process(trained: Path) -> None:
    (file,) = (trained / "cartpole").glob("launches/*/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert min(rows[-1][axis] for axis in ("frames", "steps", "policy_version", "seconds")) > 0
    last = {name: value for row in rows for name, value in row["values"].items()}
    assert last["actor/episodes{phase=evaluation}"] == 8, "an evaluation's are counted apart"
    assert rows[-1]["frames"] == last["actor/steps"] <= int(str(result(trained)["frames"])) + 512
    names = {name for row in rows for name in row["values"]}
    assert names >= {
        "actor/episode_return", "actor/steps_per_s", "model/batch_rows", "model/forward_s",
        "model/wait_s", "buffer/queued_segments", "trainer/frames_per_s", "trainer/loss",
        "trainer/policy_lag_versions", "trainer/publish_s", "trainer/utilisation",
        "process/cpu_cores{component=driver}", "process/cpu_cores{component=gamecore}",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_ray_run_reaches_its_goal(tmp_path: Path) -> None:
    words = train(tmp_path, "--runtime", "ray").stdout
    assert "reached its goal" in words
    assert float(str(result(tmp_path)["evaluation_return"])) >= 20


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training run far from its goal, already training; ended at the latest by the fixture."""
    command = [*BRAY, "train", "cartpole", "--project", str(tmp_path), "trainer.checkpoint_every=1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(r"version [2-9]", line):
            break
    with process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """All descendants of a process, by /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *children(child)]
    return found


def unmapped_memory() -> list[Path]:
    """Return shared memory of bray that no process maps; other tests may run beside this one."""
    maps = b""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                maps += (process / "maps").read_bytes()
    return [path for path in Path("/dev/shm").glob("bray*") if os.fsencode(path) not in maps]


def test_ctrl_c_leaves_nothing_and_a_rerun_resumes(
    long_run: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it runs, a second launch of the same trial is refused."""
    again = ("train", "cartpole", "--project", str(tmp_path))
    assert str(long_run.pid) in refused(capsys, *again)
    gamecores = children(long_run.pid)
    assert len(gamecores) == 1
    started = time.monotonic()
    long_run.send_signal(signal.SIGINT)
    long_run.wait(timeout=20)
    assert time.monotonic() - started < 5
    assert long_run.returncode == 130
    assert not [pid for pid in gamecores if Path(f"/proc/{pid}").exists()]
    assert not unmapped_memory()
    assert main([*again, *SHORT]) == 0
    words = capsys.readouterr().out
    version = re.search(r"resuming .* from policy version (\d+)", words)
    assert version is not None
    assert int(version.group(1)) >= 2


@pytest.mark.parametrize(
    "settings",
    [
        ("dqn", "CartPole-v1", "steps_per_collect=8", "replays_per_collect=64"),
        ("several.yaml",),
    ],
    ids=["one", "several"],
)
def test_ctrl_c_in_the_midst_of_training_saves_what_was_learnt(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Off-policy training takes nearly all the time: most interrupts come within a step."""
    (tmp_path / "several.yaml").write_text(SEVERAL)
    command = [*BRAY, "train", *settings, "--trial", "./trial", "--goal", "600"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    with process:
        assert process.stdout is not None
        words = next((line for line in process.stdout if re.search(r"version [2-9]", line)), "")
        assert words, "it ended before it was interrupted"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[0]
    assert process.returncode == 130, rest
    assert list((tmp_path / "trial" / "checkpoints").iterdir())
    again = subprocess.run(
        [*command, "--frames", "1"], capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    resumed = re.search(r"resuming .* version (\d+), ([\d,]+) (?:frames|agent steps)", again.stdout)
    assert resumed is not None, again.stdout + again.stderr
    seen = re.search(r"frames ([\d,]+) of", words)
    assert seen is not None
    assert int(resumed[2].replace(",", "")) >= int(seen[1].replace(",", ""))


@pytest.fixture
def served(trained: Path) -> Iterator[str]:
    """`bray serve` of the finished trial on a free port."""
    command = [*BRAY, "serve", str(trained / "cartpole"), "--tcp-port", "0", "--http-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = None
        for line in process.stdout:
            match = re.search(r"tcp://[\d.]+:\d+", line)
            if match:
                address = match.group()
                break
        assert address is not None, "bray serve ended before it listened"
        yield address
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=5)
        assert process.returncode == 0


def test_serve_answers_the_same_gamecore(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "cartpole", "--address", served, "--episodes", "8"]) == 0
    assert re.search(r"mean.*\d", capsys.readouterr().out)


def test_show_describes_the_trial(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trials", "show", str(trained / "cartpole")]) == 0
    assert "evaluation_return" in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a command says that is refused; in this process, as that takes no import."""
    try:
        code: object = main(list(arguments))
    except SystemExit as ended:  # by the parser of the command line
        code = ended.code
    assert code == 2
    return capsys.readouterr().err


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (("cartpol",), "'cartpole'"),
            (("cartpole", "trainer.learning_rat=1"), "learning_rate"),
            (("cartpole", "--sed", "1"), "--seed"),
            (("cartpole", "trainer.steps_per_replay=100"), "multiple of the 16 environments"),
        ],
    )
    def test_the_closest_or_the_rule_is_named(
        self, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
    ) -> None:
        assert named in refused(capsys, "train", *arguments)

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("  gama: 0.9", ("trainer.gama", "gamma")),
            ("  gamma: high", ("trainer.gamma", "number")),
            ("  gamma: 1.5", ("gamma", "0 to 1", "1.5")),
        ],
    )
    def test_a_wrong_yaml_names_file_line_and_key(
        self,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        line: str,
        expected: tuple[str, ...],
    ) -> None:
        file = tmp_path / "mine.yaml"
        source = "source: {environment: CartPole-v1}"
        file.write_text(f"recipe: ppo\ntrainer:\n  epochs: 3\n{line}\n{source}\n")
        said = refused(capsys, "train", str(file))
        for part in (f"{file}:4", *expected):
            assert part in said

    @pytest.mark.long  # the same words in the default tier: packages/bray-core/tests/test_remote.py
    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            ("127.0.0.1:1", "nothing listens at '127.0.0.1:1'"),
            ("nonsense", "expected host:port or auto"),
        ],
    )
    def test_an_address_where_no_cluster_is(
        self, tmp_path: Path, address: str, expected: str
    ) -> None:
        on_ray = ("--runtime", "ray", "--address", address)
        done = bray("train", "cartpole", "--project", str(tmp_path), *on_ray)
        assert done.returncode == 2
        assert expected in done.stderr

    def test_an_address_without_ray(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        project = ("--project", str(tmp_path))
        said = refused(capsys, "train", "cartpole", *project, "--address", "127.0.0.1:1")
        assert "add --runtime ray" in said

    def test_a_port_in_use_is_named(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            project = ("--project", str(tmp_path))
            said = refused(capsys, "train", "cartpole", *project, f"actor.port={port}")
        assert str(port) in said
        assert "port" in said

    def test_an_environment_the_recipe_cannot_play(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        said = refused(capsys, "train", "dqn", "Pendulum-v1", "--project", str(tmp_path))
        assert "Pendulum-v1: expected actions that are one choice (Discrete)" in said
