"""A replay that begins with a data set: recorded steps as the segments that runners push."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bray.sources import data_sets
from bray_actor.segment import SegmentWriter
from bray_buffer import ReplayBuffer
from bray_core import nested
from bray_core.errors import ConfigError
from bray_core.nested import Nested
from bray_core.spaces import Spaces

logger = logging.getLogger(__name__)


def fill_replay(buffer: Any, where: str, spaces: Spaces, gamma: float) -> int:
    """Push the steps of a data set into a replay that is empty; return how many.

    A replay that was restored already holds them, and is left as it is.

    Args:
        buffer: the replay, of this process.
        where: the data set, see `data_sets.open_data_set`; empty is none.
        spaces: what was seen and done.
        gamma: discount of the segments' returns, where they have some.

    Raises:
        ConfigError: the replay is in other processes, or there is no such data set.
    """
    if not where:
        return 0
    if not isinstance(buffer, ReplayBuffer):
        raise ConfigError(
            f"buffer.begin_with: expected a local run, whose replay is in this process, got "
            f"{where} on Ray: train with --runtime local, or begin from weights (model.begin_from)"
        )
    if buffer.stats()["queued"]:
        return 0
    data = data_sets.open_data_set(where, spaces, gamma=1.0)
    writer, count = SegmentWriter(buffer.layout, gamma), 0
    for unit in range(data.num_units):
        rows = data.steps(unit, data_sets.TRANSITION)
        if rows is not None:
            _push(buffer, writer, rows)
            count += len(rows["reward"])
    logger.info("the replay begins with %d steps of %s", count, where)
    return count


def _push(buffer: ReplayBuffer, writer: SegmentWriter, rows: dict[str, Any]) -> None:
    """Push the steps of a unit, cut where a segment is full and where a step is not the next."""
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
            buffer.push(writer.finish(step["next_observation"]))


def _goes_on(rows: dict[str, Nested]) -> Any:
    """Return whether each step but the last leads to the observation of the one after it."""
    after = dict(nested.items(rows["next_observation"]))
    found = np.ones(len(rows["reward"]) - 1, bool)
    for path, leaf in nested.items(rows["observation"]):
        same = after[path][:-1] == leaf[1:]
        found &= same.reshape(len(found), -1).all(-1)
    return found
