"""The hyperparameters of policy gradients on tokens: GRPO and its relatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from bray.text.config import SupervisedPhaseConfig
from bray_core.errors import ConfigError
from bray_core.settings.ranges import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    check_fields,
)

Variant = Literal["grpo", "dr_grpo", "rloo", "reinforce++", "dapo", "gspo", "cispo", "ppo"]
Baseline = Literal["group_std", "group_mean", "leave_one_out", "batch", "value"]
Ratio = Literal["token", "sequence", "detached"]
Mean = Literal["token", "row", "constant"]
ClipWidth = Annotated[float, Range(above=0)]

VARIANTS: dict[str, dict[str, object]] = {
    "grpo": {"baseline": "group_std", "mean": "row"},
    "dr_grpo": {"baseline": "group_mean", "mean": "constant"},
    "rloo": {"baseline": "leave_one_out", "mean": "token"},
    "reinforce++": {"baseline": "batch", "mean": "token", "kl_in": "reward"},
    "dapo": {"baseline": "group_std", "mean": "token", "clip_high": 0.28, "sampling_rounds": 4},
    "gspo": {"baseline": "group_std", "mean": "row", "ratio": "sequence"}
    | {"clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"baseline": "group_std", "mean": "token", "ratio": "detached", "clip_high": 4.0},
    "ppo": {"baseline": "value", "mean": "token", "kl_in": "reward", "kl_estimator": "k1"}
    | {"drop_equal_groups": False, "least_informative": 0.0},
}
"""What each variant sets, unless a template says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GRPOConfig(SupervisedPhaseConfig):
    """The hyperparameters of GRPO and its relatives; `variant` sets some of them together."""

    variant: Variant = "grpo"
    """Which paper's settings are the defaults: `grpo`, `dr_grpo`, `rloo`, `reinforce++`, `dapo`,
    `gspo`, `cispo` or `ppo`."""
    prompts_per_step: PositiveInt = 32
    """Prompts, or groups of sessions, of one round of sampling."""
    group_size: PositiveInt = 8
    """Answers to each prompt, which are compared with each other. Too few and the mean of a group
    is noise; 4 to 64."""
    minibatches: PositiveInt = 1
    """Optimiser steps on the samples of a round. With 1 every step is on samples of the newest
    weights; more use the samples better and rely on the clip."""
    epochs: PositiveInt = 1
    """Passes over the samples of a round."""
    baseline: Baseline = "group_std"
    """What rewards are compared with. `group_std`: the group's mean, divided by its deviation;
    `group_mean`: its mean alone; `leave_one_out`: the mean of the others of the group; `batch`:
    mean and deviation of all tokens of the round; `value`: values that the model learns of each
    token, by generalised advantage estimation, then normalised like `batch` (PPO)."""
    gae_lambda: Fraction = 0.95
    """λ of `baseline: value`: small trusts the values, 1 takes the reward to go. 0.95 to 1."""
    value_coefficient: NonNegativeFloat = 0.1
    """Weight of the values' squared error, with `baseline: value`. Too much spoils the layers that
    policy and values share. 0.05 to 0.5."""
    value_clip: ClipWidth | None = 0.2
    """How far values may move on one round's samples, in units of the reward; null is no bound."""
    ratio: Ratio = "token"
    """Whose ratio new / old policy is clipped: each token's, the whole row's (GSPO), or each
    token's as a constant weight that no clip takes the gradient from (CISPO)."""
    mean: Mean = "row"
    """What the loss is a mean over: all tokens; rows, each the mean of its tokens; or `constant`,
    the sum of all tokens divided by rows times the longest answer."""
    clip_low: ClipWidth = 0.2
    """How far the ratio may fall below 1."""
    clip_high: ClipWidth = 0.2
    """How far the ratio may rise above 1. 0.28 keeps unlikely tokens alive (DAPO)."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL divergence to the model that training began with. 0 keeps no reference.
    0.001 to 0.04."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of the KL; k1 has a use in the reward alone."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is added to the loss, or taken off the rewards."""
    drop_equal_groups: bool = True
    """Whether groups whose rewards are all equal are left out: they teach nothing, and make the
    mean over tokens smaller."""
    sampling_rounds: PositiveInt = 1
    """Rounds of sampling after which training begins, though not all groups have rewards that
    differ. 1 samples once; more are DAPO's dynamic sampling."""
    overlong_buffer: NonNegativeInt = 0
    """Tokens before the longest answer over which the reward falls by `overlong_penalty`; 0
    leaves long answers alone."""
    overlong_penalty: NonNegativeFloat = 1.0
    """Largest penalty of a long answer."""
    old_log_prob: Literal["sampler", "trainer"] = "sampler"
    """Whose log-probabilities the ratio begins with. `sampler` needs no further pass and is right
    where both compute alike; `trainer` computes them again, and weighs each token by the truncated
    ratio of both."""
    max_importance_weight: PositiveFloat = 2.0
    """Largest of these weights. 2 to 8."""
    max_lag: NonNegativeInt = 0
    """Versions by which samples may be older than the weights that they train. 0: sampling and
    training take turns, and a seed repeats. 1 and more: sampling goes on meanwhile, in a thread of
    its own, and older samples are dropped and counted. 1 to 4."""
    least_informative: Fraction = 0.05
    """Share of groups whose rewards must differ in the first 20 rounds; with fewer the run ends
    with an error that says why. 0 looks at nothing."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kl_coefficient and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ConfigError(
                "kl_estimator: expected k2 or k3 in the loss, where k1's gradient is noise, got "
                "k1: write `kl_in: reward`, too"
            )
        if self.group_size == 1 and self.baseline not in ("batch", "value"):
            raise ConfigError(
                "group_size: expected 2 or more, since answers of a group are compared, got 1: "
                "raise it, or take `baseline: batch` or `value`"
            )
