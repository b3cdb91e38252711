"""Checking that a word is one of several, and finding the nearest of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from bray_core.errors import ConfigError

_MAX_NAME = 100
"""Longest name that is compared with others: the time grows with the square of its length."""


_OTHER_NAMES = {
    "lr": "learning_rate",
    "apex": "dqn",
    "batch": "batch_size",
    "buffer_size": "capacity",
    "clip_coef": "clip",
    "clip_param": "clip",
    "clip_range": "clip",
    "ddpg": "td3",
    "discount": "gamma",
    "ent_coef": "entropy_coefficient",
    "entropy_coeff": "entropy_coefficient",
    "exploration_final_eps": "epsilon_end",
    "fcnet_hiddens": "hidden",
    "gradient_steps": "replays_per_collect",
    "hidden_sizes": "hidden",
    "learning_starts": "warmup_frames",
    "n_envs": "num_envs",
    "n_epochs": "epochs",
    "n_steps": "steps_per_replay",
    "net_arch": "hidden",
    "num_sgd_iter": "epochs",
    "num_steps": "steps_per_replay",
    "policy_kwargs": "hidden",
    "r2d2": "dqn",
    "rainbow": "dqn",
    "rollout_fragment_length": "segment_length",
    "rollout_length": "segment_length",
    "sgd_minibatch_size": "minibatch_size",
    "target_network_frequency": "target_every",
    "target_update_interval": "target_every",
    "total_timesteps": "max_frames",
    "train_batch_size": "steps_per_replay",
    "train_freq": "steps_per_collect",
    "train_frequency": "steps_per_collect",
    "update_epochs": "epochs",
    "vf_loss_coeff": "value_coefficient",
    "vf_coef": "value_coefficient",
}
"""What other libraries call a setting, with our name: spelling alone would not find it."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed name that is meant by another, or is spelled most like it; or None."""
    allowed = list(allowed)
    lower = name.lower()
    if (ours := _OTHER_NAMES.get(lower)) in allowed:
        return ours
    if len(name) > _MAX_NAME:
        return None
    if lower in allowed:
        return lower
    return next(iter(difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)), None)


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the allowed name nearest to `name`, or nothing."""
    near = nearest(name, allowed)
    return f", did you mean {near!r}?" if near is not None else ""


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ConfigError: Names the argument, the choices and the nearest of them.
    """
    choices = list(choices)
    if value not in choices:
        raise ConfigError(
            f"{name}: expected one of {', '.join(choices)}, got {value!r}"
            f"{closest(str(value), choices)}"
        )
