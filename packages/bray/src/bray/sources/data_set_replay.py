"""A data set in the place of a replay: one part of a mixture, which nobody pushes into."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from bray.sources import data_sets
from bray.sources.replay_beginning import segments_of
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_buffer.iterable_buffer import IterableBuffer
from bray_core.errors import ConfigError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.spaces import Spaces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSetPlace:
    """Where a data set is, and how many of its steps a batch has."""

    where: str
    """The data set, see `data_sets.open_data_set`."""
    batch_size: int | None = None
    """Steps of a batch; None: as many as a batch of the replays beside it."""


class DataSetReplay(IterableBuffer):
    """Batches that are drawn from a data set as from a replay that holds all of it.

    The data set is read in the process that draws, at the first draw: a trainer whose process was
    killed reads it again. What is pushed elsewhere never overwrites it.

    Args:
        place: the data set.
        spaces: what was seen and done.
        layout: layout of the segments of the replays beside it.
        config: settings of these replays.
        gamma: discount of the segments' returns, where they have some.

    Raises:
        ConfigError: there is no such data set.
    """

    def __init__(
        self,
        place: DataSetPlace,
        spaces: Spaces,
        layout: Layout,
        config: ReplayConfig,
        gamma: float,
    ) -> None:
        data_sets.open_data_set(place.where, spaces, gamma=1.0)  # an absent one is told at once
        self._arguments = place, spaces, layout, config, gamma
        small = ReplayBuffer(layout, _holding(0, layout, config, config.batch_size))
        self._batch_layout = small.batch_layout
        self._replay: ReplayBuffer | None = None
        self._state: Mapping[str, Any] | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the data set is: another process reads it for itself."""
        return DataSetReplay, self._arguments

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        return self._arguments[2]

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of one row of a batch."""
        return self._batch_layout

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Refuse: a data set is read only."""
        raise ConfigError("data set: nothing can be pushed to a data set: it is read only")

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return a batch of its steps, drawn with replacement; the first call reads the data set.

        Raises:
            ConfigError: the data set has no step whose outcome is known.
        """
        return self._read().pop(timeout_s)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine; the first call reads the data set while the event loop waits."""
        return await self._read().pop_async(timeout_s)

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Give steps of a batch new priorities, where it draws by them; see `ReplayBuffer`."""
        return self._read().update_priorities(keys, priorities)

    def _read(self) -> ReplayBuffer:
        with self._lock:
            if self._replay is None:
                self._replay = _filled(*self._arguments)
                if self._state:
                    self._replay.load_state_dict(self._state)
            return self._replay

    def stats(self) -> dict[str, float]:
        """Return the batches' rows drawn (`popped`) and the `steps` held, once it was read."""
        if self._replay is None:
            return {"popped": 0.0, "steps": 0.0}
        figures = self._replay.stats()
        return {"popped": figures["popped"], "steps": figures["queued"]}

    def state_dict(self) -> dict[str, Any]:
        """Return where the draws stand; nothing before the first."""
        return {} if self._replay is None else self._replay.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        with self._lock:
            self._state = state
            if self._replay is not None and state:
                self._replay.load_state_dict(state)

    def close(self) -> None:
        """Free what was read, and refuse further use."""
        if self._replay is not None:
            self._replay.close()


def _filled(
    place: DataSetPlace, spaces: Spaces, layout: Layout, config: ReplayConfig, gamma: float
) -> ReplayBuffer:
    """Return a replay that holds all steps of a data set."""
    segments = list(segments_of(place.where, spaces, layout, gamma))
    count = sum(int(one.tree["length"].sum()) for one in segments)
    if not count:
        raise ConfigError(
            f"data set: {place.where}: expected steps whose reward and next observation are known, "
            "got none"
        )
    rows = place.batch_size or config.batch_size
    replay = ReplayBuffer(layout, _holding(count, layout, config, rows))
    segments.reverse()
    while segments:  # what was pushed is freed at once: it is in the replay
        replay.push(segments.pop())
    logger.info("a data set in a mixture: %d steps of %s", count, place.where)
    return replay


def _holding(steps: int, layout: Layout, config: ReplayConfig, batch_size: int) -> ReplayConfig:
    """Return the settings of a replay with room for a data set, which holds nobody back."""
    longest = int(layout.spec["reward"].shape[0])
    return replace(
        config,
        capacity=steps + longest,
        batch_size=batch_size,
        min_size=1,
        samples_per_insert=None,
        error_margin=None,
    )
