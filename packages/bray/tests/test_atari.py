"""Atari games: policies of images, frames stored once, settings by machine, short whole runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import bray
from bray.algorithms import appo, impala, ppo
from bray.cli.train import _launch_of_template
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.run import Run
from bray.sources import atari
from bray.sources.cpu_precision import quickest_precision
from bray.sources.environment_runners import EnvironmentRunners
from bray.sources.environments import read_spaces
from bray.templates.loading import load
from bray.templates.schema import tuned_task
from bray.training import compute
from bray.training.actor_critic import ActorCriticTrainer
from bray.training.algorithm import load_algorithm
from bray.training.compute import decided, described
from bray.training.on_policy import segment_layout
from bray_actor import AlternatingRunners, PolicyActor, Rollouts, Runner
from bray_actor.segment import unstacked
from bray_buffer import Buffer, BufferConfig
from bray_core import codec
from bray_core.cli import main
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.process import machine
from bray_core.spaces import LeafSpace
from bray_model import Model
from bray_trainer.sequences import Batch, final_value, time_major, unroll, valid_steps

pytestmark = pytest.mark.usefixtures("evaluated_here")

PONG, BREAKOUT = "ALE/Pong-v5", "ALE/Breakout-v5"
STEPS, LENGTH, NUM_ENVS = 40, 16, 2
ALGORITHMS = {"appo": appo.APPO, "impala": impala.IMPALA, "ppo": ppo.PPO}


class Play:
    """A policy of few features that has played a game, and what it recorded."""

    def __init__(self, environment: str, memory_size: int, precision: str = "fp32") -> None:
        settings: Any = impala.IMPALA.of(
            environment,
            hidden=(16,),
            num_envs=NUM_ENVS,
            segment_length=LENGTH,
            precision=precision,
        ).parts
        spaces = read_spaces(environment)
        runners = EnvironmentRunners(settings.source, settings.trainer, is_local=False)
        self.module = make_policy(
            spaces, NetworkConfig(hidden=(16,), memory_size=memory_size), seed=1
        )
        size = self.module.state_size
        config = runners.model_config()
        self.model = Model(self.module, example_inputs(spaces, size), config=config)
        layout, total = segment_layout(spaces, LENGTH, size, stack=True), NUM_ENVS * STEPS
        self.buffer = Buffer(layout, BufferConfig(batch_steps=total, capacity=total))
        rollouts = Rollouts(runners.runner(self.model, self.buffer, seed=1))
        rollouts.collect(STEPS)
        rollouts.close()
        self.model.close()
        self.replay: Packed = self.buffer.pop(timeout_s=1)


@pytest.fixture(scope="module")
def plays() -> dict[int, Play]:
    """By memory size: Breakout, whose lives are soon lost."""
    return {size: Play(BREAKOUT, size) for size in (0, 5)}


@pytest.mark.parametrize("memory_size", [0, 5])
def test_a_policy_replayed_says_what_it_said_when_it_acted(
    plays: dict[int, Play], memory_size: int
) -> None:
    play = plays[memory_size]
    part = impala.IMPALA.of(PONG, hidden=(16,), memory_size=memory_size).config
    trainer = ActorCriticTrainer(play.module, play.buffer, model=play.model, part=part, seed=1)
    (segments,) = trainer.handle(play.replay)
    valid = valid_steps(segments)
    assert not valid.all(), "some segments are shorter"
    assert segments["terminated"].any(), "a life was lost"
    assert segments["episode_return"].isnan().all(), "and no game"
    columns = trainer.columns(segments)
    for name in ("log_prob", "value"):
        now = getattr(columns, name)[valid].detach()
        torch.testing.assert_close(now, segments[name][valid], atol=1e-4, rtol=1e-4)


def test_in_bf16_it_says_nearly_what_it_said_when_it_acted() -> None:
    play = Play(PONG, 0, "bf16")
    segments = time_major(play.replay)
    valid = valid_steps(segments)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        value = unroll(play.module, segments)[0]["value"]
    assert value.dtype == torch.float32
    torch.testing.assert_close(value[valid], segments["value"][valid], atol=2e-2, rtol=2e-2)


def test_time_major_frames_are_those_of_unstacked(plays: dict[int, Play]) -> None:
    tree = plays[0].replay.tree
    frames, length = tree["frames"], tree["length"]
    observation, final = unstacked(frames, length, LENGTH)
    segments = time_major(plays[0].replay)
    seen = segments["observation"].tensor()
    assert seen.shape == (LENGTH, len(length), 4, 84, 84)
    assert seen.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    valid = valid_steps(segments).numpy()
    assert np.array_equal(seen.numpy()[valid], observation.swapaxes(0, 1)[valid])
    assert np.array_equal(segments["final_observation"].tensor().numpy(), final)
    assert "frames" not in segments
    memory = segments["observation"].frames.untyped_storage().nbytes()
    assert memory <= plays[0].replay.block.nbytes, "frames that are there once"


def plain(module: Any, segments: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits of each segment's steps `[length, A]` and the value after each, by a loop.

    A policy with memory goes step by step, as it did when it acted.
    """
    logits, finals = [], []
    for column, length in enumerate(segments["length"].tolist()):
        steps = segments["observation"][:length, column].tensor()
        seen = torch.cat([steps, segments["final_observation"][column].tensor()[None]])
        if "initial_state" in segments:
            state, outputs = segments["initial_state"][column][None], []
            for observation in seen:
                outputs.append(module(observation[None], state))
                state = outputs[-1]["state"]
            said = {name: torch.cat([o[name] for o in outputs]) for name in ("logits", "value")}
        else:
            said = module(seen)
        logits.append(said["logits"][:-1])
        finals.append(said["value"][-1])
    return logits, finals


