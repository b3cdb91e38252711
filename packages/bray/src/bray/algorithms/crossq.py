"""CrossQ: SAC without target networks, whose wide critics are normalised by their batches.

Bhatt et al. 2024, "CrossQ: batch normalization in deep reinforcement learning for greater sample
efficiency and simplicity" (arXiv 1902.05605).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from bray.algorithms.sac import SACPolicy, SACTrainer
from bray.policies.config import TrunkConfig
from bray.policies.continuous import ActionBounds, Critics
from bray.training.algorithm import Parts
from bray.training.off_policy.policy_and_critics import PolicyAndCritics, PolicyAndCriticsConfig
from bray_algo.distributions import squashed_gaussian
from bray_algo.losses import sac, td3
from bray_algo.networks.batch_renorm import renormed_mlp
from bray_core import nested
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.settings.ranges import FiniteFloat, LayerSizes, PositiveFloat, PositiveInt
from bray_core.settings.schedule import value_at
from bray_core.spaces import Spaces

_BETAS = (0.5, 0.999)
"""Adam's decay rates: gradients change quickly where no target network holds them (§4)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WideCriticsConfig(TrunkConfig):
    """The networks of CrossQ."""

    critic_hidden: LayerSizes = (512, 512)
    """Units of the critics' hidden layers. Wider ones learn in fewer steps, each of which takes
    longer: 256 to 512 on CPUs; the paper's are 2,048, for a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossQConfig(PolicyAndCriticsConfig):
    """CrossQ's hyperparameters."""

    delay: PositiveInt = 3
    """Steps of the critics for one of the policy and the temperature. Too few and the policy
    chases values that have not settled; many slow it down. 1 to 4."""
    alpha: PositiveFloat = 0.2
    """Temperature at the start: weight of the entropy beside the return. It is learnt from there;
    too large a start explores long, too small a one hardly. 0.05 to 1."""
    target_entropy: FiniteFloat | None = None
    """Entropy that the temperature aims at, of the actions scaled to (−1, 1), in nats. Higher
    explores more. None: −(number of action dimensions)."""


class CrossQTrainer(SACTrainer):
    """One replay is one batch of transitions is one step of the critics."""

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> SACPolicy:
        """Make the squashed Gaussian, with normalised layers."""
        bounds, is_pink = ActionBounds.of(spaces), parts.agent.is_pink
        return SACPolicy(spaces, bounds, parts.model, renormed_mlp, is_pink=is_pink)

    @staticmethod
    def make_critics(spaces: Spaces, parts: Parts) -> Critics:
        """Make two wide critics with normalised layers."""
        wide = replace(parts.model, hidden=parts.model.critic_hidden)
        return Critics(spaces, ActionBounds.of(spaces).size, wide, layers=renormed_mlp)

    def followed(self, modules: dict[str, nn.Module]) -> nn.Module:
        """Return no networks: there are no targets."""
        return nn.ModuleDict()

    def make_optimizer(self) -> dict[str, Optimizer]:
        """Return an Adam for each module."""
        return {
            name: Adam(
                module.parameters(),
                lr=value_at(self.settings.learning_rate, 0),
                betas=_BETAS,
                fused=True,
            )
            for name, module in self.module.items()
        }

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch."""
        yield self.batch(replay)

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the critics' loss and, each `delay` steps, those of policy and temperature."""
        policy, critics = self.module["policy"], self.module["critics"]
        log_alpha = self.module["temperature"].log_alpha
        alpha = log_alpha.detach().exp()
        observation = policy.seen(batch["observation"])
        following = policy.seen(batch["next_observation"])
        with torch.no_grad(), evaluated(policy):
            next_action, next_log_prob = squashed_gaussian.sample_with_log_prob(
                *policy.parameters_of(following)
            )
        taken = policy.bounds.unit(batch["action"])
        q, next_q = joint_values(critics, (observation, taken), (following, next_action))
        target = sac.target(next_q, next_log_prob, batch["reward"], batch["discount"], alpha=alpha)
        critic_loss, terms = sac.critic_loss(q, target)
        if not td3.is_actor_step(step, self.settings.delay):
            return {"critics": critic_loss}, terms
        action, log_prob = squashed_gaussian.sample_with_log_prob(
            *policy.parameters_of(observation)
        )
        with evaluated(critics):
            policy_loss, policy_terms = sac.actor_loss(
                critics(observation, action), log_prob, alpha=alpha
            )
        temperature_loss, temperature_terms = sac.temperature_loss(
            log_alpha, log_prob, target_entropy=self.target_entropy
        )
        losses = {"policy": policy_loss, "critics": critic_loss, "temperature": temperature_loss}
        return losses, {**policy_terms, **terms, **temperature_terms}


def joint_values(
    critics: nn.Module, now: tuple[Nested, Tensor], then: tuple[Nested, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return Q(s, a) and, without gradient, Q(s', a'), `[K, B]` each, in one pass of both.

    The critics' normalisation sees one batch of what was done and what the policy would do, of
    which each alone has another mean (Bhatt et al. 2024, equation 5 and figure 2).

    Args:
        critics: the critics, in training.
        now: observations, without a mask, and actions `[B, D]`.
        then: those that follow.
    """
    seen = nested.unflatten(
        now[0],
        [
            torch.cat([one, other])
            for (_, one), (_, other) in zip(
                nested.items(now[0]), nested.items(then[0]), strict=True
            )
        ],
    )
    q, next_q = critics(seen, torch.cat([now[1], then[1]])).chunk(2, 1)
    return q, next_q.detach()


@contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Let a module normalise by what it has seen so far, and learn nothing of this batch."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


class CrossQ(PolicyAndCritics[CrossQConfig]):
    """SAC whose critics need no targets, since they normalise what they see."""

    title = "CrossQ"
    configs: ClassVar[dict[str, type[Any]]] = {
        **PolicyAndCritics.configs,
        "model": WideCriticsConfig,
        "trainer": CrossQConfig,
    }
    trainer = CrossQTrainer
