"""Segments of unequal lengths on two ranks, or in two batches: the gradient is that of all."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bray.algorithms import a2c, appo, impala, ppo
from bray.policies.config import NetworkConfig
from bray.policies.networks import make_policy
from bray.sources.environments import read_spaces
from bray_trainer import Trainer
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.reporting.loss_means import LossMeans
from bray_trainer.sequences import Batch

T = 6
SPACES = read_spaces("CartPole-v1")
LENGTHS = ([6, 6, 5, 6], [1, 2, 1, 1])
"""Valid steps of the segments of each half."""
TOLERANCE = 1e-6
"""Of a gradient, beside its greatest element: float32 sums in another order."""
KINDS: dict[str, Any] = {
    "a2c": (a2c.A2CTrainer, a2c.A2C.of("CartPole-v1").config),
    "appo": (appo.APPOTrainer, appo.APPO.of("CartPole-v1").config),
    "impala": (impala.IMPALATrainer, impala.IMPALA.of("CartPole-v1").config),
}


class Exchange:
    """What two ranks in two threads of this process tell each other."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=60)
        self.gradients: dict[int, tuple[list[Tensor], float]] = {}


class ThreadRanks(Ranks):
    """One of two ranks whose gradients are averaged as `Gradients` does, without processes."""

    def __init__(self, rank: int, exchange: Exchange) -> None:
        super().__init__(rank, 2)
        self._exchange = exchange

    def average(self, parameters: Iterable[Tensor], weight: float) -> float:
        listed = list(parameters)
        gradients = [p.grad * weight for p in listed if p.grad is not None]
        self._exchange.gradients[self.rank] = gradients, weight
        self._exchange.barrier.wait()
        (first, one), (second, other) = (self._exchange.gradients[rank] for rank in range(2))
        for parameter, a, b in zip(listed, first, second, strict=True):
            parameter.grad = (a + b) / (one + other)
        return one + other


def segments(lengths: list[int], memory_size: int, seed: int) -> Batch:
    """Return random segments, time-major; NaN or nonsense in their padding must not matter."""
    made, count = torch.Generator().manual_seed(seed), len(lengths)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made)

    length = torch.tensor(lengths)
    batch = {
        "observation": random(T, count, 4),
        "final_observation": random(count, 4),
        "action": torch.randint(2, (T, count), generator=made),
        "reward": random(T, count),
        "value": random(T, count),
        "log_prob": -random(T, count).abs(),
        "terminated": torch.zeros((T, count), dtype=torch.bool),
        "length": length,
    }
    batch["terminated"][length - 1, torch.arange(count)] = torch.arange(count) % 2 == 0
    if memory_size:
        batch["initial_state"] = random(count, 2 * memory_size)
    return batch


def together(parts: list[Batch]) -> Batch:
    by_time = ("observation", "action", "reward", "value", "log_prob", "terminated")
    return {
        name: torch.cat([part[name] for part in parts], 1 if name in by_time else 0)
        for name in parts[0]
    }


def make(kind: str, memory_size: int, accumulate: int = 1, ranks: Ranks | None = None) -> Trainer:
    made, config = KINDS[kind]
    config = replace(config, max_grad_norm=1e9)
    module = make_policy(SPACES, NetworkConfig(hidden=(8,), memory_size=memory_size), seed=1)
    trainer: Trainer = made(module, NoBuffer(), model=NoModel(), part=config, seed=1)
    trainer.config = replace(trainer.config, accumulate=accumulate)
    trainer._stepper._config = trainer.config
    trainer._stepper._ranks = ranks or Ranks()
    return trainer


class NoBuffer:
    layout = None

    def pop(self, timeout_s: float | None = None) -> Any: ...


class NoModel:
    def publish(self, weights: Any) -> int: ...


def gradient(trainer: Trainer, batches: list[Batch]) -> tuple[Tensor, dict[str, float]]:
    """Return the gradient that the optimiser steps along, and the means that are reported."""
    terms = LossMeans()
    trainer._stepper.step(batches, 0, terms)
    found = [p.grad.ravel() for p in trainer.module.parameters() if p.grad is not None]
    return torch.cat(found), terms.means(0)


@pytest.mark.parametrize("memory_size", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_or_batches_step_as_one_with_all_segments(kind: str, memory_size: int) -> None:
    parts = [segments(lengths, memory_size, seed) for seed, lengths in enumerate(LENGTHS)]
    whole, figures = gradient(make(kind, memory_size), [together(parts)])
    scale = float(whole.abs().max())
    accumulated, means = gradient(make(kind, memory_size, accumulate=2), parts)
    assert float((accumulated - whole).abs().max()) < TOLERANCE * scale
    assert means["loss"] == pytest.approx(figures["loss"], rel=1e-5)
    for one in on_two_ranks(kind, memory_size, parts):
        assert float((one - whole).abs().max()) < TOLERANCE * scale
    unweighted = (gradient(make(kind, memory_size), [part])[0] for part in parts)
    assert float((sum(unweighted) / 2 - whole).abs().max()) > 0.05 * scale, "lengths matter"


def on_two_ranks(kind: str, memory_size: int, parts: list[Batch]) -> list[Tensor]:
    exchange, found = Exchange(), {}
    trainers = [make(kind, memory_size, ranks=ThreadRanks(rank, exchange)) for rank in range(2)]

    def run(rank: int) -> None:
        found[rank] = gradient(trainers[rank], [parts[rank]])[0]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(2)]


def test_ppo_with_memory_weighs_its_minibatches_by_their_valid_steps() -> None:
    """Its advantages are normalised within a minibatch, so the weights alone are compared."""
    config = ppo.PPO.of("CartPole-v1", memory_size=3).config
    module = make_policy(SPACES, NetworkConfig(hidden=(8,), memory_size=3), seed=1)
    trainer = ppo.PPOTrainer(module, NoBuffer(), model=NoModel(), part=config, seed=1)  # type: ignore[arg-type]
    weights = [trainer.batch_weight(segments(lengths, 3, 0)) for lengths in LENGTHS]
    assert weights == [23.0, 5.0]
