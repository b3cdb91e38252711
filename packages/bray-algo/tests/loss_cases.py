"""Every loss and return with arguments of the smallest size, for what holds of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bray_algo.losses import (
    a2c,
    adversarial,
    alphazero,
    appo,
    c51,
    cloning,
    cql,
    critics,
    dqn,
    imitation,
    impala,
    iql,
    iqn,
    mappo,
    ppo,
    qmix,
    qr_dqn,
    rnd,
    sac,
    sac_discrete,
    td3,
    td3_bc,
    tqc,
)
from bray_algo.losses import discrete as losses
from bray_algo.returns import advantages as returns
from bray_algo.returns import targets
from bray_algo.tokens import (
    advantages,
    cispo,
    divergence,
    dpo,
    groups,
    grpo,
    gspo,
    prediction,
    reductions,
    rewards,
    sampler,
    sequences,
    sft,
    values,
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


def tokens(*names: str, **others: Any) -> Arguments:
    """Columns `[B, T]` of two rows of tokens, the last one padding, and their mask."""
    made = {name: torch.linspace(-0.9, -0.1, 2 * T).reshape(2, T) for name in names}
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[-1, -1] = False
    return {**made, "mask": mask, **others}


ACTION = torch.zeros(N, dtype=torch.int64)
LEGAL = torch.ones(N, A, dtype=torch.bool)
PPO = ("log_prob", "entropy", "value", "old_log_prob", "advantage", "target")
LAG = ("log_prob", "entropy", "value", "behaviour_log_prob")
SUPPORT = c51.atoms(-1, 1, K)
QUANTILES = torch.zeros(N, A, K)
CRITICS = torch.zeros(2, N, A)
PACKED = torch.tensor([[0, 0, 1], [2, 2, 2]])
GROUP = torch.tensor([0, 1, 1])
CLIPPED = ("log_prob", "old_log_prob", "advantage")
ANSWERS = ("chosen", "rejected", "reference_chosen", "reference_rejected")

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
    "impala": (impala.loss, segment(*LAG)),
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
    "iqn": (
        iqn.loss,
        full(
            "weight",
            quantiles=QUANTILES,
            levels=torch.full((N, K), 0.5),
            target=torch.zeros(N, K),
            action=ACTION,
        ),
    ),
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
    "tqc": (
        tqc.critic_loss,
        full("weight", quantiles=torch.zeros(2, N, K), target=torch.zeros(N, 2 * K)),
    ),
    "tqc actor": (
        tqc.actor_loss,
        full("log_prob", quantiles=torch.zeros(2, N, K), alpha=torch.ones(())),
    ),
    "tqc target": (
        tqc.target,
        full(
            "next_log_prob",
            "reward",
            "discount",
            next_quantiles=torch.zeros(2, N, K),
            alpha=torch.ones(()),
        ),
    ),
    "td3 actor": (td3.actor_loss, full("q")),
    "td3 target": (td3.target, full("reward", "discount", next_q=CRITICS[..., 0])),
    "iql value": (iql.value_loss, full("value", target_q=CRITICS[..., 0])),
    "iql policy": (iql.policy_loss, full("log_prob", "advantage")),
    "iql target": (iql.target, full("reward", "discount", "next_value")),
    "cql choice": (cql.choice_gap, {"q": torch.zeros(N, A), "action": ACTION, "legal": LEGAL}),
    "cql sampled": (
        cql.sampled_gap,
        {"q": CRITICS[..., 0], "sampled_q": CRITICS, "log_density": torch.zeros(N, A)},
    ),
    "td3_bc actor": (
        td3_bc.actor_loss,
        full("q", action=torch.zeros(N, 2), recorded=torch.zeros(N, 2)),
    ),
    "discriminator": (adversarial.discriminator_loss, full("expert_logit", "policy_logit")),
    "rnd": (rnd.loss, full("error")),
    "qmix": (qmix.joint_loss, full("joint_q", "target")),
    "alphazero": (alphazero.loss, full("logits", "value", "policy", "outcome")),
    "grpo": (grpo.loss, tokens(*CLIPPED, "weight", dual_clip=3.0)),
    "gspo": (gspo.loss, tokens(*CLIPPED, "weight", sequence=PACKED)),
    "cispo": (cispo.loss, tokens(*CLIPPED, "weight")),
    "token gae": (values.gae, tokens("token_reward", "value", sequence=PACKED)),
    "token values": (values.loss, tokens("value", "old_value", "target", "weight", value_clip=0.2)),
    "sft": (sft.loss, tokens("log_prob", "weight")),
    "dpo": (dpo.loss, full(*ANSWERS)),
    "token_log_prob": (
        prediction.token_log_prob,
        tokens(logits=torch.zeros(2, T, A), token=torch.ones(2, T, dtype=torch.int64)),
    ),
    "reference kl": (divergence.kl, tokens("log_prob", "reference_log_prob")),
    "kl penalty": (
        divergence.penalty,
        tokens("log_prob", "reference_log_prob", "weight", kl_coefficient=0.1),
    ),
    "kl reward": (
        rewards.kl_penalised,
        tokens(
            "log_prob",
            "reference_log_prob",
            reward=torch.ones(3),
            sequence=PACKED,
            kl_coefficient=0.1,
        ),
    ),
    "reward at end": (rewards.at_end, tokens(reward=torch.ones(2))),
    "overlong": (rewards.overlong_penalty, full("answer_length", max_length=4.0, buffer=2.0)),
    "grpo advantage": (advantages.grpo, full("reward", group=GROUP)),
    "rloo": (advantages.rloo, full("reward", group=GROUP)),
    "reinforce_plus_plus": (
        advantages.reinforce_plus_plus,
        tokens("token_reward", sequence=PACKED),
    ),
    "whitened": (advantages.whitened, tokens("advantage", moments=torch.tensor([5.0, 1.0, 4.0]))),
    "informative": (groups.informative_fraction, full("reward", group=GROUP)),
    "token_mean": (reductions.token_mean, tokens("column", "weight")),
    "sequence_mean": (reductions.sequence_mean, tokens("column", "weight", sequence=PACKED)),
    "sums": (sequences.sums, tokens("column", sequence=PACKED)),
    "to_go": (sequences.to_go, tokens("column", sequence=PACKED)),
    "spread": (sequences.spread, tokens(values=torch.ones(2))),
    "truncated_weight": (
        sampler.truncated_weight,
        tokens("old_log_prob", "sampler_log_prob", sequence=PACKED, level="sequence"),
    ),
    "sampler gap": (sampler.gap, tokens("old_log_prob", "sampler_log_prob")),
}
