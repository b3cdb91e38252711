"""What gamecores play, and how many steps of it make a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bray.sources.config import GamecoreSourceConfig, ServingActorConfig
from bray_actor import PolicyConfig
from bray_actor.gamecores.fleet import lanes_at
from bray_core.errors import ConfigError
from bray_core.spaces import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class GamecorePlay:
    """What gamecores play and how: all that a worker has to know, picklable."""

    source: GamecoreSourceConfig
    """Environments of the gamecore processes."""
    actor: ServingActorConfig
    """Workers that answer; a local run has one."""
    policy: PolicyConfig
    """How the policy acts."""
    steps_per_version: int | None = None
    """On Ray, steps of all environments that each policy version answers; None sets no bound."""
    seed: int = 0
    """Seed of the environments."""
    spaces: Spaces | None = None
    """What simulators of one's own show and take; None: gamecores of a Gymnasium id play."""
    reset_options: Mapping[str, Any] | None = None
    """Options that the first episodes begin with; None: there is no curriculum."""
    games: str | None = None
    """How a game of several agents is made, as `MultiAgentSpec.to_json` writes; then the lanes of
    bray's own gamecores are games of it."""

    @property
    def num_lanes(self) -> int:
        """Number of environments of all processes together."""
        return self.source.num_processes * self.source.num_envs

    def lanes(self, worker: int = 0) -> list[str]:
        """Return the lanes that a worker answers, in the order of their rows."""
        if self.source.external:  # of which nobody knows who calls which worker
            return [str(lane) for lane in range(self.num_lanes)]
        return lanes_at(
            worker, self.actor.num_workers, self.source.num_processes, self.source.num_envs
        )

    def steps_of_worker(self, worker: int) -> int:
        """Return a worker's share of `steps_per_version`; the shares of all add up to it."""
        steps, workers = self.steps_per_version or 0, self.actor.num_workers
        return steps * (worker + 1) // workers - steps * worker // workers


def steps_per_turn(batch_steps: int, num_lanes: int) -> int:
    """Return the steps that each environment of all gamecores takes for a replay.

    Raises:
        ConfigError: the replay cannot be shared out evenly.
    """
    if batch_steps % num_lanes:
        raise ConfigError(
            f"batch: expected a multiple of the {num_lanes} environments (num_processes × "
            f"num_envs), got {batch_steps} steps"
        )
    return batch_steps // num_lanes
