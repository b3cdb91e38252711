"""TQC: SAC whose critics estimate distributions, of which the greatest quantiles are left out.

Kuznetsov et al. 2020, "Controlling overestimation bias with truncated mixture of continuous
distributional quantile critics" (arXiv 2005.04269).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bray.algorithms.sac import SACConfig, SACTrainer
from bray.policies.config import TrunkConfig
from bray.policies.continuous import ActionBounds
from bray.policies.trunks import make_network
from bray.training.algorithm import Parts
from bray.training.off_policy.policy_and_critics import PolicyAndCritics
from bray_algo.losses import tqc
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.settings.ranges import NonNegativeInt, PositiveInt, check_fields
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class TQCConfig(SACConfig):
    """TQC's hyperparameters."""

    num_critics: PositiveInt = 5
    """Networks that judge actions. More estimate steadier and cost more: 2 to 5."""
    num_quantiles: PositiveInt = 25
    """Quantiles that each critic estimates of the return. More tell the distribution finer and cost
    little: 10 to 50."""
    dropped_quantiles: NonNegativeInt = 2
    """Greatest quantiles left out for each critic, from those of all critics together. Too few and
    values run away upwards; too many and good actions look bad. 0 to 5 of 25; more where returns
    are overestimated."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dropped_quantiles >= self.num_quantiles:
            raise ConfigError(
                f"dropped_quantiles: expected less than num_quantiles={self.num_quantiles}, "
                f"got {self.dropped_quantiles}"
            )


class QuantileCritics(nn.Module):
    """K networks that each estimate M quantiles of the return of an action.

    Args:
        spaces: what the policy sees and may do.
        action_size: numbers D of an action.
        config: settings of each network.
        count: number K of critics.
        num_quantiles: number M of quantiles.
    """

    def __init__(
        self, spaces: Spaces, action_size: int, config: TrunkConfig, count: int, num_quantiles: int
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            make_network(spaces, config, num_quantiles, nn.ReLU, num_extra=action_size)
            for _ in range(count)
        )

    def forward(self, seen: Nested, action: Tensor) -> Tensor:
        """Map observations `[B, …]` and actions `[B, D]` to quantiles `[K, B, M]`."""
        return torch.stack([member(seen, action) for member in self.members])


class TQCTrainer(SACTrainer):
    """One replay is one batch of transitions is one step of policy, critics and temperature."""

    rule: ClassVar[Any] = tqc

    @staticmethod
    def make_critics(spaces: Spaces, parts: Parts) -> QuantileCritics:
        """Make critics of distributions."""
        config: TQCConfig = parts.trainer
        size = ActionBounds.of(spaces).size
        return QuantileCritics(spaces, size, parts.model, config.num_critics, config.num_quantiles)

    def critics_target(
        self, next_values: Tensor, log_prob: Tensor, batch: dict[str, Tensor], alpha: Tensor
    ) -> Tensor:
        """Return the least quantiles of all target critics together."""
        return tqc.target(
            next_values,
            log_prob,
            batch["reward"],
            batch["discount"],
            alpha=alpha,
            dropped=self.settings.dropped_quantiles,
        )


class TQC(PolicyAndCritics[TQCConfig]):
    """SAC that judges actions by distributions of returns, cut where critics err upwards."""

    title = "TQC"
    configs: ClassVar[dict[str, type[Any]]] = {**PolicyAndCritics.configs, "trainer": TQCConfig}
    trainer = TQCTrainer
