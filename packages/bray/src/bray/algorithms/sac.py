"""SAC: squashed Gaussian policy → replay → two soft critics → policy and temperature.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv 1812.05905); of a
single choice as in Christodoulou 2019, "Soft actor-critic for discrete action settings".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from bray.policies.choices import ChoiceCritics, ChoicePolicy
from bray.policies.config import TrunkConfig
from bray.policies.continuous import LOG_STD, ActionBounds
from bray.policies.flattening import split_mask
from bray.policies.normalisation import ObservationNorm
from bray.policies.trunks import Layers, make_network
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy.perceptron_critics import fits
from bray.training.off_policy.perceptron_sac import PerceptronSAC
from bray.training.off_policy.policy_and_critics import (
    NoiseConfig,
    PolicyAndCritics,
    PolicyAndCriticsConfig,
    PolicyAndCriticsTrainer,
    TargetCriticsTrainer,
)
from bray_algo import mlp
from bray_algo.distributions import squashed_gaussian
from bray_algo.losses import sac, sac_discrete
from bray_core.action_vector import ActionVector
from bray_core.nested import Nested
from bray_core.settings.ranges import FiniteFloat, PositiveFloat, Range
from bray_core.spaces import Spaces

_TAU, _TAU_OF_CHOICES = 0.005, 0.02
"""How far the target critics follow, where nobody says: of real actions, and of a choice."""
_ENTROPY_SHARE = 0.5
"""Share of the greatest entropy of a choice that the temperature aims at, where nobody says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SACConfig(PolicyAndCriticsConfig):
    """SAC's hyperparameters."""

    tau: Annotated[float, Range(above=0, maximum=1)] | None = None
    """How far the target networks follow at each step, 0 to 1. Too fast and the target chases the
    network; too slow and learning waits for it. 0.001 to 0.05. None: 0.005 or, of a single choice,
    0.02."""

    alpha: PositiveFloat = 0.2
    """Temperature at the start: weight of the entropy beside the return. It is learnt from there;
    too large a start explores long, too small a one hardly. 0.05 to 1."""
    target_entropy: FiniteFloat | None = None
    """Entropy that the temperature aims at, in nats: of reals that of the actions scaled to
    (−1, 1). Higher explores more; too high and the policy never settles. None: −(number of action
    dimensions) or, of a choice among A allowed actions, half of log A."""


class SACPolicy(nn.Module):
    """A Gaussian squashed by tanh between the bounds of real actions."""

    def __init__(
        self,
        spaces: Spaces,
        bounds: ActionBounds,
        config: TrunkConfig,
        layers: Layers = mlp,
        *,
        is_pink: bool = False,
    ) -> None:
        super().__init__()
        self.is_pink = is_pink
        self._space = spaces.observation
        self.normalize = ObservationNorm(spaces, config)
        self.bounds = bounds
        self.body = make_network(
            spaces, config, 2 * bounds.size, nn.ReLU, output_gain=0.01, layers=layers
        )

    def seen(self, observation: Nested) -> Nested:
        """Return what policy and critics read of observations: without mask, normalised."""
        return split_mask(self.normalize(observation), self._space)[0]

    def parameters_of(self, seen: Nested) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation `[B, D]`, before the squashing."""
        mean, log_std = self.body(seen).chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD)

    def forward(self, observation: Nested) -> dict[str, Tensor]:
        """Map observations to `mean, log_std, low, high [B, D]` and a `value` of 0.

        With pink noise there is a leaf `pink`, which tells the decoder to draw some.
        """
        mean, log_std = self.parameters_of(self.seen(observation))
        low, high = self.bounds.low.expand_as(mean), self.bounds.high.expand_as(mean)
        value = torch.zeros_like(mean[:, 0])
        outputs = {"mean": mean, "log_std": log_std, "low": low, "high": high, "value": value}
        return {**outputs, "pink": value} if self.is_pink else outputs


class Temperature(nn.Module):
    """The learned log α."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))


