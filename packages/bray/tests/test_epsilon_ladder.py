"""ε of each worker: the paper's exponents, and chances of the power of ε, masked or not."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from bray.algorithms.dqn import DQN
from bray.training.off_policy.epsilon_ladder import WorkerEpsilon, exponent, with_exponent
from bray_algo.distributions import categorical
from bray_algo.losses import dqn
from bray_core.errors import ConfigError
from bray_core.protocols import Answer


def test_exponents_are_the_papers() -> None:
    assert [exponent(i, 8) for i in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert exponent(0, 1) == 1


@pytest.mark.parametrize("epsilon", [1.0, 0.4, 0.05, 0.0])
@pytest.mark.parametrize("power", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_chances_are_those_of_the_power(epsilon: float, power: float, is_masked: bool) -> None:
    q = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    legal = torch.rand(20, 5, generator=torch.Generator().manual_seed(2)) < 0.6
    legal[:, 2] = True

    def logits(share: float) -> Any:
        if not is_masked:
            return dqn.epsilon_greedy(q, share)
        return categorical.mask(dqn.epsilon_greedy(categorical.mask(q, legal), share), legal)

    got = torch.tensor(with_exponent(logits(epsilon).numpy(), power)).softmax(-1)
    torch.testing.assert_close(got, logits(epsilon**power).softmax(-1), atol=1e-6, rtol=0)


class Stub:
    version = 7

    async def infer(self, *inputs: Any, **options: Any) -> Answer:
        logits = dqn.epsilon_greedy(torch.tensor([[1.0, 0.0]]), 0.5).numpy()
        return Answer({"logits": logits, "value": np.ones(1, np.float32)}, 7)

    def weights(self) -> str:
        return "weights"


def test_a_worker_asks_the_model_with_its_own_epsilon() -> None:
    parts = {"num_workers": 3, "epsilon_per_worker": True}
    algorithm = DQN.of("CartPole-v1", **parts)
    model = algorithm.acting_model(Stub(), 2)
    assert isinstance(model, WorkerEpsilon)
    assert (model.version, model.weights()) == (7, "weights")
    answer = asyncio.run(model.infer(np.zeros((1, 4)), batch=True))
    assert np.exp(answer.outputs["logits"][0, 1]) == pytest.approx(0.5**8 / 2)
    assert answer.version == 7
    stub = Stub()
    assert DQN.of("CartPole-v1").acting_model(stub, 2) is stub


def test_noise_and_epsilon_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.epsilon_per_worker: a noisy network explores"):
        DQN.of("CartPole-v1", noisy=True, epsilon_per_worker=True)
