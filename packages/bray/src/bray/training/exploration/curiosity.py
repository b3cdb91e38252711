"""Curiosity: a bonus beside the reward for what the policy has rarely seen.

Burda et al. 2019, "Exploration by random network distillation". A predictor learns the features
that a fixed random network gives of each observation; where it still errs, the policy is new. The
networks belong to the trainer: they are saved with it, and no player needs them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bray.training.exploration.curiosity_reader import CuriosityReader
from bray_algo.losses import rnd
from bray_core import metrics
from bray_core.spaces import Spaces
from bray_trainer.sequences import Batch, next_observation, valid_steps

_HIDDEN = 128
"""Units of the hidden layer that the predictor has more than the random network."""
_LEARNING_RATE = 1e-3
"""Adam's step size for the predictor. The paper has 1e-4 and ten times the steps; where it learns
slowly, what has been seen often is worth nearly as much as what is new."""
_ROWS = 256
"""Steps of one step of the predictor's optimiser, about."""


class Curiosity:
    """Adds to rewards the error of a predictor, over the running deviation of its discounted sums.

    Args:
        spaces: what the policy sees and may do.
        weight: weight of the bonus beside the reward.
        gamma: discount of the sums.
        seed: seed of the networks.
        device: where they compute.
    """

    def __init__(
        self,
        spaces: Spaces,
        *,
        weight: float,
        gamma: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.weight = weight
        self.gamma = gamma
        with torch.random.fork_rng():  # the trainer's random numbers go on as if nothing was drawn
            torch.manual_seed(seed)
            self._reader = CuriosityReader(spaces)
            self.networks = rnd.RandomNetworkDistillation(
                self._reader.network([]), self._reader.network([_HIDDEN]), self._reader.shape
            ).to(device)
        self.optimizer = torch.optim.Adam(self.networks.predictor.parameters(), lr=_LEARNING_RATE)

    def add_bonus(self, segments: Batch) -> None:
        """Add the bonus of each step's next observation to its reward, then learn to predict it.

        The statistics take the replay in first, as those of rewards do.

        Args:
            segments: what `sequences.time_major` returns.
        """
        seen, valid = self._reader(next_observation(segments)), valid_steps(segments)
        rows = seen[valid]
        self.networks.observations.update(rows)
        bonus, _ = self.networks.bonus(seen, segments["length"], gamma=self.gamma)
        segments["reward"] = segments["reward"] + self.weight * bonus
        metrics.record("trainer/curiosity_bonus", float(bonus[valid].mean()))
        metrics.record("trainer/curiosity_error", self._learn(rows))

    def _learn(self, rows: Tensor) -> float:
        """Pass once over observations `[N, …]`; return the predictor's mean error before it."""
        count = math.ceil(len(rows) / _ROWS)
        errors = []
        for start in range(count):  # every count-th row: neighbours in time are much alike
            loss, terms = rnd.loss(self.networks(rows[start::count]))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            errors.append(terms["error"])
        return float(torch.stack(errors).mean())

    def state_dict(self) -> dict[str, Any]:
        """Return the networks, their statistics and the optimiser's state."""
        return {
            "networks": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimizer"])
