"""A replay that begins with a data set: recorded steps as the segments that runners push."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray.sources import data_sets
from bray_actor.segment import SegmentWriter
from bray_buffer import ReplayBuffer
from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.spaces import Spaces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayBeginning:
    """Fills a replay with a data set while it is empty, in the process that holds the replay."""

    where: str
    """The data set, as every process finds it; see `data_sets.open_data_set`."""
    spaces: Spaces
    """What was seen and done."""
    gamma: float
    """Discount of the segments' returns, where they have some."""

    def __call__(self, replay: ReplayBuffer) -> int:
        """Push the steps of the data set into the replay; return how many.

        A replay that was restored already holds them, and is left as it is.

        Raises:
            ConfigError: there is no such data set.
        """
        if replay.stats()["queued"]:
            return 0
        replay.begin_with(segments_of(self.where, self.spaces, replay.layout, self.gamma))
        count = int(replay.stats()["queued"])
        logger.info("the replay begins with %d steps of %s", count, self.where)
        return count


def segments_of(where: str, spaces: Spaces, layout: Layout, gamma: float) -> Iterator[Packed]:
    """Yield a data set as segments: cut where one is full, and where a step is not the next.

    Args:
        where: the data set, see `data_sets.open_data_set`.
        spaces: what was seen and done.
        layout: layout of the segments.
        gamma: discount of the segments' returns, where they have some.

    Raises:
        ConfigError: there is no such data set.
    """
    data = data_sets.open_data_set(where, spaces, gamma=1.0)
    writer = SegmentWriter(layout, gamma)
    for unit in range(data.num_units):
        rows: Any = data.steps(unit, data_sets.TRANSITION)
        if rows is not None:
            yield from _segments(writer, rows)


def _segments(writer: SegmentWriter, rows: dict[str, Any]) -> Iterator[Packed]:
    """Yield the segments of a unit's steps."""
    num_steps = len(rows["reward"])
    is_last = np.ones(num_steps, bool)
    is_last[:-1] = (rows["discount"][:-1] == 0) | ~_goes_on(rows)
    for at in range(num_steps):
        step = nested.map(lambda leaf, at=at: leaf[at], rows)
        writer.begin_step(step["observation"], step["action"], log_prob=0.0, value=0.0, version=0)
        terminated = bool(step["discount"] == 0)
        writer.finish_step(
            float(step["reward"]),
            terminated=terminated,
            truncated=bool(is_last[at]) and not terminated,
        )
        if writer.is_full or is_last[at]:
            yield writer.finish(step["next_observation"])


def _goes_on(rows: dict[str, Nested]) -> Any:
    """Return whether each step but the last leads to the observation of the one after it."""
    after = dict(nested.items(rows["next_observation"]))
    found = np.ones(len(rows["reward"]) - 1, bool)
    for path, leaf in nested.items(rows["observation"]):
        same = after[path][:-1] == leaf[1:]
        found &= same.reshape(len(found), -1).all(-1)
    return found
