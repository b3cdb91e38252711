"""TD3+BC: recorded transitions → TD3's critics → a policy that stays near what was recorded.

Fujimoto and Gu 2021, "A minimalist approach to offline reinforcement learning" (arXiv 2106.06860).
All but the policy's loss is TD3's, which can go on with its networks (`model.begin_from`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from bray.algorithms.td3 import ActionNoiseConfig, TD3Policy, TD3Trainer
from bray.policies.continuous import ActionBounds
from bray.training.algorithm import Parts, Takes
from bray.training.off_policy.offline import Offline, OfflineConfig
from bray.training.off_policy.offline_critics import OfflineCritics, OfflineCriticsTrainer
from bray_algo.losses import td3_bc
from bray_algo.losses.reductions import LossTerms
from bray_core.settings.ranges import PositiveFloat, PositiveInt
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class TD3BCConfig(OfflineConfig):
    """TD3+BC's hyperparameters; noise is in half ranges of the action space."""

    alpha: PositiveFloat = 2.5
    """Weight of the values beside the cloning, whatever their size is. Small clones, which suits
    the data of an expert; large trusts values of actions that nobody tried. 0.5 to 10."""
    delay: PositiveInt = 2
    """Steps of the critics for one of the policy, so that it follows values that have settled.
    1 to 4."""
    target_noise: PositiveFloat = 0.2
    """Standard deviation of what is added to the target's actions: it smooths the values. 0.1 to
    0.5."""
    noise_clip: PositiveFloat = 0.5
    """How far that noise may go."""


class TD3BCTrainer(OfflineCriticsTrainer, TD3Trainer):
    """One batch of recorded transitions is one step of the critics."""

    def __init__(self, spaces: Spaces, parts: Parts, *args: Any, **kwargs: Any) -> None:
        exploring = replace(parts, agent=ActionNoiseConfig())
        super().__init__(spaces, exploring, *args, **kwargs)

    @staticmethod
    def make_policy(spaces: Spaces, parts: Parts) -> TD3Policy:
        """Make the policy, with the noise by which TD3 would explore if it went on."""
        noise = ActionNoiseConfig().exploration_noise
        return TD3Policy(spaces, ActionBounds.of(spaces), parts.model, noise)

    def policy_loss(self, q: Tensor, action: Tensor, taken: Tensor) -> tuple[Tensor, LossTerms]:
        """Return the loss of what the policy would do, near what was recorded."""
        return td3_bc.actor_loss(q, action, taken, alpha=self.settings.alpha)


class TD3BC(OfflineCritics[TD3BCConfig]):
    """TD3 on a data set, whose policy is drawn to the recorded actions."""

    title = "TD3+BC"
    example = "Pendulum-v1"
    takes = Takes(actions=("box",), bounded=True, demonstrations=True)
    configs: ClassVar[dict[str, type[Any]]] = {**Offline.configs, "trainer": TD3BCConfig}
    trainer = TD3BCTrainer
