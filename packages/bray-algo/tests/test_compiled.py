"""Everything that is pure compiles into one graph and gives what it gives uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loss_cases import CASES, segment
from torch.utils import _pytree as pytree

from bray_algo import precision
from bray_algo.distributions import (
    beta,
    categorical,
    discretised,
    gaussian,
    multi_categorical,
    squashed_gaussian,
)
from bray_algo.losses import dqn, reductions, td3
from bray_algo.returns import advantages as returns
from bray_algo.returns import targets, value_rescaling

LOGITS, ACTION = torch.randn(5, 4), torch.tensor([0, 3, 1, 2, 2])
LEGAL = torch.tensor([[True, False, True, True]]).expand(5, 4)
REAL, UNIT = torch.linspace(-0.9, 0.9, 10).reshape(5, 2), torch.linspace(0.1, 0.9, 10).reshape(5, 2)
PARTS = [LOGITS[:, :2], LOGITS[:, 2:]]
SEVERAL = torch.stack([ACTION % 2, ACTION // 2], -1)


def distributions() -> dict[str, Any]:
    """Every log probability, entropy and divergence, and what makes the distributions."""
    masked = categorical.mask(LOGITS, LEGAL)
    grid = discretised.ordinal(LOGITS.reshape(5, 2, 2))
    alpha, b = beta.parameters(LOGITS)
    return {
        "categorical": categorical.log_prob(masked, ACTION),
        "categorical entropy": categorical.entropy(masked),
        "categorical kl": categorical.kl(masked, LOGITS),
        "several": multi_categorical.log_prob(PARTS, SEVERAL),
        "gaussian": gaussian.log_prob(REAL, REAL, REAL),
        "gaussian kl": gaussian.kl(REAL, REAL, -REAL, REAL),
        "squashed": squashed_gaussian.log_prob(REAL, REAL, REAL),
        "squashed entropy": squashed_gaussian.entropy(REAL, REAL),
        "beta": beta.log_prob(alpha, b, UNIT),
        "beta kl": beta.kl(alpha, b, b, alpha),
        "grid": discretised.log_prob(grid, REAL),
    }


def others() -> dict[str, Any]:
    """What stands beside the losses."""
    flags = ACTION > 1
    return {
        "standardised": reductions.standardised(UNIT, UNIT > 0.3),
        "ratio": precision.probability_ratio(REAL * 100),
        "epsilon": dqn.epsilon_greedy(LOGITS, 0.1),
        "greedy": dqn.greedy(LOGITS, LEGAL),
        "discount": targets.discount(0.9, flags, 3),
        "smoothed": td3.smoothed(REAL, noise=1e-9).round(decimals=6),
        "rescaled": value_rescaling.unrescale(value_rescaling.rescale(REAL)),
    }


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **CASES,
    "distributions": (distributions, {}),
    "others": (others, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", FUNCTIONS)
def test_it_is_one_graph_with_the_same_result(case: str) -> None:
    function, arguments = FUNCTIONS[case]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    got, want = (pytree.tree_leaves(f(**arguments)) for f in (compiled, function))
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_long_segments_scan_in_blocks_when_compiled_too() -> None:
    arguments = segment("value", lambda_=0.9)
    long = {k: v[:1].expand(70, 2) for k, v in arguments.items() if getattr(v, "ndim", 0) == 2}
    arguments = {**arguments, **long, "length": torch.tensor([70, 33])}
    torch.compiler.reset()
    compiled = torch.compile(returns.gae, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(**arguments), returns.gae(**arguments))
