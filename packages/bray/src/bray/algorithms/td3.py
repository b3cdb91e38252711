"""TD3: deterministic policy with noise → replay → two critics → a delayed policy.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bray.policies.config import TrunkConfig
from bray.policies.continuous import ActionBounds
from bray.policies.flattening import split_mask
from bray.policies.normalisation import ObservationNorm
from bray.policies.trunks import make_network
from bray.training.algorithm import Parts
from bray.training.off_policy.perceptron_critics import fits
from bray.training.off_policy.perceptron_td3 import PerceptronTD3
from bray.training.off_policy.policy_and_critics import (
    FollowingTargetsConfig,
    NoiseConfig,
    PolicyAndCritics,
    PolicyAndCriticsTrainer,
)
from bray_algo.losses import critics, td3
from bray_algo.losses.reductions import LossTerms
from bray_core.layout import Packed
from bray_core.nested import Nested
from bray_core.settings.ranges import PositiveFloat, PositiveInt
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionNoiseConfig(NoiseConfig):
    """How an agent explores by noise on its actions, in half ranges of the action space."""

    warmup_noise: PositiveFloat = 1.0
    """Standard deviation of what is added to actions before the first training: 1 tries all."""
    exploration_noise: PositiveFloat = 0.1
    """Standard deviation of what is added later. Too small and nothing new is tried; too large and
    nothing fine is done. 0.05 to 0.3."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TD3Config(FollowingTargetsConfig):
    """TD3's hyperparameters; noise is in half ranges of the action space."""

    delay: PositiveInt = 2
    """Steps of the critics for one of the policy, so that it follows values that have settled.
    1 to 4."""
    target_noise: PositiveFloat = 0.2
    """Standard deviation of what is added to the target's actions: it smooths the values. 0.1 to
    0.5."""
    noise_clip: PositiveFloat = 0.5
    """How far that noise may go."""


class TD3Policy(nn.Module):
    """A deterministic policy; the noise around it lies in the weights, so it is published."""

    noise: Tensor

    def __init__(
        self,
        spaces: Spaces,
        bounds: ActionBounds,
        config: TrunkConfig,
        noise: float,
        *,
        is_pink: bool = False,
    ) -> None:
        super().__init__()
        self.is_pink = is_pink
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.bounds = bounds
        self.body = make_network(spaces, config, bounds.size, nn.ReLU, output_gain=0.01)
        self.register_buffer("noise", torch.tensor(noise))

    def seen(self, observation: Nested) -> Nested:
        """Return what policy and critics read of observations: without mask, normalised."""
        return split_mask(self.normalize(observation), self._space)[0]

    def unit(self, seen: Nested) -> Tensor:
        """Return the actions `[B, D]` of what is seen, scaled to (−1, 1)."""
        return torch.tanh(self.body(seen))

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `mean, log_std [B, D]` and a `value` of 0.

        With pink noise there is a leaf `pink`, which tells the decoder to draw some.
        """
        mean = self.bounds.scale(self.unit(self.seen(observation)))
        std = self.noise * (self.bounds.high - self.bounds.low) / 2
        value = torch.zeros_like(mean[:, 0])
        outputs = {"mean": mean, "log_std": std.log().expand_as(mean), "value": value}
        return {**outputs, "pink": value} if self.is_pink else outputs


class TD3Trainer(PolicyAndCriticsTrainer):
    """One replay is one batch of transitions is one step of the critics."""

    def __init__(self, spaces: Spaces, parts: Parts, *args: Any, **kwargs: Any) -> None:
        self.noise = parts.agent.exploration_noise
        super().__init__(spaces, parts, *args, **kwargs)
        is_own = (
            type(self).loss is TD3Trainer.loss
            and type(self).policy_loss is TD3Trainer.policy_loss
            and fits(self.module, TD3Policy)
        )
        self._by_hand = PerceptronTD3(self.module, self.target, self.optimizer) if is_own else None

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> TD3Policy:
        """Make the policy, with the noise of the time before the first training."""
        bounds, agent = ActionBounds.of(spaces), parts.agent
        return TD3Policy(spaces, bounds, parts.model, agent.warmup_noise, is_pink=agent.is_pink)

    def followed(self, modules: dict[str, nn.Module]) -> nn.Module:
        """Return policy and critics."""
        return nn.ModuleDict(modules)

    def handle(self, replay: Packed) -> Iterator[dict[str, Tensor]]:
        """Yield the batch; after a step of the policy the targets follow."""
        self.module["policy"].noise.fill_(self.noise)
        is_delayed_step = td3.is_actor_step(self.steps, self.settings.delay)
        yield self.batch(replay)
        if is_delayed_step:
            self.move_target(self.settings.tau)

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the loss of the critics and, in each `delay`-th step, of the policy."""
        policy, members = self.module["policy"], self.module["critics"]
        observation = policy.seen(batch["observation"])
        following = policy.seen(batch["next_observation"])
        with torch.no_grad():
            action = td3.smoothed(
                self.target["policy"].unit(following),
                noise=self.settings.target_noise,
                noise_clip=self.settings.noise_clip,
            )
            next_q = self.target["critics"](following, action)
            target = td3.target(next_q, batch["reward"], batch["discount"])
        taken = policy.bounds.unit(batch["action"])
        loss, terms = critics.critic_loss(members(observation, taken), target)
        if not td3.is_actor_step(step, self.settings.delay):
            return {"critics": loss}, terms
        action = policy.unit(observation)
        policy_loss, policy_terms = self.policy_loss(
            members.first(observation, action), action, taken
        )
        return {"critics": loss, "policy": policy_loss}, {**policy_terms, **terms}

    def gradients(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Return the same by hand for the default perceptrons, with all gradients."""
        if self._by_hand is None:
            return None
        return self._by_hand(
            batch,
            noise=self.settings.target_noise,
            noise_clip=self.settings.noise_clip,
            is_actor_step=td3.is_actor_step(step, self.settings.delay),
        )

    def policy_loss(self, q: Tensor, action: Tensor, taken: Tensor) -> tuple[Tensor, LossTerms]:
        """Return the loss of the policy.

        Args:
            q: values `[B]` by the first critic of what the policy would do.
            action: these actions `[B, D]`, scaled to (−1, 1).
            taken: the actions of the batch, scaled alike.
        """
        return td3.actor_loss(q)


class TD3(PolicyAndCritics[TD3Config]):
    """A deterministic policy, explored around by noise, that follows the lesser of two critics."""

    title = "TD3"
    configs: ClassVar[dict[str, type[Any]]] = {
        **PolicyAndCritics.configs,
        "agent": ActionNoiseConfig,
        "trainer": TD3Config,
    }
    trainer = TD3Trainer
