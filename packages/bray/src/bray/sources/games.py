"""Games of several agents as a source, stepped in this process or by workers on Ray."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from bray_actor.multi_agent.making import MultiAgentSpec
from bray_actor.multi_agent.runner import MultiAgentRunner
from bray_actor.multi_agent.seat import Cast


@dataclass(frozen=True, kw_only=True, slots=True)
class GamesPlay:
    """What a worker plays: all that makes its runner, picklable."""

    spec: MultiAgentSpec
    """How an environment is made."""
    num_envs: int
    """Environments of one worker."""
    cast: Cast
    """Says who plays, before each game."""
    quotas: Mapping[str, int]
    """Recorded steps of one policy version, of all workers together, by the seat's name."""
    num_workers: int
    """Workers that share the quotas."""
    ends_with_first: bool
    """Whether a turn ends as soon as one quota is filled: in a local run."""
    seed: int
    """Seed of environments, casts and draws."""
    info_metrics: tuple[str, ...] = ()
    """Keys of the agents' infos that are metrics of their episodes."""
    reset_options: Mapping[str, Any] | None = None
    """Options that the first games begin with; None: there is no curriculum."""

    def runner(self, worker: int) -> MultiAgentRunner:
        """Make the runner of a worker, in the worker's process.

        Args:
            worker: number of the worker, from 0 on.
        """
        with ExitStack() as stack:
            environments = [self.spec.make() for _ in range(self.num_envs)]
            for one in environments:
                stack.callback(one.close)
            runner = MultiAgentRunner(
                environments,
                self.cast,
                seed=self.seed + 1000 * worker,
                quotas={n: steps // self.num_workers for n, steps in self.quotas.items()},
                ends_with_first=self.ends_with_first,
                info_metrics=self.info_metrics,
                reset_options=self.reset_options,
            )
            stack.pop_all()
        return runner
