"""OpenSpiel judges policies of bray: how much the best reply to them wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python import policy
from open_spiel.python.algorithms import exploitability, policy_aggregator

ROWS = 64
"""Situations that a model is asked at once."""


def uniform(name: str) -> float:
    """Return the exploitability of the policy that draws its moves evenly."""
    game = pyspiel.load_game(name)
    return float(exploitability.exploitability(game, policy.UniformRandomPolicy(game)))


def exploited(name: str, models: Sequence[Any]) -> float:
    """Return the exploitability of whoever draws one of some policies and plays it to the end.

    Args:
        name: Name of the game.
        models: Models that answer its situations.
    """
    game = pyspiel.load_game(name)
    tables = [_table(game, model) for model in models]
    found = tables[0]
    if len(tables) > 1:
        shares = [[1 / len(tables)] * len(tables)] * 2
        found = policy_aggregator.PolicyAggregator(game).aggregate([0, 1], [tables] * 2, shares)
    return float(exploitability.exploitability(game, found))


def _table(game: Any, model: Any) -> Any:
    """Return the chances of all moves in all situations, as a model gives them."""
    table = policy.TabularPolicy(game)
    seen = [
        {
            "observation": np.asarray(
                state.information_state_tensor(state.current_player()), np.float32
            ),
            "action_mask": np.asarray(state.legal_actions_mask(), np.int8),
        }
        for state in table.states
    ]
    for first in range(0, len(seen), ROWS):
        some = seen[first : first + ROWS]
        rows = {key: np.stack([one[key] for one in some]) for key in some[0]}
        logits = np.asarray(model(rows, batch=True)["logits"], np.float64)
        chances = np.exp(logits - logits.max(-1, keepdims=True)) * rows["action_mask"]
        table.action_probability_array[first : first + ROWS] = chances / chances.sum(
            -1, keepdims=True
        )
    return table
