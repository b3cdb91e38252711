"""The switch: every loss and return refuses what is not finite, by name, where it counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from bray_algo import (
    a2c,
    adversarial,
    alphazero,
    appo,
    c51,
    categorical,
    cloning,
    columns,
    critics,
    dqn,
    imitation,
    losses,
    mappo,
    mixers,
    ppo,
    qr_dqn,
    returns,
    rnd,
    sac,
    sac_discrete,
    targets,
    td3,
    validation,
    vtrace_actor_critic,
)

N, A, K, T = 3, 4, 5, 3
Arguments = dict[str, Any]
ROWS = {"logits", "teacher_logits", "next_logits", "log_probs", "policy"}
"""Arguments `[N, A]`, not columns `[N]`."""


def full(*names: str, **others: Any) -> Arguments:
    """Columns by name, and other arguments."""
    made = {name: torch.linspace(0.1, 0.9, N) for name in names}
    for name in ROWS & made.keys():
        made[name] = torch.softmax(torch.arange(N * A * 1.0).reshape(N, A) / A, -1)
    return {**made, **others}


def segment(*names: str, **others: Any) -> Arguments:
    """Columns `[T, B]` of two segments, the second ragged, the first terminated at its end."""
    made = {name: torch.full((T, 2), 0.5) for name in (*names, "reward")}
    terminated = torch.zeros(T, 2, dtype=torch.bool)
    terminated[-1, 0] = True
    ends = {"final_value": torch.zeros(2), "terminated": terminated, "length": torch.tensor([T, 2])}
    return {**made, **ends, "gamma": 0.9, **others}


ACTION = torch.zeros(N, dtype=torch.int64)
LEGAL = torch.ones(N, A, dtype=torch.bool)
PPO = ("log_prob", "entropy", "value", "old_log_prob", "advantage", "target")
LAG = ("log_prob", "entropy", "value", "behaviour_log_prob")
SUPPORT = c51.atoms(-1, 1, K)
QUANTILES = torch.zeros(N, A, K)
CRITICS = torch.zeros(2, N, A)

CASES: dict[str, tuple[Callable[..., Any], Arguments]] = {
    "gae": (returns.gae, segment("value", lambda_=0.9)),
    "td_lambda": (returns.td_lambda, segment("value", lambda_=0.9)),
    "n_step": (returns.n_step, segment("value", num_steps=2)),
    "upgo": (returns.upgo, segment("value")),
    "vtrace": (returns.vtrace, segment("value", "log_ratio")),
    "retrace": (returns.retrace, segment("value", "action_value", "log_ratio", lambda_=1.0)),
    "ppo": (ppo.loss, full(*PPO, "old_value", value_clip=0.1)),
    "ppo kl": (
        ppo.kl_penalised_surrogate,
        full("log_prob", "old_log_prob", "advantage", "kl", kl_coefficient=1.0),
    ),
    "ppo_loss": (losses.ppo_loss, full("logits", *PPO[2:], action=ACTION)),
    "policy_gradient_loss": (
        losses.policy_gradient_loss,
        full("logits", "value", "advantage", "target", action=ACTION),
    ),
    "behaviour_cloning_loss": (losses.behaviour_cloning_loss, full("logits", action=ACTION)),
    "a2c": (a2c.loss, full("log_prob", "entropy", "value", "advantage", "target")),
    "impala": (vtrace_actor_critic.loss, segment(*LAG)),
    "appo": (appo.loss, segment(*LAG, "target_log_prob")),
    "mappo": (mappo.loss, {name: torch.zeros(N, 2) for name in PPO}),
    "teacher": (imitation.teacher_loss, full("logits", "teacher_logits")),
    "likelihood": (cloning.likelihood_loss, full("log_prob", "weight")),
    "regression": (
        cloning.regression_loss,
        full("weight", action=torch.zeros(N, 2), demonstrated=torch.zeros(N, 2)),
    ),
    "smoothed": (cloning.smoothed_loss, full("log_probs", action=ACTION, legal=LEGAL)),
    "bootstrap": (targets.bootstrap, full("reward", "discount", "next_value")),
    "dqn": (dqn.loss, full("target", "weight", q=torch.zeros(N, A), action=ACTION)),
    "dqn target": (dqn.target, full("reward", "discount", next_q=torch.zeros(N, A))),
    "c51": (
        c51.loss,
        full("weight", logits=QUANTILES, target=torch.full((N, K), 1 / K), action=ACTION),
    ),
    "c51 target": (
        c51.target,
        full("reward", "discount", next_logits=QUANTILES, support=SUPPORT),
    ),
    "qr_dqn": (
        qr_dqn.loss,
        full("weight", quantiles=QUANTILES, target=torch.zeros(N, K), action=ACTION),
    ),
    "qr_dqn target": (qr_dqn.target, full("reward", "discount", next_quantiles=QUANTILES)),
    "critics": (critics.critic_loss, full("target", "weight", q=CRITICS[..., 0])),
    "sac actor": (sac.actor_loss, full("log_prob", q=CRITICS[..., 0], alpha=torch.ones(()))),
    "sac target": (
        sac.target,
        full("next_log_prob", "reward", "discount", next_q=CRITICS[..., 0], alpha=1.0),
    ),
    "sac temperature": (
        sac.temperature_loss,
        full("log_prob", log_alpha=torch.zeros(()), target_entropy=-1.0),
    ),
    "sac_discrete actor": (sac_discrete.actor_loss, full("logits", q=CRITICS, alpha=0.1)),
    "sac_discrete target": (
        sac_discrete.target,
        full("next_logits", "reward", "discount", next_q=CRITICS, alpha=0.1),
    ),
    "sac_discrete temperature": (
        sac_discrete.temperature_loss,
        full("logits", log_alpha=torch.zeros(()), target_entropy=1.0),
    ),
    "td3 actor": (td3.actor_loss, full("q")),
    "td3 target": (td3.target, full("reward", "discount", next_q=CRITICS[..., 0])),
    "discriminator": (adversarial.discriminator_loss, full("expert_logit", "policy_logit")),
    "rnd": (rnd.loss, full("error")),
    "mixers": (mixers.joint_loss, full("joint_q", "target")),
    "alphazero": (alphazero.alphazero_loss, full("logits", "value", "policy", "outcome")),
}
READ = [
    (case, name)
    for case, (_, arguments) in CASES.items()
    for name, value in arguments.items()
    if isinstance(value, Tensor) and value.dtype.is_floating_point and name != "support"
]


def poisoned(case: str, name: str, bad: float) -> Arguments:
    """The arguments with one bad number, in a sample that counts."""
    arguments = dict(CASES[case][1])
    column = arguments[name].clone()
    # The first action taken; of segments the one that did not terminate.
    place = -1 if column.ndim == 1 else 0
    column.view(-1)[place] = bad
    return {**arguments, name: column}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(("case", "name"), READ)
def test_what_is_not_finite_is_refused_by_name(case: str, name: str, bad: float) -> None:
    function, arguments = CASES[case][0], poisoned(case, name, bad)
    with pytest.raises(ValueError, match=rf"^{name}: expected .* (nan|inf) .*in shape \("):
        function(**arguments)
    with validation.validating(False):
        function(**arguments)


@pytest.mark.parametrize("case", CASES)
def test_what_is_finite_is_not(case: str) -> None:
    function, arguments = CASES[case]
    function(**arguments)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("case", [case for case, (_, a) in CASES.items() if "length" in a])
def test_padding_and_values_after_an_end_may_hold_anything(case: str, bad: float) -> None:
    function, arguments = CASES[case]
    arguments = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.shape == (T, 2) and value.is_floating_point():
            arguments[name][2:, 1] = bad
    arguments["final_value"][0] = bad
    function(**arguments)


@pytest.mark.parametrize("case", ["ppo", "a2c", "likelihood", "mixers", "teacher"])
def test_samples_that_are_not_valid_may_hold_anything(case: str) -> None:
    function, arguments = CASES[case]
    rubbish = {k: v.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    for value in rubbish.values():
        if isinstance(value, Tensor):
            value[1] = torch.nan
    function(**rubbish, valid=torch.tensor([True, False, True]))


def test_a_mix_names_the_loss_that_is_not_finite() -> None:
    fine, bad = (torch.zeros(()), {}), (torch.tensor(torch.nan), {})
    with pytest.raises(ValueError, match=r"^imitation: expected finite numbers, got nan at"):
        imitation.mixed_loss(fine, bad, imitation_weight=1.0)


def test_a_row_of_no_legal_action_is_refused() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]])
    with pytest.raises(ValueError, match=r"^logits: expected rows with a legal action.*\[1\]"):
        losses.behaviour_cloning_loss(logits, torch.zeros(2, dtype=torch.int64))
    losses.behaviour_cloning_loss(logits[:1], torch.zeros(1, dtype=torch.int64))
    legal = torch.tensor([[True, False], [False, False]])
    with pytest.raises(ValueError, match="one legal action or more"):
        categorical.mask(logits, legal)
    with validation.validating(False):
        categorical.mask(logits, legal)


def test_great_numbers_are_not_taken_for_infinite_ones() -> None:
    great = torch.full((N,), torch.finfo(torch.float32).max)
    validation.check_finite(great=great, half=torch.full((N,), 6e4, dtype=torch.float16))


def test_the_switch_comes_back() -> None:
    column = torch.tensor([torch.nan])
    assert validation.is_validated(column)
    with suppress(RuntimeError), validation.validating(False):
        assert not validation.is_validated(column)
        raise RuntimeError
    assert validation.is_validated(column)
    validation.set_validation(False)
    try:
        columns.weighted_mean(column, column)
    finally:
        validation.set_validation(True)


def test_nothing_is_read_while_compiling_nor_on_another_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    validation.check_finite(column=torch.full((N,), torch.nan, device="meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    validation.check_finite(column=torch.tensor([torch.nan]))
