"""IQL: recorded transitions → values of recorded actions alone → what did best is cloned.

Kostrikov et al. 2021, "Offline reinforcement learning with implicit Q-learning" (arXiv 2110.06169).
The first to try on a data set: it never asks for the value of an action that nobody took. Policy
and critics are those of SAC, so that SAC can go on with them (`model.begin_from`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from bray.algorithms.sac import ChoiceSACTrainer, SACPolicy, SACTrainer
from bray.policies.choices import ChoiceCritics, ChoicePolicy
from bray.policies.trunks import make_network
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy.offline import Offline, OfflineConfig
from bray.training.off_policy.offline_critics import OfflineCritics, OfflineCriticsTrainer
from bray.training.off_policy.policy_and_critics import TargetCriticsTrainer
from bray_algo.distributions import categorical, squashed_gaussian
from bray_algo.losses import critics, iql, sac_discrete
from bray_core.nested import Nested
from bray_core.settings.ranges import PositiveFloat, Range
from bray_core.spaces import Spaces

_EDGE = 0.995
"""Recorded actions at their bounds count as this: a density by tanh has no mass there, and the
mean would run away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IQLConfig(OfflineConfig):
    """IQL's hyperparameters."""

    expectile: Annotated[float, Range(above=0, below=1)] = 0.7
    """Which of the recorded actions' values counts as that of a state: 0.5 the mean, near 1 the
    best. Higher puts together the good parts of poor episodes, and trusts luck. 0.5 to 0.9."""
    inverse_temperature: PositiveFloat = 3.0
    """How much more actions with an advantage are cloned, in units of 1 / return. Small clones all
    alike; large follows few samples. 0.5 to 10; smaller where returns are large."""


class IQLTrainer(OfflineCriticsTrainer, TargetCriticsTrainer):
    """One batch of recorded transitions is one step of value, critics and policy, for reals."""

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> nn.Module:
        """Make SAC's squashed Gaussian."""
        return SACTrainer.make_policy(spaces, parts)

    @staticmethod
    def more_networks(spaces: Spaces, parts: Parts) -> dict[str, nn.Module]:
        """Make the network of state values."""
        return {"value": make_network(spaces, parts.model, 1, nn.ReLU, output_gain=0.01)}

    def log_prob(self, policy: Any, observation: Nested, action: Tensor) -> Tensor:
        """Return log π of recorded actions, `[B]`, scaled to (−1, 1)."""
        assert isinstance(policy, SACPolicy)
        taken = policy.bounds.unit(action).clamp(-_EDGE, _EDGE)
        return squashed_gaussian.log_prob(*policy.parameters_of(policy.seen(observation)), taken)

    def q(self, members: nn.Module, policy: Any, seen: Nested, action: Tensor) -> Tensor:
        """Return the values `[K, B]` of recorded actions by critics or their targets."""
        values: Tensor = members(seen, policy.bounds.unit(action))
        return values

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of value, critics and policy."""
        policy, value = self.module["policy"], self.module["value"]
        action, config = batch["action"], self.settings
        seen = policy.seen(batch["observation"])
        with torch.no_grad():
            target_q = self.q(self.target, policy, seen, action)
            next_value = value(policy.seen(batch["next_observation"])).squeeze(-1)
            target = iql.target(next_value, batch["reward"], batch["discount"])
        v = value(seen).squeeze(-1)
        value_loss, terms = iql.value_loss(v, target_q, expectile=config.expectile)
        critic_loss, critic_terms = critics.critic_loss(
            self.q(self.module["critics"], policy, seen, action), target
        )
        policy_loss, policy_terms = iql.policy_loss(
            self.log_prob(policy, batch["observation"], action),
            iql.advantage(v, target_q),
            inverse_temperature=config.inverse_temperature,
        )
        losses = {"value": value_loss, "critics": critic_loss, "policy": policy_loss}
        return losses, {**terms, **critic_terms, **policy_terms}


class ChoiceIQLTrainer(IQLTrainer):
    """The same for a single choice."""

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> ChoicePolicy:
        """Make SAC's categorical policy."""
        return ChoiceSACTrainer.make_policy(spaces, parts)

    @staticmethod
    def make_critics(spaces: Spaces, parts: Parts) -> ChoiceCritics:
        """Make two critics of all actions."""
        return ChoiceSACTrainer.make_critics(spaces, parts)

    def log_prob(self, policy: Any, observation: Nested, action: Tensor) -> Tensor:
        """Return log π of recorded choices, `[B]`."""
        return categorical.log_prob(policy.logits(observation), action)

    def q(self, members: nn.Module, policy: Any, seen: Nested, action: Tensor) -> Tensor:
        """Return the values `[K, B]` of recorded choices."""
        return sac_discrete.chosen(members(seen), action)


class IQL(OfflineCritics[IQLConfig]):
    """Learns from a data set what the best of its actions were worth, and clones those."""

    title = "IQL"
    takes = Takes(actions=("discrete", "box"), bounded=True, demonstrations=True)
    configs: ClassVar[dict[str, type[Any]]] = {**Offline.configs, "trainer": IQLConfig}
    trainer = IQLTrainer
    choice_trainer = ChoiceIQLTrainer
