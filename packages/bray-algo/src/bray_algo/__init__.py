"""Reinforcement learning as plain torch functions: networks, returns, losses, league rules.

A dozen names are here; everything else is in a folder:

    networks/       perceptrons, image networks, memory, attention, heads; target networks
    distributions/  outputs of a network → actions, their log probabilities and entropies
    returns/        rewards and values → advantages and targets, `[T, B]` or `[N]`
    losses/         one file an algorithm: what it minimises
    tokens/         language models: losses, advantages and measures of tokens, `[B, T]`
    league/         whom to play, ratings, equilibria
    games/          rules of board games, minimax
    search/         Monte-Carlo tree search, AlphaZero's self-play
    validation/     what is checked, and the switch of it

`evolution` (evolution strategies), `pbt`, `schedules` and `precision` are files of their own.
"""

from bray_algo.distributions import categorical, gaussian
from bray_algo.league.elo import elo_update
from bray_algo.league.matchmaking import pfsp_weights
from bray_algo.losses.discrete import behaviour_cloning_loss, policy_gradient_loss, ppo_loss
from bray_algo.networks.convolutional import NatureCNN
from bray_algo.networks.mlp import PolicyValueMLP, mlp
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
