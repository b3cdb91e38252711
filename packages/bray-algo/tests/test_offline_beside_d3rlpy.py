"""Offline losses and gradients beside d3rlpy's, of the same numbers, where it is installed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bray_algo.losses import cql, iql, td3_bc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    d3rlpy: Any = pytest.importorskip("d3rlpy", reason="d3rlpy is not installed")
    from d3rlpy.algos.qlearning.torch import (  # type: ignore[import-not-found, unused-ignore]
        cql_impl,
        iql_impl,
        td3_plus_bc_impl,
    )

N, K, A, D, M = 16, 2, 5, 3, 4
TOLERANCE = 1e-6
"""Numbers are of float64, but for a weight that d3rlpy rounds to float32."""


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def agree(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *leaves: Tensor) -> None:
    """Compare two losses and their gradients by all leaves."""
    found = []
    for loss in (ours, theirs):
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        value = loss(*given)
        found.append([value, *torch.autograd.grad(value, given)])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=TOLERANCE, atol=TOLERANCE)


def answering(q: Tensor) -> Any:
    """Return critics whose answer is known."""
    return SimpleNamespace(compute_expected_q=lambda *_: q)


def iql_with(q: Tensor, value: Tensor, **settings: float) -> Any:
    made = SimpleNamespace(
        _targ_q_func_forwarder=answering(q.min(0).values[:, None]),
        _modules=SimpleNamespace(value_func=lambda _: value[:, None]),
        **settings,
    )
    made._compute_weight = lambda batch: iql_impl.IQLImpl._compute_weight(made, batch)
    return made


BATCH = SimpleNamespace(observations=None, actions=None, next_observations=None)


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_the_value_of_iql(expectile: float) -> None:
    q = drawn(0, K, N)
    agree(
        lambda value: iql.value_loss(value, q, expectile=expectile)[0],
        lambda value: iql_impl.IQLImpl.compute_value_loss(
            iql_with(q, value, _expectile=expectile), BATCH
        ),
        drawn(1, N),
    )


def test_the_policy_of_iql() -> None:
    q, value, action, spread = drawn(0, K, N), drawn(1, N), drawn(2, N, D), drawn(3, N, D) / 4
    made = iql_with(q, value, _weight_temp=3.0, _max_weight=100.0)
    batch = SimpleNamespace(observations=None, actions=action)

    def ours(mean: Tensor) -> Tensor:
        normal = torch.distributions.Normal(mean.tanh(), spread.exp())
        advantage = iql.advantage(value, q)
        return iql.policy_loss(normal.log_prob(action).sum(-1), advantage, inverse_temperature=3.0)[
            0
        ]

    def theirs(mean: Tensor) -> Tensor:
        said = SimpleNamespace(mu=mean, squashed_mu=mean.tanh(), logstd=spread)
        loss: Tensor = iql_impl.IQLImpl.compute_actor_loss(made, batch, said).actor_loss
        return loss

    agree(ours, theirs, drawn(4, N, D))


def test_the_gap_of_choices() -> None:
    action = torch.arange(N) % A
    agree(
        lambda q: cql.choice_gap(q, action),
        lambda q: cql_impl.DiscreteCQLImpl._compute_conservative_loss(
            SimpleNamespace(_q_func_forwarder=answering(q), action_size=A), None, action
        ),
        drawn(5, N, A),
    )


def test_the_gap_of_reals() -> None:
    """d3rlpy leaves a constant out, the logarithm of the number of samples."""
    density, uniform = drawn(6, 2, N, M), math.log(0.5**D)
    of_all = torch.cat([*density, torch.full((N, M), uniform, dtype=torch.float64)], -1)

    def theirs(q: Tensor, sampled: Tensor) -> Tensor:
        now, following, random = sampled.split(M, -1)
        policies = iter([(now, density[0]), (following, density[1])])
        made = SimpleNamespace(
            _compute_policy_is_values=lambda **_: next(policies),
            _compute_random_is_values=lambda _: (random, uniform),
            _q_func_forwarder=answering(q[..., None]),
            _conservative_weight=1.0,
            _alpha_threshold=0.0,
        )
        none: Any = None
        gap: Tensor = cql_impl.CQLImpl._compute_conservative_loss(made, none, none, none, none)
        return gap.sum() - K * math.log(3 * M)

    agree(
        lambda q, sampled: cql.sampled_gap(q, sampled, of_all),
        theirs,
        drawn(7, K, N),
        drawn(8, K, N, 3 * M),
    )


@pytest.mark.parametrize("alpha", [0.5, 2.5])
def test_the_policy_of_td3_bc(alpha: float) -> None:
    recorded = drawn(9, N, D)
    batch = SimpleNamespace(observations=None, actions=recorded)

    def theirs(q: Tensor, action: Tensor) -> Tensor:
        made = SimpleNamespace(_q_func_forwarder=answering(q[None, :, None]), _alpha=alpha)
        said = SimpleNamespace(squashed_mu=action)
        loss: Tensor = td3_plus_bc_impl.TD3PlusBCImpl.compute_actor_loss(
            made, batch, said
        ).actor_loss
        return loss

    agree(
        lambda q, action: td3_bc.actor_loss(q, action, recorded, alpha=alpha)[0],
        theirs,
        drawn(10, N),
        drawn(11, N, D),
    )
