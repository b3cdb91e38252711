"""Runners that take turns: while the environments of one step, the model decides for the next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bray_actor.episodes import PlayedEpisode
from bray_actor.multi_agent.seat import GameResult
from bray_actor.runners.runner import Runner, next_version
from bray_core import metrics
from bray_core.errors import ConfigError


class AlternatingRunners:
    """Several runners of one process, driven as one, of environments that step beside it.

    With two, "double-buffered sampling" (Petrenko et al. 2020, "Sample Factory", §3.2): cores that
    would wait for the model step the other half's environments. The environments have threads or
    processes of their own, as ALE's vector environment has; with others it is merely right.

    Args:
        runners: Runners of one model; each pushes to its own buffer, or all to one.

    Raises:
        ConfigError: there are no runners.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        if not runners:
            raise ConfigError("runners: expected one or more, got none")
        self._runners = list(runners)

    @property
    def num_envs(self) -> int:
        """Number of environments of all runners together."""
        return sum(runner.num_envs for runner in self._runners)

    async def run(self, steps: int) -> int:
        """Record so many steps of each environment in the mean; return how many that were in all.

        Errors are those of `Runner.run`.
        """
        for runner in self._runners:
            runner.owe(steps)
        started, recorded = time.perf_counter(), 0
        try:
            while any(runner.owes for runner in self._runners):
                for runner in self._runners:
                    recorded += runner.finish()
                    if runner.owes:
                        await runner.act()
        finally:  # if one failed, too: its neighbours are not left in the middle of a step
            recorded += sum(runner.finish() for runner in self._runners)
        waited_s = sum(runner.take_stepping_s() for runner in self._runners)
        metrics.record("actor/steps", recorded, kind="count")
        metrics.record("actor/utilisation", waited_s / (time.perf_counter() - started))
        return recorded

    async def next_version(self) -> None:
        """Wait until the model has a newer version than the one that acted last; errors as in
        `Runner.next_version`."""
        await next_version(self._runners)

    def cut(self) -> None:
        """Push the segments that are under way."""
        for runner in self._runners:
            runner.cut()

    def take_episodes(self) -> list[PlayedEpisode]:
        """Return the episodes that ended since the last call."""
        return [episode for runner in self._runners for episode in runner.take_episodes()]

    def take_returns(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        return [value for runner in self._runners for value in runner.take_returns()]

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Let later episodes begin with options, see `Runner.set_reset_options`."""
        for runner in self._runners:
            runner.set_reset_options(options)

    def take_results(self) -> list[GameResult]:
        """Return nothing: these are no games of several policies."""
        return []

    def close(self) -> None:
        """Close the environments."""
        for runner in self._runners:
            runner.close()