@pytest.mark.parametrize("memory_size", [0, 5])
def test_unroll_is_the_plain_formula_and_so_are_its_gradients(
    plays: dict[int, Play], memory_size: int
) -> None:
    module, segments = plays[memory_size].module, time_major(plays[memory_size].replay)
    valid = valid_steps(segments)
    weights = torch.rand(int(valid.sum()), 4)
    outputs, final = unroll(module, segments)
    logits, finals = plain(module, segments)
    wanted = torch.zeros(*valid.shape, 4)
    for column, said in enumerate(logits):
        wanted[: len(said), column] = said
    torch.testing.assert_close(outputs["logits"][valid], wanted[valid], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(final, torch.stack(finals), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(final_value(module, segments), final)
    parameters = [p for p in module.parameters() if p.requires_grad]
    got = torch.autograd.grad((outputs["logits"][valid] * weights).sum() + final.sum(), parameters)
    told = (wanted[valid] * weights).sum() + torch.stack(finals).sum()
    for one, other in zip(got, torch.autograd.grad(told, parameters), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("memory_size", [0, 5])
def test_what_is_padding_or_after_a_termination_counts_nothing(
    plays: dict[int, Play], memory_size: int
) -> None:
    play = plays[memory_size]
    part = appo.APPO.of("CartPole-v1", hidden=(16,), memory_size=memory_size).config
    trainer = appo.APPOTrainer(play.module, play.buffer, model=play.model, part=part, seed=1)
    segments = time_major(play.replay)
    loss = trainer.loss(segments, 0)[0].detach()
    changed = dict(segments)
    for name, ignored in (
        ("observation", ~valid_steps(segments)),
        ("final_observation", segments["terminated"].any(0)),
    ):
        first = segments[name].first.masked_fill(ignored, 7)  # another stack's
        assert ignored.any()
        assert not first.equal(segments[name].first)
        changed[name] = replace(segments[name], first=first)
    torch.testing.assert_close(trainer.loss(changed, 0)[0].detach(), loss)


def test_halves_of_an_even_number_and_their_model() -> None:
    spaces = read_spaces(PONG)
    for num_envs, kind, batch in ((4, AlternatingRunners, 2), (3, Runner, 3), (1, Runner, 1)):
        settings = impala.IMPALA.of(PONG, num_envs=num_envs, hidden=(16,)).parts
        runners = EnvironmentRunners(settings.source, settings.trainer, is_local=False)
        config = runners.model_config()
        assert (config.max_batch_size, config.pad_to) == (batch, (batch,))
        module = make_policy(spaces, NetworkConfig(hidden=(16,)), seed=1)
        layout = segment_layout(spaces, 4, 0, stack=True)
        with Model(module, spaces.example, config=config) as model:
            made = runners.runner(model, Buffer(layout, BufferConfig(batch_size=1)), seed=1)
            assert isinstance(made, kind)
            assert made.num_envs == num_envs
            made.close()
    settings = impala.IMPALA.of(PONG, num_envs=4).parts
    pole = impala.IMPALA.of("CartPole-v1", num_envs=4).parts
    runners = EnvironmentRunners(pole.source, pole.trainer, is_local=False)
    assert runners.model_config().max_batch_size == 4, "no threads: no halves"
    runners = EnvironmentRunners(settings.source, settings.trainer, is_local=True)
    assert runners.model_config().max_batch_size == 4, "the model has all cores"
    on_gpu = replace(settings.trainer, device="cuda")
    runners = EnvironmentRunners(settings.source, on_gpu, is_local=True)
    assert runners.model_config().max_batch_size == 2, "the model has a GPU"


@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 96, 96), (96, 96, 3), (40, 40), (2, 9, 9, 3)])
@pytest.mark.parametrize("hidden", [(16,), (24, 16)])
@pytest.mark.parametrize("memory_size", [0, 5])
def test_policies_read_images_of_any_size(
    shape: tuple[int, ...], hidden: tuple[int, ...], memory_size: int
) -> None:
    spaces = replace(read_spaces(PONG), observation=LeafSpace("image", "uint8", shape))
    module = make_policy(spaces, NetworkConfig(hidden=hidden, memory_size=memory_size), seed=1)
    seen = torch.randint(0, 255, (2, *shape), dtype=torch.uint8)
    with torch.no_grad():
        outputs = module(seen, *[torch.zeros(2, 10)] * bool(memory_size))
    assert outputs["logits"].shape == (2, 6)
    assert outputs["value"].shape == (2,)
    assert not torch.equal(*outputs["value"]), "it sees them"


