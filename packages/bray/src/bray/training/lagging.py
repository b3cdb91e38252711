"""What IMPALA and APPO share: players that never wait, and V-trace, which corrects for their lag.

On Ray the players go on while the trainer trains, held back only by a full queue; a local run plays
a few replays before it trains on them, so that the later ones are off-policy, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from bray.training.actor_critic import ActorCriticConfig
from bray.training.on_policy import OnPolicy
from bray_core.settings.ranges import NonNegativeInt, PositiveInt, Range


@dataclass(frozen=True, kw_only=True, slots=True)
class LaggingConfig(ActorCriticConfig):
    """V-trace's clips, and how old a policy may be; each algorithm adds its own."""

    rho_bar: Annotated[float, Range(above=0, allow_infinity=True)] = 1.0
    """ρ̄: V-trace's clip of the importance weights; it says which policy's values are learnt. Lower
    is steadier, and nearer to the policy that acted."""
    c_bar: Annotated[float, Range(above=0, allow_infinity=True)] = 1.0
    """c̄: V-trace's clip of the traces. Below 1 it shortens them, as λ of GAE does: less variance,
    more bias."""
    replays_per_collect: PositiveInt = 4
    """Replays that a local run plays before it trains on them. More make the later ones older, as
    they are on Ray; 1 is on-policy."""
    max_policy_lag: NonNegativeInt = 20
    """Versions, above which segments are dropped: too old, they teach little. Dropping many wastes
    play; watch `buffer/dropped`."""
    num_ranks: PositiveInt = 1
    """Processes that train on Ray, on one mean gradient; each takes replays of its own."""


C = TypeVar("C", bound=LaggingConfig)


class Lagging(OnPolicy[C]):
    """An algorithm whose players go on with an older policy while the trainer trains."""

    pacing = "lagging"

    @property
    def replays_per_collect(self) -> int:
        """Replays that a local run plays before it trains on them."""
        return self.config.replays_per_collect

    @property
    def max_policy_lag(self) -> int | None:
        """Versions, above which segments are dropped."""
        return self.config.max_policy_lag

    @property
    def num_ranks(self) -> int:
        """Processes that train at once on Ray."""
        return self.config.num_ranks
