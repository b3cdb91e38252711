"""A runner of this process as a trainer's driver uses it: so many steps, then what they brought."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bray_actor.episodes import PlayedEpisode
from bray_actor.multi_agent.seat import GameResult
from bray_actor.reset_options import NewResetOptions
from bray_core.errors import ConfigError
from bray_core.process.running_loop import outside_running_loop


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

    def take_results(self) -> list[GameResult]:
        """Return how the games of several agents ended since the last call; others have none."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


@runtime_checkable
class SeatedRunner(Protocol):
    """What a runner of several policies has besides: a `MultiAgentRunner`."""

    def take_frames_by_seat(self) -> dict[str, int]:
        """Return how many steps were recorded since the last call, by the seat's name."""
        ...

    def tell(self, news: Any) -> None:
        """Tell those who draw the policies what the driver says."""
        ...


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


class Played(NamedTuple):
    """What rollouts did since they were last asked."""

    frames: int
    """Steps recorded, of all environments together."""
    returns: list[float]
    """Sums of rewards of the episodes that ended, oldest first."""
    results: tuple[GameResult, ...] = ()
    """How the games of several agents ended, oldest first."""
    frames_by_seat: Mapping[str, int] = {}
    """Steps recorded of each policy, by the seat's name, where there are several."""
    episodes: tuple[PlayedEpisode, ...] = ()
    """The episodes of the returns with their lengths and metrics; empty where the source does not
    tell."""

    def joined(self, other: Played) -> Played:
        """Return what both tell together."""
        seats = {**self.frames_by_seat, **other.frames_by_seat}
        by_seat = {
            name: self.frames_by_seat.get(name, 0) + other.frames_by_seat.get(name, 0)
            for name in seats
        }
        return Played(
            self.frames + other.frames,
            self.returns + other.returns,
            self.results + other.results,
            by_seat,
            self.episodes + other.episodes,
        )


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
        with outside_running_loop():
            self._frames += self._loop.run(collect(self._runner, steps))

    def poll(self) -> Played:
        """Return what was played since the last call."""
        frames, self._frames = self._frames, 0
        return taken(self._runner, frames)

    def tell(self, news: Any) -> None:
        """Tell the runner what the driver says; see `tell`.

        Raises:
            ConfigError: the news are options, and the runner's environments take none.
        """
        tell(self._runner, news)

    def close(self) -> None:
        """End the event loop and close the environments."""
        with outside_running_loop():
            self._loop.close()
        self._runner.close()


async def collect(runner: AnyRunner, steps: int) -> int:
    """Record so many steps, push also what is under way, and return how many that were."""
    recorded = await runner.run(steps)
    runner.cut()
    return recorded


def taken(runner: AnyRunner, frames: int) -> Played:
    """Take what a runner has played since the last call; `frames` were recorded."""
    by_seat = runner.take_frames_by_seat() if isinstance(runner, SeatedRunner) else {}
    results = tuple(runner.take_results())
    if not isinstance(runner, TellsEpisodes):
        return Played(frames, runner.take_returns(), results, by_seat)
    episodes = runner.take_episodes()
    returns = [episode.episode_return for episode in episodes]
    return Played(frames, returns, results, by_seat, tuple(episodes))


def tell(runner: AnyRunner, news: Any) -> None:
    """Tell a runner what the driver says between two turns.

    Args:
        runner: the runner.
        news: `NewResetOptions`, for the environments; anything else is for the cast of several
            policies, such as new opponents, and others do not hear it.

    Raises:
        ConfigError: the news are options, and the runner's environments take none.
    """
    if isinstance(news, NewResetOptions):
        _set_reset_options(runner, news.options)
    elif isinstance(runner, SeatedRunner):
        runner.tell(news)


def _set_reset_options(runner: AnyRunner, options: Mapping[str, Any]) -> None:
    if not isinstance(runner, TakesResetOptions):
        raise ConfigError(
            f"source.curriculum: {type(runner).__name__} resets its environments without options"
        )
    runner.set_reset_options(options)
