"""The gap between the log-probabilities of play and of training, for the same policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bray.algorithms import a2c, appo, impala, ppo
from bray.policies.config import NetworkConfig
from bray.policies.networks import example_inputs, make_policy
from bray.sources.environments import make_environments, read_spaces
from bray.training.on_policy import segment_layout
from bray.training.play_gap import PlayGap
from bray_actor import Rollouts, Runner
from bray_buffer import Buffer, BufferConfig
from bray_core import metrics
from bray_model import Model, ModelConfig

N, STEPS, T = 4, 24, 8
NAMES = ("trainer/log_prob_gap", "trainer/log_prob_gap_max")
PPO = ppo.PPO.of("CartPole-v1", epochs=2, minibatch_size=32).config
KINDS: dict[str, Any] = {
    "ppo": (ppo.PPOTrainer, PPO, 0),
    "ppo-memory": (
        ppo.PPOTrainer,
        ppo.PPO.of("CartPole-v1", epochs=2, minibatch_size=32, memory_size=3).config,
        3,
    ),
    "a2c": (a2c.A2CTrainer, a2c.A2C.of("CartPole-v1").config, 0),
    "impala": (impala.IMPALATrainer, impala.IMPALA.of("CartPole-v1").config, 0),
    "impala-memory": (
        impala.IMPALATrainer,
        impala.IMPALA.of("CartPole-v1", memory_size=3).config,
        3,
    ),
    "appo": (appo.APPOTrainer, appo.APPO.of("CartPole-v1").config, 0),
}


@pytest.fixture
def gaps() -> Iterator[Callable[[], list[tuple[int, float]]]]:
    """Number of records and their mean since the last call, of the mean and of the greatest."""

    def drained() -> list[tuple[int, float]]:
        found = {s.name: (s.count, s.total / s.count) for s in metrics.drain() if s.name in NAMES}
        return [found[name] for name in NAMES if name in found]

    metrics.drain()
    yield drained
    metrics.drain()


class Setup:
    """A policy, who plays it, and its trainer."""

    def __init__(self, kind: str, **model: Any) -> None:
        made, config, memory_size = KINDS[kind]
        spaces = read_spaces("CartPole-v1")
        module = make_policy(spaces, NetworkConfig(hidden=(8,), memory_size=memory_size), seed=1)
        made_by = torch.Generator().manual_seed(2)
        with torch.no_grad():  # far from uniform
            for parameter in module.parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=made_by))
        example = example_inputs(spaces, module.state_size)
        settings = ModelConfig(max_batch_size=N, pad_to=(N,), **model)
        self.model = Model(module, example, config=settings)
        layout = segment_layout(spaces, T, module.state_size)
        self.buffer = Buffer(layout, BufferConfig(batch_steps=N * STEPS, capacity=N * STEPS))
        environments = make_environments("CartPole-v1", N)
        self.rollouts = Rollouts(Runner(environments, self.model, self.buffer, seed=1))
        self.trainer = made(module, self.buffer, model=self.model, part=config, seed=1)

    def play(self, collects: int = 1) -> None:
        for _ in range(collects):
            self.rollouts.collect(STEPS)

    def train(self, replays: int = 1) -> None:
        self.trainer.run(replays)

    def close(self) -> None:
        self.rollouts.close()
        self.model.close()


@pytest.fixture
def setup() -> Iterator[Callable[..., Setup]]:
    opened: list[Setup] = []

    def make(kind: str, **model: Any) -> Setup:
        opened.append(Setup(kind, **model))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_recorded_once_a_replay_and_is_nothing_where_both_compute_alike(
    kind: str, setup: Any, gaps: Any
) -> None:
    made = setup(kind)
    for _ in range(3):
        made.play()
        made.train()
    (count, mean), (_, most) = gaps()
    assert count == 3
    assert 0 <= mean <= most < 1e-4


def test_players_in_bfloat16_are_seen(setup: Any, gaps: Any) -> None:
    made = setup("ppo", precision="bf16")
    made.play()
    made.train()
    (_, mean), (_, most) = gaps()
    assert 1e-4 < mean < most < 0.2


def test_what_was_recorded_otherwise_is_the_gap(setup: Any, gaps: Any) -> None:
    made = setup("impala")
    made.play()
    replay = made.buffer.pop(0)
    length, log_prob = replay.tree["length"], replay.tree["log_prob"]
    log_prob[0, 0] -= 0.5
    log_prob[1, length[1] :] = -99.0  # padding
    (batch,) = made.trainer.handle(replay)
    made.trainer.loss(batch, 0)
    (_, mean), (_, most) = gaps()
    assert mean == pytest.approx(0.5 / length.sum(), rel=1e-3)
    assert most == pytest.approx(0.5, rel=1e-3)
    made.trainer.loss(batch, 1)
    assert gaps() == [], "the first minibatch alone"


def test_steps_of_older_policies_do_not_count(setup: Any, gaps: Any) -> None:
    made = setup("impala")
    made.play(2)
    made.train()
    assert len(gaps()) == 2
    made.train()  # played by the version before
    assert gaps() == []
    made.play()
    replay = made.buffer.pop(0)
    assert (replay.tree["policy_version"].max(1) == 2).all()
    replay.tree["policy_version"][0, 0] = 1
    replay.tree["log_prob"][0, 0] -= 0.5
    (batch,) = made.trainer.handle(replay)
    made.trainer.loss(batch, 0)
    assert gaps()[1][1] < 1e-4, "of the others alone"


def test_weights_that_nobody_has_yet_are_compared_with_nothing(setup: Any, gaps: Any) -> None:
    made = setup("a2c")
    made.play()
    made.train()
    assert made.trainer.policy_version == made.model.version == 1
    made.trainer.steps += 1  # as if a replay had been trained on and not published
    assert made.trainer.policy_version is None
    gaps()
    made.play()
    made.train()
    assert gaps() == []
    assert made.trainer.policy_version == 2


def test_segments_without_a_version_have_no_gap(gaps: Any) -> None:
    gap, batch = PlayGap(), {"log_prob": torch.zeros(3), "length": torch.tensor([1])}
    gap.begin(batch, 0)
    assert gap.see(torch.ones(3), batch).tolist() == [1, 1, 1]
    assert gaps() == []
