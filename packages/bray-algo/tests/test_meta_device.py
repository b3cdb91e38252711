"""The losses on torch's meta device: it holds no numbers, as a GPU's are not here yet.

What mixes devices fails here, and what would make a GPU wait for a number, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from bray_algo.losses import (
    adversarial,
    c51,
    cloning,
    cql,
    critics,
    dqn,
    iql,
    qmix,
    qr_dqn,
    rnd,
    sac,
    sac_discrete,
    td3,
    td3_bc,
    tqc,
)
from bray_algo.networks import mixers
from bray_algo.networks.noisy import NoisyLinear
from bray_algo.networks.polyak import polyak_
from bray_algo.returns import targets, value_rescaling

N, A, K, C = 4, 3, 5, 2


@pytest.fixture(autouse=True)
def meta() -> Iterator[None]:
    with torch.device("meta"):
        yield


def rows(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)


def flags(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


def dqn_step() -> Tensor:
    discount = targets.discount(0.9, flags(N), torch.zeros(N, dtype=torch.int64))
    next_q = value_rescaling.unrescale(rows(N, A))
    target = dqn.target(next_q, rows(N), discount, next_online_q=rows(N, A), next_legal=flags(N, A))
    return dqn.loss(rows(N, A), torch.zeros(N, dtype=torch.int64), target, weight=rows(N))[0]


def c51_step() -> Tensor:
    # Once transformers has loaded a model in this process, `linspace` takes no default device: it
    # patches it meanwhile, and torch keeps the patched one for good in a set of its own.
    support = c51.atoms(-1, 1, K).to("meta")
    target = c51.target(rows(N, A, K), rows(N), rows(N), support, next_legal=flags(N, A))
    c51.divergence(rows(N, A, K), torch.zeros(N, dtype=torch.int64), target)
    return c51.loss(rows(N, A, K), torch.zeros(N, dtype=torch.int64), target)[0]


def qr_dqn_step() -> Tensor:
    target = qr_dqn.target(rows(N, A, K), rows(N), rows(N), next_legal=flags(N, A))
    return qr_dqn.loss(rows(N, A, K), torch.zeros(N, dtype=torch.int64), target)[0]


def sac_step() -> Tensor:
    alpha = rows().exp()
    target = sac.target(rows(C, N), rows(N), rows(N), rows(N), alpha=alpha)
    loss = (
        sac.critic_loss(rows(C, N), target)[0] + sac.actor_loss(rows(C, N), rows(N), alpha=alpha)[0]
    )
    return loss + sac.temperature_loss(rows(), rows(N), target_entropy=-1)[0]


def sac_discrete_step() -> Tensor:
    alpha = rows().exp()
    target = sac_discrete.target(rows(C, N, A), rows(N, A), rows(N), rows(N), alpha=alpha)
    q = sac_discrete.chosen(rows(C, N, A), torch.zeros(N, dtype=torch.int64))
    loss = sac.critic_loss(q, target)[0]
    loss = loss + sac_discrete.actor_loss(rows(C, N, A), rows(N, A), alpha=alpha)[0]
    return loss + sac_discrete.temperature_loss(rows(), rows(N, A), target_entropy=1)[0]


def tqc_step() -> Tensor:
    alpha = rows().exp()
    target = tqc.target(rows(C, N, K), rows(N), rows(N), rows(N), alpha=alpha)
    loss = tqc.critic_loss(rows(C, N, K), target, weight=rows(N))[0]
    return loss + tqc.actor_loss(rows(C, N, K), rows(N), alpha=alpha)[0]


def td3_step() -> Tensor:
    td3.smoothed(rows(N, A), low=-2.0, high=torch.ones(A))
    loss = critics.critic_loss(rows(C, N), td3.target(rows(C, N), rows(N), rows(N)))[0]
    return loss + td3.actor_loss(rows(N))[0]


def offline_step() -> Tensor:
    loss = iql.value_loss(rows(N), rows(C, N))[0]
    loss = loss + iql.policy_loss(rows(N), iql.advantage(rows(N), rows(C, N)))[0]
    loss = loss + cql.choice_gap(rows(N, A), torch.zeros(N, dtype=torch.int64), flags(N, A))
    loss = loss + cql.sampled_gap(rows(C, N), rows(C, N, K), rows(N, K))
    return loss + td3_bc.actor_loss(rows(N), rows(N, A), rows(N, A))[0]


def imitation_step() -> Tensor:
    weight = cloning.advantage_weight(rows(N), temperature=1.0)
    loss = cloning.likelihood_loss(rows(N), weight=weight)[0]
    loss = loss + cloning.regression_loss(rows(N, A), rows(N, A), huber=1.0)[0]
    loss = (
        loss + cloning.smoothed_loss(rows(N, A), torch.zeros(N, dtype=torch.int64), flags(N, A))[0]
    )
    logit = adversarial.airl_logit(
        adversarial.airl_advantage(rows(N), rows(N), rows(N), rows(N)), rows(N)
    )
    adversarial.gail_reward(logit)
    return loss + adversarial.discriminator_loss(logit, logit)[0]


def curiosity_step() -> Tensor:
    module = rnd.RandomNetworkDistillation(nn.Linear(A, K), nn.Linear(A, K), (A,))
    module.observations.update(rows(N, A))
    rnd.discounted_sums(rows(K, N), torch.zeros(N, dtype=torch.int64), gamma=0.9)
    return rnd.loss(module(rows(N, A)), flags(N))[0]


def mixing_step() -> Tensor:
    mixer, q = mixers.QMix(C, A), rows(N, C, K)
    joint = mixer(qmix.chosen(q, qmix.greedy(q, flags(N, C, K))), rows(N, A))
    return qmix.joint_loss(joint, targets.bootstrap(rows(N), rows(N), joint), valid=flags(N))[0]


def noisy_step() -> Tensor:
    layer, other = NoisyLinear(A, K), NoisyLinear(A, K)
    layer.redraw()
    polyak_(other, layer, 0.5)
    return dqn.duelling(layer(rows(N, A)), rows(N, A, K)).sum()


STEPS = [
    dqn_step,
    c51_step,
    qr_dqn_step,
    sac_step,
    sac_discrete_step,
    tqc_step,
    td3_step,
    offline_step,
    imitation_step,
    curiosity_step,
    mixing_step,
    noisy_step,
]


@pytest.mark.parametrize("step", STEPS)
def test_nothing_mixes_devices_or_waits(step: Callable[[], Tensor]) -> None:
    loss = step()
    assert loss.shape == ()
    assert loss.device.type == "meta"
    loss.backward()
