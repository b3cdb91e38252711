"""Reinforcement learning as plain torch functions: networks, returns, losses, league rules.

A dozen names are here; everything else is a submodule to import: `from bray_algo import sac`.
"""

from bray_algo.distributions import categorical, gaussian
from bray_algo.league.league import elo_update, pfsp_weights
from bray_algo.losses.discrete import behaviour_cloning_loss, policy_gradient_loss, ppo_loss
from bray_algo.networks.feedforward import NatureCNN, PolicyValueMLP, mlp
from bray_algo.returns.advantages import gae, n_step, vtrace

__all__ = [
    "NatureCNN",
    "PolicyValueMLP",
    "behaviour_cloning_loss",
    "categorical",
    "elo_update",
    "gae",
    "gaussian",
    "mlp",
    "n_step",
    "pfsp_weights",
    "policy_gradient_loss",
    "ppo_loss",
    "vtrace",
]
