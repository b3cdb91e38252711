"""CQL: recorded transitions → values, pressed down where nobody recorded → a cautious policy.

Kumar et al. 2020, "Conservative Q-learning for offline reinforcement learning" (arXiv 2006.04779),
the variant CQL(H). A single choice has DQN's network and double Q-learning, reals have SAC's policy
and critics; DQN and SAC can go on with them (`model.begin_from`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bray.algorithms.dqn import DQNPolicy
from bray.algorithms.dqn import make_policy as make_dqn_policy
from bray.algorithms.sac import SACTrainer
from bray.policies.config import TrunkConfig
from bray.policies.values import QNetworkConfig
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy.offline import Offline, OfflineConfig
from bray.training.off_policy.offline_critics import (
    OfflineCritics,
    OfflineCriticsTrainer,
    OfflineTrainer,
)
from bray.training.off_policy.value_trainer import ValueTrainer
from bray_algo.distributions import squashed_gaussian
from bray_algo.losses import cql, dqn
from bray_algo.networks.polyak import polyak_
from bray_core import nested
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.settings.ranges import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt
from bray_core.spaces import Spaces
from bray_trainer import to_torch


@dataclass(frozen=True, kw_only=True, slots=True)
class CQLConfig(OfflineConfig):
    """CQL's hyperparameters."""

    conservatism: NonNegativeFloat = 1.0
    """Weight of what presses values down where nobody recorded. 0 is plain Q-learning, which
    believes what it never saw; large clones the most frequent actions. 0.5 to 10."""
    num_sampled: PositiveInt = 10
    """Number of real actions drawn evenly, and as many from the policy, by which the values of all
    actions are estimated. More are steadier and dearer. 4 to 20. A single choice needs none."""
    alpha: PositiveFloat = 0.2
    """SAC's temperature at the start, the weight of the entropy of real actions. 0.05 to 1."""
    target_entropy: FiniteFloat | None = None
    """Entropy that SAC's temperature aims at for real actions, in nats; None: −(number of action
    dimensions)."""


class CQLTrainer(OfflineCriticsTrainer, SACTrainer):
    """One batch of recorded transitions is one step of SAC's networks, for reals."""

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return SAC's losses, that of the critics with what presses them down."""
        losses, terms = super().loss(batch, step)
        gap = self.gap(batch)
        losses["critics"] = losses["critics"] + self.settings.conservatism * gap
        return losses, {**terms, "gap": gap.detach()}

    def gap(self, batch: dict[str, Tensor]) -> Tensor:
        """Return how far the values of all actions lie above those of the recorded ones."""
        policy, critics = self.module["policy"], self.module["critics"]
        count = self.settings.num_sampled
        seen = policy.seen(batch["observation"])
        taken = policy.bounds.unit(batch["action"])
        # [B, …] -> [B M, …], the draws of a row one after the other.
        repeated = nested.map(lambda leaf: leaf.repeat_interleave(count, 0), seen)
        with torch.no_grad():
            drawn, log_prob = squashed_gaussian.sample_with_log_prob(
                *policy.parameters_of(repeated)
            )
            even = torch.rand_like(drawn) * 2 - 1
        even_density = torch.full_like(log_prob, -math.log(2.0) * drawn.shape[-1])
        q = critics(seen, taken)
        sampled = [
            critics(repeated, action).reshape(*q.shape, count)  # [K, B M] -> [K, B, M]
            for action in (even, drawn)
        ]
        density = [one.reshape(-1, count) for one in (even_density, log_prob)]
        return cql.sampled_gap(q, torch.cat(sampled, -1), torch.cat(density, -1))


class ChoiceCQLTrainer(OfflineTrainer, ValueTrainer):
    """One batch of recorded transitions is one step of DQN's network, for a single choice."""

    settings: CQLConfig

    @classmethod
    def networks(cls, spaces: Spaces, parts: Parts, seed: int) -> dict[str, nn.Module]:
        """Make DQN's network, which acts without ε, the same for the same seed."""
        shared = {field.name: getattr(parts.model, field.name) for field in fields(TrunkConfig)}
        policy = make_dqn_policy(spaces, QNetworkConfig(**shared), seed)
        assert isinstance(policy, DQNPolicy)
        policy.epsilon.zero_()
        return {"policy": policy}

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; after its step the target network follows."""
        yield to_torch(replay, self.device)
        polyak_(self.target, self.module, self.settings.tau)

    def loss(self, batch: dict[str, Tensor], step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of double Q-learning, with what presses other values down."""
        following: Nested = batch["next_observation"]
        with torch.no_grad():
            next_q, next_legal = self.target.numbers(following)
            chooser, _ = self.module.numbers(following)
            target = dqn.target(
                next_q,
                batch["reward"],
                batch["discount"],
                next_online_q=chooser,
                next_legal=next_legal,
            )
        q, legal = self.module.numbers(batch["observation"])
        loss, terms = dqn.loss(q, batch["action"], target)
        gap = cql.choice_gap(q, batch["action"], legal)
        return loss + self.settings.conservatism * gap, {**terms, "gap": gap.detach()}


class CQL(OfflineCritics[CQLConfig]):
    """Learns values from a data set that are low where nobody recorded, and does what is best."""

    title = "CQL"
    takes = Takes(actions=("discrete", "box"), bounded=True, demonstrations=True)
    configs: ClassVar[dict[str, type[Any]]] = {**Offline.configs, "trainer": CQLConfig}
    trainer = CQLTrainer
    choice_trainer = ChoiceCQLTrainer
