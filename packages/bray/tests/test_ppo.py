"""The recipe's own arithmetic; the loop around it is tested in tests/test_loop.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bray.algorithms import ppo
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray.training.on_policy import segment_layout
from bray_buffer import Buffer, BufferConfig
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_core.settings.schedule import Schedule
from bray_core.spaces import Spaces

SPACES = read_spaces("CartPole-v1")
LAYOUT = segment_layout(SPACES, 8, 0)


class _Target:
    """A publish target that only counts."""

    version = 0

    def publish(self, weights: object) -> int:
        self.version += 1
        return self.version


def segments(lengths: list[int], seed: int = 0) -> Packed:
    rng = np.random.default_rng(seed)
    block = LAYOUT.empty(len(lengths))
    views = LAYOUT.views(block)
    for name in ("observation", "final_observation", "value", "log_prob", "reward"):
        views[name][...] = rng.normal(size=views[name].shape)
    views["action"][...] = rng.integers(0, 2, views["action"].shape)
    views["length"][...] = lengths
    views["episode_return"][...] = np.nan
    for row, length in enumerate(lengths):  # every second segment ends its episode
        views["terminated"][row, length - 1] = row % 2
        views["episode_return"][row] = 10.0 * row if row % 2 else np.nan
    return Packed(LAYOUT, block)


def make_trainer(kind: type[ppo.PPOTrainer] = ppo.PPOTrainer, **part: Any) -> ppo.PPOTrainer:
    return kind(
        make_policy(SPACES, NetworkConfig(hidden=(64, 64)), seed=0),
        Buffer(LAYOUT, BufferConfig(batch_steps=16, capacity=64)),
        model=_Target(),
        part=ppo.PPO.of("CartPole-v1", **part).config,
        seed=0,
    )


def test_minibatches_hold_each_valid_step_once_an_epoch() -> None:
    replay = segments([8, 3, 5])
    trainer = make_trainer(epochs=2, minibatch_size=4)
    batches = list(trainer.handle(replay))
    assert len(batches) == 2 * 16 // 4
    valid = replay.tree["observation"][np.arange(8)[None] < replay.tree["length"][:, None]]
    for epoch in (batches[:4], batches[4:]):
        seen = torch.cat([batch["observation"] for batch in epoch]).numpy()
        assert sorted(map(tuple, seen)) == sorted(map(tuple, valid))


@pytest.mark.parametrize("lengths", [[1], [1, 1], [8, 3, 5], [7, 8]])
def test_a_minibatch_of_one_step_or_equal_ones_trains(lengths: list[int]) -> None:
    trainer = make_trainer(epochs=1, minibatch_size=1)
    for batch in trainer.handle(segments(lengths)):
        assert len(batch["advantage"]) == 1
        loss, terms = trainer.loss(batch, 0)
        assert torch.isfinite(loss)
        assert terms["policy_loss"] == 0, "of one sample the advantage is the mean"
        loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in trainer.module.parameters())


def test_a_gpu_may_repeat_a_loss_that_reads_tensors_alone() -> None:
    """Not one with a schedule, memory, another loss, nor what is looked at after each step."""
    batch: dict[str, Any] = {"observation": torch.zeros(4, 4)}
    trainer = make_trainer()
    assert trainer.is_repeatable(batch)
    assert not trainer.is_repeatable({**batch, "initial_state": torch.zeros(4, 8)})
    trainer.gap.is_due = True
    assert not trainer.is_repeatable(batch)
    falls = Schedule(start=0.2, end=0.1, frames=1000)
    for name in ("clip", "entropy_coefficient"):
        assert not make_trainer(**{name: falls}).is_repeatable(batch)
    assert not make_trainer(target_kl=0.02).is_repeatable(batch)

    class Other(ppo.PPOTrainer):
        def loss(self, batch: Any, step: int) -> Any:
            return super().loss(batch, step)

    assert not make_trainer(Other).is_repeatable(batch)


def test_the_rest_of_an_epoch_is_shared_out() -> None:
    sizes = [len(b["advantage"]) for b in make_trainer(epochs=1).handle(segments([8, 5, 4]))]
    assert sizes == [17]
    trainer = make_trainer(epochs=1, minibatch_size=8)
    assert sorted(len(b["advantage"]) for b in trainer.handle(segments([8, 5, 4]))) == [5, 6, 6]


def test_advantages_are_normalised_within_the_minibatch() -> None:
    trainer = make_trainer(epochs=1, minibatch_size=5)
    batch = next(trainer.handle(segments([8, 3, 5])))
    _, terms = trainer.loss(batch, 0)
    advantage = batch["advantage"].double().numpy()
    normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    with torch.no_grad():
        logits = trainer.module(batch["observation"])["logits"].double()
    log_p = torch.log_softmax(logits, -1)[torch.arange(len(normal)), batch["action"]]
    ratio = np.exp((log_p - batch["log_prob"]).numpy())
    wanted = -np.minimum(ratio * normal, ratio.clip(0.8, 1.2) * normal).mean()
    assert float(terms["policy_loss"]) == pytest.approx(wanted, abs=1e-5)


def test_the_order_of_arrival_does_not_matter() -> None:
    replay = segments([8, 3, 5, 8])
    turned = Packed(LAYOUT, replay.block[::-1].copy())
    first, second = (
        [batch["advantage"] for batch in make_trainer().handle(r)] for r in (replay, turned)
    )
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_advantages_are_those_of_the_plain_recursion() -> None:
    replay = segments([8, 3])
    trainer = make_trainer(epochs=1, minibatch_size=11, gamma=0.9, gae_lambda=0.7)
    (batch,) = trainer.handle(replay)
    tree = replay.tree
    expected = {}
    with torch.no_grad():
        final = trainer.module(torch.tensor(tree["final_observation"]))["value"].numpy()
    for row, length in enumerate(tree["length"]):
        advantage, following = 0.0, float(final[row])
        for t in reversed(range(length)):
            alive = 1.0 - float(tree["terminated"][row, t])
            value = float(tree["value"][row, t])
            delta = float(tree["reward"][row, t]) + 0.9 * alive * following - value
            advantage = delta + 0.9 * 0.7 * alive * advantage
            expected[tuple(tree["observation"][row, t])] = advantage
            following = value
    wanted = np.array([expected[tuple(one.numpy())] for one in batch["observation"]])
    wanted = (wanted - wanted.mean()) / wanted.std()
    assert batch["advantage"].numpy() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("lengths", "size"), [([8, 8], 4), ([8, 3], 4), ([1], 1)])
def test_advantages_are_normalised_within_each_minibatch(lengths: list[int], size: int) -> None:
    for batch in make_trainer(epochs=2, minibatch_size=size).handle(segments(lengths)):
        advantage = batch["advantage"].double()
        deviation = 1.0 if len(advantage) > 1 else 0.0
        assert float(advantage.mean()) == pytest.approx(0.0, abs=1e-6)
        assert float(advantage.std(correction=0)) == pytest.approx(deviation, abs=1e-6)


def test_the_same_seed_makes_the_same_network() -> None:
    one, same, other = (
        make_policy(SPACES, NetworkConfig(hidden=(64, 64)), seed=s) for s in (1, 1, 2)
    )
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.ndim == 1 or not torch.equal(a, c)


SEEN, FLAGS = {"shape": [4]}, {"multi_binary": 3}
MISFITS: list[tuple[Any, Any, str]] = [
    (
        {"action_mask": FLAGS, "observation": SEEN},
        {"discrete": 2},
        r"Odd: expected action_mask with .*, 2 in all, got 3: mend the mask",
    ),
    ({"action_mask": FLAGS}, {"discrete": 3}, r"Odd: an observation of action_mask alone: let a"),
    (
        {"action_mask": FLAGS, "observation": SEEN},
        {"shape": [1], "low": -1, "high": 1},
        r"Odd: expected no action_mask with actions of reals alone.*: leave it out",
    ),
    (SEEN, {"units": {"most": 3, "features": 2}}, r"Odd: action units: a set of .* cannot be cho"),
]


@pytest.mark.parametrize(("observation", "action", "message"), MISFITS)
def test_an_environment_that_does_not_fit_is_refused(
    observation: Any, action: Any, message: str
) -> None:
    spaces = Spaces.parse("Odd", {"observation": observation, "action": action})
    with pytest.raises(ConfigError, match=message):
        make_policy(spaces, NetworkConfig(hidden=(8,)), seed=0)
