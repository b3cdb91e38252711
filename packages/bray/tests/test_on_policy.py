"""Runners, queue and trainers joined: what a trainer recomputes is what the players recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bray
from bray.algorithms import a2c, appo, impala, ppo
from bray.goal import Goal
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources.environments import make_environments, read_spaces
from bray.training.actor_critic import ActorCriticTrainer
from bray.training.on_policy import segment_layout
from bray_actor import PolicyActor, PolicyConfig, Rollouts, Runner
from bray_actor.gamecores.gamecore import play
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ConfigError
from bray_model import Model, ModelConfig
from bray_trainer.sequences import final_value, time_major, valid_steps

pytestmark = pytest.mark.usefixtures("evaluated_here")

TASKS = [
    ("CartPole-v1", 0),
    ("Pendulum-v1", 0),
    ("bray.sources.tasks:TwoHeads-v0", 0),
    ("bray.sources.tasks:TwoHeads-v0", 5),
    ("bray.sources.tasks:Recall-v0", 5),
]
ATTENTIVE = {"memory": "gtrxl", "memory_size": 6, "memory_length": 3, "memory_layers": 2}


def played(
    environment: str,
    memory_size: int = 0,
    steps: int = 24,
    segment_length: int = 10,
    config: NetworkConfig | None = None,
) -> tuple[Any, Any, Any]:
    """Return a policy, the queue of what it played, and the model that played."""
    spaces, n = read_spaces(environment), 3
    config = config or NetworkConfig(hidden=(8,), memory_size=memory_size)
    module = make_policy(spaces, config, seed=1)
    with torch.no_grad():  # far from uniform
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    example = example_inputs(spaces, module.state_size)
    model = Model(module, example, config=ModelConfig(max_batch_size=n, pad_to=(n,)))
    size = module.state_size
    layout = segment_layout(spaces, segment_length, size)
    buffer = Buffer(layout, BufferConfig(batch_steps=n * steps, capacity=n * steps))
    rollouts = Rollouts(Runner(make_environments(environment, n), model, buffer, seed=1))
    rollouts.collect(steps)
    rollouts.close()
    return module, buffer, model


@pytest.mark.isa
@pytest.mark.parametrize(
    ("environment", "memory"),
    [(task, {"memory_size": size}) for task, size in TASKS]
    + [("CartPole-v1", ATTENTIVE), ("bray.sources.tasks:Recall-v0", ATTENTIVE)],
)
def test_a_policy_replayed_says_what_it_said_when_it_acted(
    environment: str, memory: dict[str, Any]
) -> None:
    module, buffer, model = played(environment, config=NetworkConfig(hidden=(8,), **memory))
    part = impala.IMPALA.of("CartPole-v1", **memory).config
    trainer = ActorCriticTrainer(module, buffer, model=model, part=part, seed=1)
    (segments,) = trainer.handle(buffer.pop(timeout_s=1))
    valid = valid_steps(segments)
    assert not valid.all(), "some segments are shorter"
    columns = trainer.columns(segments)
    for name in ("log_prob", "value"):
        now = getattr(columns, name)[valid].detach()
        torch.testing.assert_close(now, segments[name][valid], atol=1e-5, rtol=1e-5)
    assert (columns.entropy[valid] > 0).all() or environment == "Pendulum-v1"
    model.close()


@pytest.mark.isa
@pytest.mark.parametrize("memory", [{}, {"memory_size": 5}, ATTENTIVE])
def test_the_value_after_a_segment_is_that_of_the_next_step(memory: dict[str, Any]) -> None:
    # No episode of CartPole is shorter than 8 steps: each has a segment that another one follows.
    config = NetworkConfig(hidden=(8,), **memory)
    module, buffer, model = played("CartPole-v1", segment_length=4, config=config)
    segments = time_major(buffer.pop(timeout_s=1))
    ends = segments["terminated"].any(0)
    with torch.no_grad():
        final = final_value(module, segments)
    begins = zip(segments["observation"][0].tolist(), segments["value"][0], strict=True)
    firsts = {tuple(observation): value for observation, value in begins}
    found = 0
    for column in range(len(ends)):
        following = firsts.get(tuple(segments["final_observation"][column].tolist()))
        if following is not None and not ends[column]:
            assert float(final[column]) == pytest.approx(float(following), abs=1e-5)
            found += 1
    assert found >= 3
    model.close()


@pytest.mark.isa
def test_what_lags_is_corrected() -> None:
    module, buffer, model = played("CartPole-v1", 0)
    replay = buffer.pop(timeout_s=1)
    for config, make in (
        (impala.IMPALAConfig(), impala.IMPALATrainer),
        (appo.APPOConfig(), appo.APPOTrainer),
    ):
        trainer: Any = make(module, buffer, model=model, part=config, seed=1)
        segments = time_major(replay)
        _, terms = trainer.loss(segments, 0)
        assert float(terms["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
        segments["log_prob"] = segments["log_prob"] - 0.5  # the players found them less likely
        _, terms = trainer.loss(segments, 0)
        assert float(terms["rho_clip_fraction"]) == 1.0
    model.close()


@pytest.mark.isa
def test_ppo_with_memory_trains_on_whole_segments() -> None:
    module, buffer, model = played("bray.sources.tasks:Recall-v0", 5)
    config = ppo.PPOConfig(epochs=2, minibatch_size=40)
    trainer = ppo.PPOTrainer(module, buffer, model=model, part=config, seed=1)
    replay = buffer.pop(timeout_s=1)
    batches = list(trainer.handle(replay))
    assert batches[0]["observation"].shape[0] == 10, "whole segments, of 10 steps at most"
    steps = [int(batch["length"].sum()) for batch in batches]
    assert sum(steps) == 2 * replay.tree["length"].sum(), "each once an epoch"
    assert max(steps) <= 40
    assert sum(count > 30 for count in steps) >= len(steps) - 2, "but for each epoch's last"
    loss, terms = trainer.loss(batches[0], 0)
    assert float(terms["approx_kl"]) == pytest.approx(0.0, abs=1e-5)
    loss.backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.isa
def test_a_policy_of_several_heads_and_a_memory_is_served_from_its_export(tmp_path: Path) -> None:
    task = "bray.sources.tasks:TwoHeads-v0"
    spaces = read_spaces(task)
    module = make_policy(spaces, NetworkConfig(hidden=(8,), memory_size=5), seed=1)
    actor = {"name": "policy", "config": {"deterministic": True, "state_size": 10}}
    with Model(module, example_inputs(spaces, 10), config=ModelConfig(max_batch_size=4)) as model:
        model.export(tmp_path / "export", actor=actor)  # compares it with torch
        config = PolicyConfig(deterministic=True, state_size=10)
        wanted = play(task, PolicyActor.factory(model, config), episodes=4, num_envs=4)
    with Model(tmp_path / "export") as served:
        made = PolicyActor.from_export(actor["config"], served)
        assert play(task, made, episodes=4, num_envs=4) == wanted


@pytest.mark.isa
def test_two_heads_are_learnt_in_a_moment(tmp_path: Path) -> None:
    """Rewards are of the step alone, so nothing is discounted: seeds 1 to 4 need 1,792 frames."""
    goal = Goal(episode_return=8.5, evaluate_at=8.0, max_frames=12_000, evaluation_episodes=20)
    config = {
        "steps_per_replay": 256,
        "epochs": 6,
        "minibatch_size": 64,
        "learning_rate": 3e-3,
        "gamma": 0.0,
        "gae_lambda": 0.0,
    }
    with bray.init(tmp_path, "heads") as run:
        outcome = ppo.PPO.of("bray.sources.tasks:TwoHeads-v0", **config).train(
            run, goal=goal, seed=1
        )
    assert outcome.reached, outcome  # a random allowed pair gives 6


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for make, message in [
        (
            lambda: impala.IMPALA.of("CartPole-v1", replays_per_collect=4, max_policy_lag=2),
            "expected 3 or more for",
        ),
        (lambda: appo.APPO.of("CartPole-v1", epochs=0), "epochs: expected 1 or more"),
        (lambda: a2c.A2C.of("CartPole-v1", gamma=1.5), "gamma: expected 0 to 1"),
        (
            lambda: ppo.PPO.of("CartPole-v1", memory_size=-1),
            "memory_size: expected 0 or more",
        ),
        (
            lambda: ppo.PPO.of("CartPole-v1", hidden=()),
            "hidden: expected one or more numbers",
        ),
        (
            lambda: appo.APPO.of("CartPole-v1", replays_per_collect=0),
            "replays_per_collect: expected 1 or more",
        ),
        (
            lambda: appo.APPO.of("CartPole-v1", num_ranks=0),
            "num_ranks: expected 1 or more, got 0",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            make()
    goal = Goal(max_frames=1_000)
    uneven = "to divide the 2048 steps of a replay, got 5 × 1"
    with bray.init(tmp_path, "uneven") as run, pytest.raises(ConfigError, match=uneven):
        ppo.PPO.of("CartPole-v1", num_envs=5).train(run, goal=goal)
    pendulum = read_spaces("Pendulum-v1")
    endless = replace(pendulum, action=replace(pendulum.action, low=None))
    with pytest.raises(ConfigError, match=r"distribution: squashed needs bounded actions, Pendul"):
        make_policy(endless, NetworkConfig(distribution="squashed"), seed=1)


def test_a_policy_reads_the_number_of_a_field_one_hot() -> None:
    spaces = read_spaces("FrozenLake-v1")
    module = make_policy(spaces, NetworkConfig(hidden=(8,)), seed=1)
    first = module.policy[0]
    assert first.weight.shape == (8, 16), "of 16 fields"
    with torch.no_grad():
        outputs = module(torch.tensor([3, 15, 3]))
    assert outputs["logits"].shape == (3, 4)
    assert torch.equal(outputs["value"][0], outputs["value"][2])
    assert not torch.equal(outputs["value"][0], outputs["value"][1])


@pytest.mark.long
@pytest.mark.ray
def test_appo_plays_and_trains_side_by_side_on_ray(ray_cluster: None, tmp_path: Path) -> None:
    goal = Goal(evaluate_at=1e9, max_frames=8_000, evaluation_episodes=8)
    config = {"num_envs": 8, "num_workers": 2, "learning_rate": 3e-3}
    with bray.init(tmp_path, "appo", "ray") as run:
        outcome = appo.APPO.of("CartPole-v1", **config).train(run, goal=goal, seed=1)
    assert outcome.frames >= 8_000
    assert outcome.version > 5


@pytest.mark.long
@pytest.mark.ray
def test_two_ranks_train_on_replays_of_their_own(ray_cluster: None, tmp_path: Path) -> None:
    """Each frame is trained on once, by one of them; a step is that of both."""
    goal = Goal(evaluate_at=1e9, max_frames=8_000, evaluation_episodes=8)
    config = {"num_envs": 8, "num_workers": 2, "num_ranks": 2}
    with bray.init(tmp_path, "ranks", "ray") as run:
        algorithm = impala.IMPALA.of("CartPole-v1", **config)
        outcome = algorithm.train(run, goal=goal, seed=1)
        ranks = {rank for name, rank in run._runtime.hub.processes if name == "trainer"}
    assert ranks == {0, 1}
    assert outcome.version > 5
    rows = next((tmp_path / "ranks" / "launches").glob("*/metrics.jsonl")).read_text()
    values: dict[str, float] = {}
    for row in rows.splitlines():
        values |= json.loads(row)["values"]
    assert values["trainer/frames"] <= values["actor/steps"]
    frames_a_step = values["trainer/frames"] / values["trainer/steps"]
    assert 1.8 < frames_a_step / algorithm.batch_steps < 2.3


@pytest.mark.long
@pytest.mark.ray
def test_a_trial_goes_on_with_either_runtime(ray_cluster: None, tmp_path: Path) -> None:
    """From the checkpoint of the other: weights, optimiser, and what the buffer has to know."""
    versions = []
    algorithm = impala.IMPALA.of("CartPole-v1", num_envs=8, replays_per_collect=1)
    frames = 0
    for runtime in ("local", "ray", "local"):
        goal = Goal(evaluate_at=1e9, max_frames=frames + 1_000, evaluation_episodes=1)
        with bray.init(tmp_path, "trial", runtime) as run:
            outcome = algorithm.train(run, goal=goal, seed=1)
        assert outcome.frames >= frames + 1_000, "those of earlier launches count"
        frames = outcome.frames
        versions.append(outcome.version)
    assert versions[0] >= 5
    assert versions[1] >= versions[0] + 5
    assert versions[2] >= versions[1] + 5


RECALL = ["segment_length=8", "minibatch_size=256", "learning_rate=3e-3"]
RECALL += ["entropy_coefficient=0.01", "--evaluate-at", "0.95"]
HEADS = ["learning_rate=3e-3", "anneal_frames=150000", "gamma=0", "gae_lambda=0"]
HEADS += ["hidden=[128, 128]", "entropy_coefficient=0.1", "--evaluate-at", "9.4"]
GOALS = [
    ("ppo", "CartPole-v1", 475, 500_000, []),
    ("a2c", "CartPole-v1", 475, 500_000, []),
    ("impala", "CartPole-v1", 475, 500_000, []),
    ("appo", "CartPole-v1", 475, 500_000, []),
    ("ppo", "bray.sources.tasks:Recall-v0", 1, 100_000, ["memory_size=32", *RECALL]),
    (
        "ppo",
        "bray.sources.tasks:Recall-v0",
        1,
        100_000,
        ["memory=gtrxl", "memory_size=32", *RECALL],
    ),
    ("ppo", "bray.sources.tasks:TwoHeads-v0", 9.9, 200_000, HEADS),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("algorithm", "task", "goal", "frames", "settings"), GOALS)
def test_the_goal_is_reached(
    algorithm: str, task: str, goal: float, frames: int, settings: list[str], tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "bray_core.cli",
        "train",
        algorithm,
        task,
        "--json",
        *settings,
    ]
    command += ["--goal", str(goal), "--frames", str(frames), "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["evaluation_return"] >= goal
