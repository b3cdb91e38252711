"""PQN: its returns and loss against plain sums, its network, and short runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bray
from bray.algorithms import pqn
from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Goal
from bray.policies.layer_norms import add_layer_norms
from bray.sources.environments import read_spaces
from bray.templates.loading import compose
from bray_actor import segment_spec
from bray_algo.networks.convolutional import NatureEncoder
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec
from bray_model import Model

pytestmark = pytest.mark.usefixtures("evaluated_here")

SPACES = read_spaces("CartPole-v1")
T, B = 4, 3
LENGTH = (4, 2, 3)


class Queue:
    """A buffer that is never popped."""

    def pop(self, timeout_s: float | None = None) -> Packed:
        raise AssertionError


def trainer(**settings: Any) -> pqn.PQNTrainer:
    algorithm = pqn.PQN.of("CartPole-v1", hidden=(8,), **settings)
    module = algorithm.policy(SPACES, 1)
    make = algorithm.make_trainer(SPACES, model=None, seed=1)
    made: pqn.PQNTrainer = make(module, Queue())
    return made


def replay() -> Packed:
    """Three ragged segments: one goes on, one terminated, one was truncated."""
    number = ArraySpec(np.dtype("float32"), (4,))
    layout = Layout(segment_spec(number, ArraySpec(np.dtype("int64"), ()), T))
    block, rng = layout.empty(B), np.random.default_rng(0)
    leaves = layout.views(block)
    for name in ("observation", "reward", "value", "final_observation"):
        leaves[name][...] = rng.normal(size=leaves[name].shape)
    leaves["action"][...] = rng.integers(0, 2, (B, T))
    leaves["length"][...] = LENGTH
    leaves["terminated"][...] = False
    leaves["terminated"][1, 1] = True
    leaves["truncated"][...] = False
    leaves["truncated"][2, 2] = True
    return Packed(layout, block)


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
def test_the_loss_is_towards_the_papers_returns(q_lambda: float) -> None:
    """G_t = r_t + γ (λ G_{t+1} + (1 − λ) max_a Q(s_{t+1}, a)), Gallici et al. 2024, §4."""
    made = trainer(q_lambda=q_lambda, gamma=0.9, epochs=1, minibatch_size=1_000)
    played = replay()
    (batch,) = list(made.handle(played))
    leaves = played.layout.views(played.block)
    final = made.module(torch.tensor(leaves["final_observation"]))["q"].amax(-1).tolist()
    wanted, errors = [], []
    for b, length in enumerate(LENGTH):
        following, value = final[b], final[b]
        for t in reversed(range(length)):
            if leaves["terminated"][b, t]:
                following = value = 0.0
            mixed = q_lambda * following + (1 - q_lambda) * value
            following, value = leaves["reward"][b, t] + 0.9 * mixed, leaves["value"][b, t]
            q = made.module(torch.tensor(leaves["observation"][b, t : t + 1]))["q"][0]
            wanted.append(following)
            errors.append(following - q[leaves["action"][b, t]].item())
    assert sorted(batch["return"].tolist()) == pytest.approx(sorted(wanted), abs=1e-5)
    loss, _ = made.loss(batch, 0)
    assert float(loss.detach()) == pytest.approx(0.5 * np.mean(np.square(errors)), abs=1e-5)


def test_a_gpu_may_repeat_its_loss_but_not_one_of_a_subclass() -> None:
    class Other(pqn.PQNTrainer):
        def loss(self, batch: Any, step: int) -> Any:
            return super().loss(batch, step)

    made = trainer()
    assert made.is_repeatable({})
    made.__class__ = Other
    assert not made.is_repeatable({})


def test_epsilon_falls_with_the_frames_of_what_is_published_next() -> None:
    made = trainer(steps_per_replay=512, epsilon_frames=2_048, epsilon_end=0.1)
    seen = []
    for replays in (0, 1, 3, 9):
        made.replays = replays
        list(made.handle(replay()))
        seen.append(float(made.module.epsilon))
    assert seen == pytest.approx([0.775, 0.55, 0.1, 0.1])


def test_every_layer_of_a_trunk_is_normalised() -> None:
    policy = pqn.PQN.of("CartPole-v1", hidden=(8, 8)).policy(SPACES, 1)
    kinds = [type(module).__name__ for module in policy.trunk.modules()]
    assert (kinds.count("Linear"), kinds.count("LayerNorm")) == (2, 2)
    encoder: Any = add_layer_norms(NatureEncoder(4, 16))
    assert sum(isinstance(layer, nn.GroupNorm | nn.LayerNorm) for layer in encoder) == 4
    frames = torch.randint(0, 255, (2, 4, 84, 84), dtype=torch.uint8)
    maps = encoder[0](frames.float() / 255)
    wanted = nn.functional.layer_norm(maps, (32, 20, 20))
    torch.testing.assert_close(encoder[1](maps), wanted, rtol=0, atol=1e-4)
    assert encoder(frames).shape == (2, 16)


def test_it_trains_and_is_exported(tmp_path: Path) -> None:
    small = (
        "hidden=[8] num_envs=2 segment_length=8 steps_per_replay=32 epochs=2 minibatch_size=16 "
        "goal.max_frames=96 goal.evaluation_episodes=2"
    )
    template = compose("pqn", "CartPole-v1", small.split())
    launch = Launch(project=tmp_path, trial="t")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert outcome.version >= 2
    assert report is not None
    with Model(report.path) as exported:
        outputs = exported(np.zeros(4, np.float32))
    assert outputs["logits"].shape == outputs["q"].shape == (2,)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cartpole_is_learnt(tmp_path: Path, seed: int) -> None:
    goal = Goal(episode_return=400.0, evaluate_at=250.0, max_frames=250_000)
    with bray.init(tmp_path, "trial") as run:
        assert pqn.PQN.of("CartPole-v1").train(run, goal=goal, seed=seed).reached
