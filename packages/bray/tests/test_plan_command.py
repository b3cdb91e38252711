"""`bray plan`: unit costs measured from a template, and what is said of them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.planning.capacity import Machines, UnitCosts, capacity
from bray.planning.unit_costs import measure, receiving_us
from bray.templates import loading
from bray_actor import segment_spec
from bray_buffer import BufferConfig, ReplayConfig
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.nested import ArraySpec

APPO = """\
algorithm: appo
agent: {segment_length: 8}
source: {environment: CartPole-v1, num_envs: 4}
trainer: {epochs: 1, minibatches: 1}
"""
DQN = """\
algorithm: dqn
buffer: {warmup_frames: 64}
source: {environment: CartPole-v1}
"""
FLOATS, ACTION = ArraySpec(np.dtype(np.float32), (4,)), ArraySpec(np.dtype(np.int64), ())
COSTS = UnitCosts(
    environment_us=339,
    inference_us=195,
    recording_us=0,
    training_us=310,
    gpu_training_us=10,
    segment_bytes=7_900,
    receiving_us=3,
    weights_bytes=6_800_000,
    adopting_us=1_100,
    frames_per_step=32,
    reducing_us=4_900,
)


@pytest.fixture
def appo(tmp_path: Path) -> Path:
    path = tmp_path / "appo.yaml"
    path.write_text(APPO)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(asdict(COSTS)))
    return path


def test_the_costs_of_a_template_add_up(appo: Path) -> None:
    cores = os.sched_getaffinity(0)
    found = measure(loading.load(str(appo)), seconds=0.5)
    assert os.sched_getaffinity(0) == cores
    costs = found.costs
    # What is timed is all that one process does: in turns it takes the sum of both.
    both = 1e6 / (costs.playing_us + costs.training_us)
    assert 0.7 * both < found.frames_per_s < 1.01 * both  # less what is between them
    assert min(costs.environment_us, costs.inference_us, costs.recording_us) > 0
    # One step for each replay of 8 steps of 4 environments.
    assert costs.frames_per_step == pytest.approx(32)
    # The 64-64 tanh networks of policy and value: 4 inputs, 2 logits and 1 value.
    actor = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    critic = 4 * 64 + 64 + 64 * 64 + 64 + 64 * 1 + 1
    assert costs.weights_bytes == 4 * (actor + critic)
    whole = Layout(segment_spec(FLOATS, ACTION, 8)).nbytes / 8
    assert whole <= costs.segment_bytes < 2 * whole  # episodes end within segments
    assert not costs.lockstep


def test_gamecores_of_a_template_are_stepped_here_and_lockstep_is_seen() -> None:
    small = ["trainer.steps_per_replay=64", "trainer.epochs=1", "trainer.minibatch_size=64"]
    costs = measure(loading.load("cartpole", small), seconds=0.3).costs
    assert costs.lockstep
    assert costs.frames_per_step == pytest.approx(64)


def test_a_replay_is_measured_once_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "dqn.yaml"
    path.write_text(DQN)
    costs = measure(loading.load(str(path)), seconds=0.3).costs
    assert costs.training_us > 0
    assert not costs.lockstep


def test_receiving_takes_longer_for_more_bytes() -> None:
    def spec(width: int) -> Layout:
        return Layout(segment_spec(ArraySpec(np.dtype(np.float32), (width,)), ACTION, 16))

    config = BufferConfig(batch_steps=256, capacity=64, when_full="block")
    small, large = (receiving_us(spec(width), config, 8) for width in (4, 4_000))
    assert 0 < small < large
    replay = ReplayConfig(capacity=1_000, batch_size=4, unit="segment")
    assert receiving_us(spec(4), replay, 8) > 0


@pytest.mark.parametrize("algorithm", ["es", "alphazero"])
def test_an_algorithm_without_runners_is_refused(algorithm: str, tmp_path: Path) -> None:
    task = {"es": "CartPole-v1"}.get(algorithm, "tic-tac-toe")
    path = tmp_path / "other.yaml"
    path.write_text(f"algorithm: {algorithm}\nsource: {{environment: {task}}}\n")
    with pytest.raises(ConfigError, match=r"^algorithm: it plays without runners"):
        measure(loading.load(str(path)), seconds=0.2)


def test_a_model_of_text_is_refused_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> None:
        pytest.fail("it trained")

    monkeypatch.setattr("bray.planning.unit_costs._measured", measured)
    with pytest.raises(ConfigError, match=r"^algorithm: it plays without runners"):
        measure(loading.load("guess"), seconds=1)


def test_measuring_takes_time() -> None:
    with pytest.raises(ConfigError, match="seconds: expected more than 0, got 0"):
        measure(loading.load("cartpole"), seconds=0)


def test_the_command_measures_saves_and_predicts(
    appo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "costs.json"
    arguments = ["--machines", "4", "--cores", "8", "--seconds", "0.3", "--save", str(saved)]
    assert main(["plan", str(appo), "model.hidden=[16]", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "4 machines of 8 cores: " in printed
    assert "one core, in turns: measured" in printed
    assert "APPO" not in printed  # the training's own table
    found = capacity(UnitCosts(**json.loads(saved.read_text())), Machines(count=4, cores=8))
    assert f"{found.frames_per_s:,.0f} frames/s, limited by: {found.bottleneck}" in printed


def test_the_command_says_what_a_rate_needs(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--machines", "100", "--cores", "64", "--network-gbit", "25"]
    assert main(["plan", "--costs", str(saved), *arguments, "--frames-per-s", "1e6"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "100 machines of 64 cores: 3,226 frames/s, limited by: training ranks" in printed
    assert "experience 63.2 Gbit/s into the machines that train" in printed
    assert "what breaks first ahead: training ranks; cores of the trainer's machine;" in printed


def test_the_command_prints_one_document(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--machines", "30", "--cores", "64", "--gpus", "1", "--gpu-training-us", "5"]
    main(["plan", "--costs", str(saved), *arguments, "--frames-per-s", "1e5", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["costs"] == asdict(COSTS) | {"gpu_training_us": 5}
    assert found["bottleneck"] == found["parts"][0]["name"]
    assert [row["machines"] for row in found["growth"]] == [1, 2, 5, 10, 20, 30]
    assert found["growth"][-1]["frames_per_s"] == found["frames_per_s"]
    assert found["needs"]["ranks"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "template: expected one to measure, or --costs with a file, got neither"),
        (["cartpole", "--costs", "SAVED"], "--costs: takes the place of a template"),
        (["--costs", "SAVED", "--env", "Pong"], "--costs: takes the place of a template"),
        (["atari", "--env", "Brakout"], "environment: unknown 'Brakout'"),
        (["--costs", "SAVED", "--machines", "0"], "count: expected 1 or more, got 0"),
        (["--costs", "nowhere.json"], "nowhere.json"),
        (["--costs", "SAVED", "--gpus", "8", "--ranks", "9"], "ranks: expected at most the 8 GPUs"),
        (["cartpol"], "template: unknown 'cartpol', did you mean 'cartpole'?"),
    ],
)
def test_bad_input_is_named(
    arguments: list[str], words: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [str(saved) if word == "SAVED" else word for word in arguments]
    assert main(["plan", *filled]) == 2
    assert words in capsys.readouterr().err


def test_unknown_costs_are_refused(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved.write_text(json.dumps(asdict(COSTS) | {"traning_us": 1}))
    assert main(["plan", "--costs", str(saved)]) == 2
    assert "traning_us: unknown key, did you mean 'training_us'?" in capsys.readouterr().err
