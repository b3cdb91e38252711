"""Mixtures that trainers draw from: of replays that are played into, and of data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

from bray.run import Run
from bray.sources.data_set_replay import DataSetPlace, DataSetReplay
from bray.training.learner import LearnerPlace
from bray_buffer import ReplayConfig
from bray_buffer.mixture import Mixture
from bray_core.errors import ConfigError
from bray_core.layout import Layout
from bray_core.spaces import Spaces


class DrawsFromReplay(Protocol):
    """What is asked of an algorithm whose replays are mixed; `SampledPolicy` has all of it."""

    title: ClassVar[str]
    """Its name as it is written."""
    parts: Any
    """Settings of the run's parts."""

    @property
    def gamma(self) -> float:
        """Discount per step."""

    def buffer(self, *, is_local: bool) -> Any:
        """Return the settings of what holds the segments."""

    def holding(self, buffer: Any) -> Self:
        """Return the algorithm with other settings of its buffer."""

    def beginning(self, spaces: Spaces) -> Callable[[Any], Any] | None:
        """Return what the buffer begins with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedReplays:
    """The buffers of a mixture."""

    replays: Mapping[str, Any]
    """Those that are played into, by name."""
    mixture: Mixture
    """What draws from these and from the data sets."""
    min_size: int
    """What each of the replays holds before the first training."""


def mixed_replays(
    run: Run,
    algorithm: DrawsFromReplay,
    spaces: Spaces,
    layout: Layout,
    place: LearnerPlace,
) -> MixedReplays:
    """Make the replays of a mixture, and what draws from them.

    On Ray what is drawn keeps pace with what is pushed to all of them together; a bound of each
    could let players and trainer wait for each other.

    Args:
        run: makes the replays.
        algorithm: what trains.
        spaces: what the policy sees and may do.
        layout: layout of a segment.
        place: says what is mixed.

    Raises:
        ConfigError: the algorithm draws from no replay, or one cannot be mixed.
    """
    holds = algorithm.buffer(is_local=run.is_local)
    if not isinstance(holds, ReplayConfig):
        raise ConfigError(
            f"trainers.{place.label}.buffer: expected an algorithm that draws from a replay beside "
            f"a mixture, such as dqn or sac, got {algorithm.title}, which trains on each step once"
        )
    played = {
        name: _settings(run, algorithm, spaces, held)
        for name, (held, _) in place.mixture.items()
        if not isinstance(held, DataSetPlace)
    }
    sampler = _one_sampler(algorithm, {name: config for name, (config, _) in played.items()})
    alike = replace(holds, sampler=sampler)
    replays: dict[str, Any] = {}
    mixed: dict[str, tuple[Any, float]] = {}
    for name, (held, share) in place.mixture.items():
        if isinstance(held, DataSetPlace):
            _check_no_memory(algorithm, place, name)
            part = DataSetReplay(held, spaces, layout, alike, algorithm.gamma)
            mixed[name] = run.close_with(part), share
            continue
        config, begin = played[name]
        replays[name] = run.buffer(name, layout, config, begin=begin)
        mixed[name] = replays[name], share
    sizes = [config.min_size for config, _ in played.values()]
    mixture = Mixture(mixed, place.seed, holds.samples_per_insert)
    return MixedReplays(replays=replays, mixture=mixture, min_size=max([0, *sizes]))


def _one_sampler(algorithm: DrawsFromReplay, configs: Mapping[str, ReplayConfig]) -> Any:
    """Return how the replays of a mixture draw, all alike: of batches that tell no keys nobody
    could say whose priorities are new.

    Raises:
        ConfigError: they differ, or the algorithm sets no priorities.
    """
    (first, sampler), *others = ((name, one.sampler) for name, one in configs.items())
    for name, other in others:
        if other != sampler:
            raise ConfigError(
                f"buffers.{name}: expected a replay that draws like buffers.{first} of the same "
                f"mixture, {sampler}, got {other}: set prioritized alike (of kind replay: sampler)"
            )
    check_priorities(algorithm, f"buffers.{first}", sampler)
    return sampler


def check_priorities(algorithm: Any, where: str, sampler: str) -> None:
    """Refuse a replay that draws by priority for an algorithm that sets none.

    Raises:
        ConfigError: says `where` the replay is named.
    """
    if sampler == "prioritized" and not hasattr(algorithm.parts.buffer, "prioritized"):
        raise ConfigError(
            f"{where}: expected a replay that is drawn from evenly, got one that draws by "
            f"priority, which {algorithm.title} does not set: sampler=uniform, or train dqn"
        )


def _settings(
    run: Run, algorithm: DrawsFromReplay, spaces: Spaces, held: Any
) -> tuple[ReplayConfig, Callable[[Any], Any] | None]:
    """Return the settings of a replay, and what it begins with."""
    if isinstance(held, ReplayConfig):
        return held, None
    own = algorithm if held is None else algorithm.holding(held)
    config: Any = own.buffer(is_local=run.is_local)
    return replace(config, samples_per_insert=None, error_margin=None), own.beginning(spaces)


def _check_no_memory(algorithm: DrawsFromReplay, place: LearnerPlace, name: str) -> None:
    """Refuse a data set beside replays for a policy with memory."""
    size = getattr(algorithm.parts.model, "memory_size", 0)
    if size:
        raise ConfigError(
            f"models.{place.model}.memory_size: expected 0 with the data set buffers.{name}, whose "
            f"steps have no state of a memory, got {size}"
        )