class SACTrainer(TargetCriticsTrainer):
    """One replay is one batch of transitions is one step of policy, critics and temperature."""

    rule: ClassVar[Any] = sac
    """Module with `critic_loss` and `actor_loss` of what the critics estimate."""
    usual_tau: ClassVar[float] = _TAU
    """How far the target critics follow, where no setting says it."""

    def __init__(self, spaces: Spaces, parts: Parts, *args: Any, **kwargs: Any) -> None:
        wanted, size = parts.trainer.target_entropy, ActionBounds.of(spaces).size
        self.target_entropy = -float(size) if wanted is None else wanted
        super().__init__(spaces, parts, *args, **kwargs)
        is_own = (
            type(self).loss is SACTrainer.loss
            and type(self).critics_target is SACTrainer.critics_target
            and self.rule is sac
            and fits(self.module, SACPolicy)
        )
        self._by_hand = PerceptronSAC(self.module, self.target, self.optimizer) if is_own else None

    @property
    def tau(self) -> float:
        """How far the target critics follow at each step."""
        wanted: float | None = self.settings.tau
        return self.usual_tau if wanted is None else wanted

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> SACPolicy:
        """Make the squashed Gaussian."""
        is_pink = isinstance(parts.agent, NoiseConfig) and parts.agent.is_pink
        return SACPolicy(spaces, ActionBounds.of(spaces), parts.model, is_pink=is_pink)

    @staticmethod
    def more_networks(spaces: Spaces, parts: Parts) -> dict[str, nn.Module]:
        """Make the temperature."""
        return {"temperature": Temperature(parts.trainer.alpha)}

    def critics_target(
        self, next_values: Tensor, log_prob: Tensor, batch: dict[str, Tensor], alpha: Tensor
    ) -> Tensor:
        """Return what the critics are drawn to, by the target critics' values of what follows."""
        return sac.target(next_values, log_prob, batch["reward"], batch["discount"], alpha=alpha)

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of policy, critics and temperature."""
        policy, critics = self.module["policy"], self.module["critics"]
        log_alpha = self.module["temperature"].log_alpha
        alpha = log_alpha.detach().exp()
        observation = policy.seen(batch["observation"])
        following = policy.seen(batch["next_observation"])
        with torch.no_grad():
            action, log_prob = squashed_gaussian.sample_with_log_prob(
                *policy.parameters_of(following)
            )
            target = self.critics_target(self.target(following, action), log_prob, batch, alpha)
        taken = policy.bounds.unit(batch["action"])
        critic_loss, terms = self.rule.critic_loss(critics(observation, taken), target)
        action, log_prob = squashed_gaussian.sample_with_log_prob(
            *policy.parameters_of(observation)
        )
        policy_loss, policy_terms = self.rule.actor_loss(
            critics(observation, action), log_prob, alpha=alpha
        )
        temperature_loss, temperature_terms = sac.temperature_loss(
            log_alpha, log_prob, target_entropy=self.target_entropy
        )
        losses = {"policy": policy_loss, "critics": critic_loss, "temperature": temperature_loss}
        return losses, {**policy_terms, **terms, **temperature_terms}

    def gradients(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Return the same by hand for the default perceptrons, with all gradients."""
        if self._by_hand is None:
            return None
        return self._by_hand(batch, target_entropy=self.target_entropy)


class ChoiceSACTrainer(SACTrainer):
    """SAC on one choice: critics judge every action, and expectations over the policy are sums."""

    usual_tau: ClassVar[float] = _TAU_OF_CHOICES

    def __init__(self, spaces: Spaces, parts: Parts, *args: Any, **kwargs: Any) -> None:
        self.num_actions = _num_actions(spaces)
        PolicyAndCriticsTrainer.__init__(self, spaces, parts, *args, **kwargs)
        self._by_hand = None

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> ChoicePolicy:  # type: ignore[override]
        """Make the categorical policy."""
        return ChoicePolicy(spaces, _num_actions(spaces), parts.model)

    @staticmethod
    def make_critics(spaces: Spaces, parts: Parts) -> ChoiceCritics:
        """Make two critics of all actions."""
        return ChoiceCritics(spaces, _num_actions(spaces), parts.model)

    def aim(self, allowed: Tensor | None) -> float:
        """Return the entropy to aim at: the setting, or by how many actions are allowed `[B, A]`.

        The temperature's loss is linear in it, so that its mean over a batch stands for all rows.
        """
        wanted: float | None = self.settings.target_entropy
        if wanted is not None:
            return wanted
        if allowed is None:
            return _ENTROPY_SHARE * math.log(self.num_actions)
        return _ENTROPY_SHARE * float(allowed.sum(-1).double().log().mean())

    def loss(
        self, batch: dict[str, Tensor], step: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the losses of policy, critics and temperature."""
        policy, critics = self.module["policy"], self.module["critics"]
        log_alpha = self.module["temperature"].log_alpha
        alpha = log_alpha.detach().exp()
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            target = sac_discrete.target(
                self.target(policy.seen(following)),
                policy.logits(following),
                batch["reward"],
                batch["discount"],
                alpha=alpha,
            )
        q = critics(policy.seen(observation))
        critic_loss, terms = sac.critic_loss(sac_discrete.chosen(q, batch["action"]), target)
        logits = policy.logits(observation)
        policy_loss, policy_terms = sac_discrete.actor_loss(q, logits, alpha=alpha)
        temperature_loss, temperature_terms = sac_discrete.temperature_loss(
            log_alpha, logits, target_entropy=self.aim(policy.allowed(observation))
        )
        losses = {"policy": policy_loss, "critics": critic_loss, "temperature": temperature_loss}
        return losses, {**policy_terms, **terms, **temperature_terms}


class SAC(PolicyAndCritics[SACConfig]):
    """A stochastic policy that is paid for its return and for its entropy."""

    title = "SAC"
    takes = Takes(actions=("discrete", "box"), bounded=True, gamecores=True)
    configs: ClassVar[dict[str, type[Any]]] = {**PolicyAndCritics.configs, "trainer": SACConfig}
    trainer = SACTrainer
    choice_trainer = ChoiceSACTrainer


def _num_actions(spaces: Spaces) -> int:
    return ActionVector(spaces.action, spaces.origin).sizes[0]