def test_a_softened_policy_acts_less_surely() -> None:
    spaces = read_spaces(PONG)
    seen = torch.randint(0, 255, (2, 4, 84, 84), dtype=torch.uint8)
    module: Any = make_policy(spaces, NetworkConfig(hidden=(16,)), seed=1)
    before = module(seen)["logits"]
    module.soften(2.0)
    torch.testing.assert_close(module(seen)["logits"], before / 2)


def test_defaults_for_atari_fit_this_machine() -> None:
    has_gpu = torch.cuda.is_available()
    settings = atari.settings()
    assert settings["actor.num_workers"] == max(1, machine.num_cores() // 2)
    assert settings["trainer.precision"] == ("bf16" if has_gpu else quickest_precision())
    assert settings["trainer.device"] == ("cuda" if has_gpu else "cpu")


@pytest.mark.parametrize("cores", [1, 2, 3, 6, 12, 16, 96])
def test_a_replay_of_ppo_is_shared_out_evenly_on_any_number_of_cores(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atari, "num_cores", lambda: cores)
    made = atari.settings()
    steps = atari.shared(1000)
    share = made["source.num_envs"] * made["actor.num_workers"]
    assert steps % share == 0
    assert 1000 <= steps < 1000 + share


def test_what_nobody_said_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "num_cores", lambda: 8)
    parts = impala.IMPALA.of("CartPole-v1", num_workers=3).parts

    def threads(**how: bool) -> tuple[int, int]:
        made = decided(parts, **how)
        return made.source.env_threads, made.trainer.trainer_threads

    assert threads(is_image=False, is_local=True) == (8, 1)
    assert threads(is_image=True, is_local=True) == (8, 8)
    assert threads(is_image=True, is_local=False) == (8, 4)
    few = {"env_threads": 2, "trainer_threads": 3, "precision": "bf16"}
    said = impala.IMPALA.of("CartPole-v1", num_workers=3, **few).parts
    assert decided(said, is_image=True, is_local=True) == said
    assert described(said, is_local=False) == (
        "8 cores: 3 workers (num_workers) of 16 environments (num_envs) on 2 threads "
        "(env_threads); network in bf16 (precision) on cpu (device), 3 threads (trainer_threads)"
    )
    assert described(said, is_local=True).startswith("8 cores: 16 environments (num_envs) on 2")


def test_settings_of_compute_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"precision": "bf61"}, r"precision: expected one of fp32, bf16, got 'bf61'.*'bf16'"),
        ({"device": "gpu"}, r"device: expected one of cpu, cuda, got 'gpu'"),
        ({"env_threads": 0}, r"env_threads: expected 1 or more, got 0"),
        ({"trainer_threads": -1}, r"trainer_threads: expected 1 or more, got -1"),
    ]
    for algorithm in ALGORITHMS.values():
        for settings, message in wrong:
            with pytest.raises(ConfigError, match=message):
                algorithm.of("CartPole-v1", **settings)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = ppo.PPO.of("CartPole-v1", device="cuda").parts
    with pytest.raises(ConfigError, match=r"device: .cuda. needs an NVIDIA GPU .*, found none"):
        decided(config, is_image=True, is_local=True)
    assert decided(config, is_image=True, is_local=False).trainer.device == "cuda", (
        "its node decides"
    )


