"""Curiosity: a bonus beside the reward for what the policy has rarely seen.

Burda et al. 2019, "Exploration by random network distillation". A predictor learns the features
that a fixed random network gives of each observation; where it still errs, the policy is new. The
networks belong to the trainer: they are saved with it, and no player needs them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.flattening import Flattening, seen_space, split_mask
from bray.policies.images import is_stack_of_frames
from bray.policies.trunks import is_flat
from bray_algo import mlp
from bray_algo.losses import rnd
from bray_algo.networks.convolutional import NatureEncoder
from bray_algo.networks.initialisation import orthogonal_
from bray_core import metrics
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import LeafSpace, Spaces
from bray_trainer.frame_stacks import as_tensors
from bray_trainer.sequences import Batch, next_observation, valid_steps

_HIDDEN, _FEATURES = 128, 64
"""Units of a hidden layer, and features that are predicted."""
_LEARNING_RATE = 1e-3
"""Adam's step size for the predictor. The paper has 1e-4 and ten times the steps; where it learns
slowly, what has been seen often is worth nearly as much as what is new."""
_ROWS = 256
"""Steps of one step of the predictor's optimiser, about."""


class Curiosity:
    """Adds to rewards the error of a predictor, over the running deviation of its discounted sums.

    Args:
        spaces: what the policy sees: a vector, however nested, or a stack of frames of 84 × 84.
        weight: weight of the bonus beside the reward.
        gamma: discount of the sums.
        seed: seed of the networks.
        device: where they compute.

    Raises:
        ConfigError: observations hold other images, or sets.
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
            self._reader = _Reader(spaces)
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


class _Reader:
    """Reads observations as one tensor, and makes networks that take it.

    Args:
        spaces: what the policy sees and may do.

    Raises:
        ConfigError: there are leaves that are neither numbers nor a stack of frames.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._space = spaces.observation
        seen = seen_space(spaces)
        self.is_frames = isinstance(seen, LeafSpace) and is_stack_of_frames(seen)
        if not self.is_frames and not is_flat(spaces, TrunkConfig()):
            raise ConfigError(
                "trainer.curiosity: expected 0, or observations of numbers, categories and flags "
                f"or a stack of frames of 84 × 84, got others of {spaces.origin}"
            )
        self._flatten = None if self.is_frames else Flattening(seen)
        self.shape = (1, 84, 84) if self._flatten is None else (self._flatten.size,)
        """Shape of what is read."""

    def __call__(self, observation: Nested) -> Tensor:
        """Map observations, leaves `[…, *shape]`, to floats `[…, *self.shape]`."""
        if self._flatten is None:  # the last frame: the others were rated when they came
            newest: Tensor = as_tensors(observation)[..., -1:, :, :].float()
            return newest
        seen, _ = split_mask(as_tensors(observation), self._space)
        return self._flatten(seen)

    def network(self, hidden: list[int]) -> nn.Module:
        """Return a network of what is read, with further hidden layers."""
        sizes = [_HIDDEN, *hidden, _FEATURES]
        if self.is_frames:
            # The encoder takes bytes, which it divides by 255.
            return nn.Sequential(_Scale(255.0), NatureEncoder(1, _HIDDEN), mlp(sizes, nn.ReLU))
        first = orthogonal_(nn.Linear(self.shape[0], _HIDDEN), math.sqrt(2))
        return nn.Sequential(first, nn.ReLU(), mlp(sizes, nn.ReLU))


class _Scale(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` times the factor."""
        return x * self._factor
