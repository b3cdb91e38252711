"""AlphaZero: games of a search against itself, and the loss that learns from them.

Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go
through self-play". Shapes: T moves of a game, N positions, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bray_algo import categorical
from bray_algo.columns import Terms, check_rank, check_shape
from bray_algo.games.game import Game
from bray_algo.mcts import Evaluate, SearchConfig, Tree, search
from bray_algo.ppo import value_error
from bray_algo.validation import check_finite, check_logits

State = TypeVar("State")


class Episode(NamedTuple):
    """One game, each row told by the player to move."""

    observation: npt.NDArray[Any]
    """`[T, …]`."""
    policy: npt.NDArray[np.float32]
    """π, the visits of the search as probabilities, `[T, A]`."""
    outcome: npt.NDArray[np.float32]
    """z, how the game ended for the player who moved, −1 to 1, `[T]`."""


def self_play(
    game: Game[State],
    evaluate: Evaluate,
    num_games: int,
    *,
    config: SearchConfig,
    rng: np.random.Generator,
    num_random_moves: int = 30,
    keep_tree: bool = True,
) -> list[Episode]:
    """Play games of the search against itself, all at once, so that their leaves share batches.

    Args:
        game: the rules.
        evaluate: the policy-value function.
        num_games: one or more.
        config: of the search, with noise.
        rng: of noise and moves.
        num_random_moves: the first moves of a game are drawn from π, later ones are its mode.
        keep_tree: whether the part of the tree below the move played is searched on.

    Raises:
        ValueError: no game, or as in `search`.
    """
    if num_games < 1:
        raise ValueError(f"num_games: expected 1 or more, got {num_games}")
    trees = {i: Tree(game, game.initial()) for i in range(num_games)}
    moves: list[list[tuple[Any, Any]]] = [[] for _ in range(num_games)]
    episodes: dict[int, Episode] = {}
    while trees:
        search(list(trees.values()), evaluate, config, rng)
        for i, tree in list(trees.items()):
            policy, state = tree.policy(), tree.root.state
            drawn = len(moves[i]) < num_random_moves
            action = int(rng.choice(len(policy), p=policy) if drawn else policy.argmax())
            moves[i].append((game.observation(state), policy))
            after = game.step(state, action)
            ended = game.outcome(after)
            if ended is not None:
                episodes[i] = _episode(moves[i], ended)
                del trees[i]
            elif keep_tree:
                tree.advance(action)
            else:
                trees[i] = Tree(game, after)
    return [episodes[i] for i in range(num_games)]


def alphazero_loss(
    logits: Tensor,
    value: Tensor,
    policy: Tensor,
    outcome: Tensor,
    *,
    value_coefficient: float = 1.0,
) -> tuple[Tensor, Terms]:
    """Return (z − v)² − πᵀ log p, the paper's equation 1; its ‖θ‖² is the optimiser's decay.

    Args:
        logits: of the network, `[N, A]`; of illegal actions −inf or any number, as π is 0 there.
        value: v of the network, −1 to 1, `[N]`.
        policy: π of the search, `[N, A]`, a constant.
        outcome: z, `[N]`, a constant.
        value_coefficient: of the squared error.

    Returns:
        The loss, and `policy_loss` (the cross entropy), `value_loss`, `entropy` of π and `kl` of
        the network's policy from π, `policy_loss − entropy`.

    Raises:
        ValueError: shapes do not agree.
    """
    check_rank("logits", logits, "N, A")
    check_shape("policy", policy, logits.shape)
    check_shape("value", value, logits.shape[:1])
    check_logits(logits=logits)
    check_finite(policy=policy, outcome=outcome)
    policy = policy.detach()
    policy_loss = -(policy * categorical.log_probs(logits)).sum(-1).mean()
    value_loss = value_error(value, outcome)
    entropy = torch.special.entr(policy).sum(-1).mean()
    terms = {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": entropy,
        "kl": policy_loss.detach() - entropy,
    }
    return policy_loss + value_coefficient * value_loss, terms


def evaluator(network: nn.Module | Callable[[Tensor], dict[str, Tensor]]) -> Evaluate:
    """Return the policy-value function of a network that gives `logits [N, A]` and `value [N]`.

    Observations are moved to where the module's parameters are; values are clipped to −1 to 1.
    """

    @torch.no_grad()
    def evaluate(observation: npt.NDArray[Any]) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
        device = None if parameter is None else parameter.device
        output = network(torch.from_numpy(observation).to(device))
        value = output["value"].clamp(-1, 1)
        return output["logits"].float().cpu().numpy(), value.float().cpu().numpy()

    return evaluate


def _episode(moves: list[tuple[Any, Any]], ended: float) -> Episode:
    """Give each mover the end's value: `ended` is for the one to move after the last move."""
    sign = (-1.0) ** np.arange(len(moves), 0, -1)
    observation, policy = (np.stack(column) for column in zip(*moves, strict=True))
    return Episode(observation, policy.astype(np.float32), (sign * ended).astype(np.float32))
