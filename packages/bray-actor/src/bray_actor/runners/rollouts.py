"""A runner of this process as a trainer's driver uses it: so many steps, then what they brought."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bray_actor.episodes import PlayedEpisode
from bray_core.errors import ConfigError


class AnyRunner(Protocol):
    """What rollouts step: a `Runner`, several `AlternatingRunners`, or another kind of play."""

    async def run(self, steps: int) -> int:
        """Record so many steps of each environment in the mean; return how many that were."""
        ...

    def cut(self) -> None:
        """Push what is under way."""
        ...

    async def next_version(self) -> None:
        """Wait until the model has a newer version than the one that acted last."""
        ...

    def take_returns(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class Played(NamedTuple):
    """What rollouts did since they were last asked."""

    frames: int
    """Steps recorded, of all environments together."""
    returns: list[float]
    """Sums of rewards of the episodes that ended, oldest first."""
    episodes: Sequence[PlayedEpisode] = ()
    """The same episodes with their lengths and metrics; empty where the source does not tell."""

    def __add__(self, other: object) -> Played:
        """Return what two of them did together."""
        if not isinstance(other, Played):
            return NotImplemented
        return Played(
            self.frames + other.frames,
            self.returns + other.returns,
            [*self.episodes, *other.episodes],
        )


@runtime_checkable
class TellsEpisodes(Protocol):
    """A runner that tells more of episodes than their returns."""

    def take_episodes(self) -> list[PlayedEpisode]:
        """Return the episodes that ended since the last call."""
        ...


@runtime_checkable
class TakesResetOptions(Protocol):
    """A runner whose environments take options when they are reset."""

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Let later episodes begin with options."""
        ...


def set_reset_options(runner: AnyRunner, options: Mapping[str, Any]) -> None:
    """Let later episodes of a runner begin with options.

    Raises:
        ConfigError: the runner's environments take none.
    """
    if not isinstance(runner, TakesResetOptions):
        raise ConfigError(
            f"source.curriculum: {type(runner).__name__} resets its environments without options"
        )
    runner.set_reset_options(options)


def take_played(runner: AnyRunner, frames: int) -> Played:
    """Return what a runner has played since the last call.

    Args:
        runner: the runner.
        frames: steps that it has recorded.
    """
    if not isinstance(runner, TellsEpisodes):
        return Played(frames, runner.take_returns())
    episodes = runner.take_episodes()
    return Played(frames, [episode.episode_return for episode in episodes], episodes)


class Rollouts:
    """Steps a `Runner`, or several `AlternatingRunners` ones, in the caller's thread.

    `bray_actor.remote.RemoteRollouts` has several in workers on Ray, which step by themselves.

    Args:
        runner: Runner of the environments.
    """

    def __init__(self, runner: AnyRunner) -> None:
        self._runner = runner
        self._loop = asyncio.Runner()
        self._frames = 0

    def collect(self, steps: int) -> None:
        """Record so many steps of each environment in the mean, and push them.

        So `steps` times the number of environments can be popped, however these begin episodes.

        Raises:
            ConfigError: steps is below 1.
            Exception: the error of environment, model or buffer.
        """
        self._frames += self._loop.run(collect(self._runner, steps))

    def poll(self) -> Played:
        """Return what was played since the last call."""
        frames, self._frames = self._frames, 0
        return take_played(self._runner, frames)

    def set_reset_options(self, options: Mapping[str, Any]) -> None:
        """Let later episodes begin with options: `environment.reset(options=options)`."""
        set_reset_options(self._runner, options)

    def close(self) -> None:
        """End the event loop and close the environments."""
        self._loop.close()
        self._runner.close()


async def collect(runner: AnyRunner, steps: int) -> int:
    """Record so many steps, push also what is under way, and return how many that were."""
    recorded = await runner.run(steps)
    runner.cut()
    return recorded