def test_tasks_have_the_settings_of_their_namespace() -> None:
    assert tuned_task(appo.APPO, BREAKOUT) == BREAKOUT
    assert tuned_task(appo.APPO, "Breakout") == BREAKOUT
    assert tuned_task(appo.APPO, "CartPole-v1") == ""
    assert tuned_task(load_algorithm("alphazero"), "tic-tac-toe") == "tic-tac-toe"
    assert tuned_task(load_algorithm("td3"), PONG) == ""
    assert tuned_task(appo.APPO, 3) == "", "what a file says is not checked yet"
    for algorithm in ALGORITHMS.values():
        assert algorithm.of(PONG).parts.model.hidden == (512,)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_another_algorithm_has_its_own_settings_for_the_same_games(name: str) -> None:
    loaded = load("atari", [f"algorithm={name}", "trainer.gamma=0.9"])
    assert (loaded.algorithm, loaded.environment) == (name, PONG)
    assert loaded.parts == ALGORITHMS[name].of(PONG, gamma=0.9).parts


def test_config_check_of_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "atari"]) == 0
    assert "appo" in capsys.readouterr().out


def test_a_trial_is_named_by_template_and_environment(tmp_path: Path) -> None:
    def trial(name: str, env: str | None) -> str:
        said: dict[str, Any] = {"project": None, "trial": None, "runtime": "local"}
        said |= {"address": None, "metrics_port": None, "max_restarts": None}
        return _launch_of_template(argparse.Namespace(what=name, env=env, **said)).trial

    assert trial("atari", None) == "atari"
    assert trial("atari", "Breakout") == "atari-Breakout"
    assert trial("atari", BREAKOUT) == "atari-ALE-Breakout-v5"


def test_another_game_of_a_template_is_named_shortly() -> None:
    settings = ["trainer.epochs=1", "source.environment=ALE/Pong-v5"]
    loaded = load("atari", settings, "Breakout")
    assert (loaded.environment, loaded.parts.trainer.epochs) == (BREAKOUT, 1)


def test_an_unknown_game_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "atari", "--env", "Brakout"]) != 0
    assert "environment: unknown 'Brakout'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


TINY = [
    "source.num_envs=4",
    "agent.segment_length=8",
    "model.hidden=[16]",
    "trainer.trainer_threads=1",
    "goal.max_frames=128",
    "goal.evaluation_episodes=1",
]
"""Of Pong: a game of an untrained policy is lost, and over, in some 800 decisions."""


def train(folder: Path, *settings: str) -> int:
    return main(["train", "atari", *settings, "--project", str(folder)])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """`bray serve` of a trial, in a process of its own; returns its address."""
    open_: list[subprocess.Popen[str]] = []

    def serve(trial: Path) -> str:
        command = [sys.executable, "-m", "bray_core.cli", "serve", str(trial)]
        command += ["--tcp-port", "0", "--http-port", "0"]
        open_.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        found = None
        while found is None:
            assert open_[-1].stdout is not None
            line = open_[-1].stdout.readline()
            assert line, "it ended before it listened"
            found = re.search(r"tcp://[\d.:]+", line)
        return found[0]

    yield serve
    for process in open_:
        process.terminate()
        process.communicate(timeout=60)


def tiny(name: str) -> dict[str, Any]:
    """Return an algorithm's settings for such games, of a run that is soon over."""
    few = {"hidden": (16,), "num_envs": 4, "segment_length": 8, "num_workers": 1}
    few |= {"env_threads": 1, "trainer_threads": 1}
    if name == "ppo":
        few |= {"steps_per_replay": 64, "minibatch_size": 32}
    return few


@pytest.mark.long
@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_a_run_trains(name: str, tmp_path: Path) -> None:
    goal = Goal(evaluate_at=1e9, max_frames=128, evaluation_episodes=1)
    with bray.init(tmp_path, name) as run:
        outcome = ALGORITHMS[name].of(PONG, **tiny(name)).train(run, goal=goal, seed=1)
    assert outcome.frames >= 128
    assert outcome.version > 1
    assert -21 <= outcome.evaluation_return <= -15


