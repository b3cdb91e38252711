"""What offline algorithms of a policy and critics share: batches of a data set, its statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from bray.policies.normalisation import find_norm
from bray.sources import data_sets
from bray.training.algorithm import Parts
from bray.training.normalisation import NormalisingTrainer
from bray.training.off_policy.offline import Offline, OfflineConfig, data_sets_of
from bray.training.off_policy.policy_and_critics import PolicyAndCriticsTrainer, trainer_suiting
from bray_buffer import Mixture
from bray_buffer.sources import SourceBuffer
from bray_core import nested
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_core.spaces import Spaces
from bray_trainer import Trainer, to_torch
from bray_trainer.sequences import Batch

_MOST_STEPS = 1_000_000
"""Steps of a data set from which the statistics of its observations are computed, at most."""

C = TypeVar("C", bound=OfflineConfig)


class OfflineTrainer(NormalisingTrainer):
    """A trainer whose transitions are those of data sets.

    It comes before the class that makes the networks: `class Mine(OfflineTrainer, ValueTrainer)`.
    """

    settings: Any

    def __init__(
        self,
        spaces: Spaces,
        parts: Parts,
        seed: int,
        model: ModelProtocol | None = None,
        directory: Path | None = None,
    ) -> None:
        buffer = transitions(spaces, parts, seed)
        super().__init__(spaces, parts, seed, model, buffer, directory)
        fit_statistics(self.module, spaces, parts)

    def should_pause(self) -> bool:
        """Return whether the driver should evaluate now."""
        return bool(self.steps % self.settings.evaluate_every == 0)


class OfflineCriticsTrainer(OfflineTrainer, PolicyAndCriticsTrainer):
    """A trainer of policy and critics whose transitions are those of data sets.

    It comes before the class whose losses it has: `class Mine(OfflineCriticsTrainer, SACTrainer)`.
    """

    def batch(self, replay: Packed) -> Batch:
        """Return a batch of transitions."""
        batch: Batch = to_torch(replay, self.device)
        return batch


class OfflineCritics(Offline[C]):
    """An offline algorithm whose trainer makes its own networks."""

    trainer: ClassVar[type[Any]]
    choice_trainer: ClassVar[type[Any] | None] = None
    """The trainer for a single choice, where there is one."""

    @classmethod
    def defaults(cls, task: str) -> Mapping[str, Any]:
        """Return the network of DQN, SAC and TD3, which can go on with it."""
        return {"model.hidden": (256, 256)}

    def trainer_for(self, spaces: Spaces) -> Any:
        """Return the trainer that suits the actions."""
        return trainer_suiting(spaces, self.trainer, self.choice_trainer)

    def policy(self, spaces: Spaces, seed: int) -> nn.Module:
        """Return the policy, the same for the same seed."""
        made: nn.Module = self.trainer_for(spaces).networks(spaces, self.parts, seed)["policy"]
        return made

    def make_trainer(
        self, spaces: Spaces, seed: int, policy: nn.Module, model: ModelProtocol, directory: Path
    ) -> Callable[[], Trainer]:
        """Return the trainer's factory."""
        return partial(self.trainer_for(spaces), spaces, self.parts, seed, model, directory)


def transitions(spaces: Spaces, parts: Parts, seed: int) -> SourceBuffer | Mixture:
    """Return a buffer of a run's recorded transitions."""
    return data_sets.buffer_of(
        data_sets_of(parts),
        spaces,
        leaves=data_sets.TRANSITION,
        gamma=parts.trainer.gamma,
        batch_size=parts.trainer.batch_size,
        seed=seed,
    )


def fit_statistics(module: nn.Module, spaces: Spaces, parts: Parts) -> None:
    """Give what normalises observations the statistics of the data sets, once and for all.

    Args:
        module: the networks; without normalisation nothing happens.
        spaces: what was seen and done.
        parts: settings of the run's parts.
    """
    norm, where = find_norm(module), data_sets_of(parts)
    if norm is None:
        return
    leaves = ("observation", "action")
    for one in [where] if isinstance(where, str) else where:
        data = data_sets.open_data_set(one, spaces, gamma=1.0, leaves=leaves)
        left = _MOST_STEPS
        for unit in range(data.num_units):
            rows = data.steps(unit, leaves) if left > 0 else None
            if rows is not None:
                left -= len(rows["action"])
                seen = nested.map(torch.as_tensor, rows["observation"])
                norm.update_with(norm.moments_of(seen))