@pytest.mark.timeout(300)  # some 15 s of a core: on a crowded machine minutes
def test_bray_train_and_then_its_policy_is_served_in_fp32_and_plays(
    tmp_path: Path, served: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *TINY) == 1, "the goal is not reached"
    trial = tmp_path / "atari"
    said = capsys.readouterr().out
    assert f"{machine.num_cores()} cores: 4 environments (num_envs) on" in said
    outcome = json.loads((trial / "result.json").read_text())
    again = load(str(trial))
    assert (again.algorithm, again.environment) == ("appo", PONG)
    assert again.parts == load("atari", TINY).parts

    address = served(trial)
    assert main(["play", "Pong", "--address", address, "--episodes", "1", "--seed", "3"]) == 0
    found = re.search(r"mean return (-?[\d.]+) over 1 episode ", capsys.readouterr().out)
    assert found is not None
    assert -21 <= float(found[1]) <= -15

    (export,) = (trial / "models" / "policy" / "onnx").iterdir()
    assert export.name == str(outcome["version"])
    version = trial / "models" / "policy" / "versions" / f"{export.name}.safetensors"
    module = make_policy(read_spaces(PONG), NetworkConfig(hidden=(16,)), seed=2)
    module.load_state_dict(load_file(version))
    frames = np.random.default_rng(1).integers(0, 256, (8, 4, 84, 84), dtype=np.uint8)
    with Model(export) as model, torch.no_grad():
        got = model(frames, batch=True)
        wanted = module(torch.from_numpy(frames))
    np.testing.assert_allclose(got["logits"], wanted["logits"], atol=1e-5)
    np.testing.assert_allclose(got["value"], wanted["value"], atol=1e-4)


@pytest.mark.long
def test_gamecores_play_for_a_run_over_the_wire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user's simulator would; each frame is recorded once."""
    layouts: list[Layout] = []
    made = Run.buffer

    def buffer(self: Run, name: str, layout: Layout, *args: Any, **kwargs: Any) -> Any:
        layouts.append(layout)
        return made(self, name, layout, *args, **kwargs)

    monkeypatch.setattr(Run, "buffer", buffer)
    few = ["source.num_processes=2", "source.num_envs=1", "trainer.minibatch_size=32"]
    assert train(tmp_path, "algorithm=ppo", *TINY, *few, "trainer.steps_per_replay=64") == 1
    outcome = json.loads((tmp_path / "atari" / "result.json").read_text())
    assert outcome["frames"] >= 128
    assert outcome["version"] >= 2
    assert layouts[0].spec["frames"].shape == (8 + 4, 84, 84)


def test_over_the_wire_training_sees_clipped_rewards(plays: dict[int, Play]) -> None:
    spaces = read_spaces(PONG)
    algorithm = ppo.PPO.of(PONG, num_processes=1, num_envs=1, num_workers=1)
    config = algorithm.acting(spaces, 0, 1)
    assert config.clip_reward
    layout = segment_layout(spaces, 4, 0, stack=True)
    with (
        Model(plays[0].module, spaces.example) as model,
        closing(Buffer(layout, BufferConfig(batch_size=1))) as buffer,
    ):
        actor = PolicyActor.factory(model, config, buffer=buffer)("0/0")
        frames = {"observation": np.zeros((4, 84, 84), np.uint8)}

        async def episode() -> None:
            await actor.tick(codec.encode(frames))
            await actor.end(codec.encode({**frames, "reward": 5.0, "terminated": True}))

        asyncio.run(episode())
        tree = buffer.pop().tree
    assert tree["reward"][0, 0] == 1.0
    assert tree["episode_return"][0] == 5.0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_trial_goes_on(name: str, tmp_path: Path) -> None:
    few = ["trainer.steps_per_replay=64", "trainer.minibatch_size=32"] if name == "ppo" else []
    assert train(tmp_path, f"algorithm={name}", *TINY, *few) == 1
    trial = tmp_path / "atari"
    before = json.loads((trial / "result.json").read_text())
    assert main(["train", str(trial), "--frames", "256"]) == 1
    after = json.loads((trial / "result.json").read_text())
    assert after["version"] > before["version"], "from the checkpoint"


@pytest.mark.long
@pytest.mark.slow  # test_on_policy.py has the same of a quicker task
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_appo_plays_and_trains_side_by_side_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    goal = Goal(evaluate_at=1e9, max_frames=256, evaluation_episodes=1)
    with bray.init(tmp_path, "atari", "ray") as run:
        outcome = appo.APPO.of(PONG, **tiny("appo")).train(run, goal=goal, seed=1)
    assert outcome.frames >= 256
    assert outcome.version > 1
