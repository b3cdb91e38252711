"""Segments of the episodes of a Minari data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bray_buffer.sources.source import Rows
from bray_core import nested
from bray_core.errors import ConfigError, MissingExtraError, NotFoundError
from bray_core.nested import Nested


class MinariSource:
    """Episodes of a Minari data set, cut into segments of `length` steps.

    Leaves: observation and action `[T, …]`, reward float32, terminated and truncated `[T]`,
    final_observation (after the last step), length (valid steps; the rest are zeros).

    Args:
        dataset: A `minari.MinariDataset`, or the name of one that is on this machine.
        length: Number of steps in a segment, T.

    Raises:
        ConfigError: `length` is below 1.
        NotFoundError: the data set is not on this machine.
        MissingExtraError: a name is given, and minari is not installed.
    """

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(self, dataset: Any, length: int) -> None:
        if length < 1:
            raise ConfigError(f"length: expected 1 or more, got {length}")
        self._dataset = load_minari(dataset) if isinstance(dataset, str) else dataset
        self._length = length
        self.num_units = len(self._dataset.episode_indices)

    def read(self, units: Sequence[int]) -> Iterator[Rows]:
        """Yield the segments of episodes."""
        for unit in units:
            yield from self._read(unit)

    def _read(self, unit: int) -> Iterator[Rows]:
        index = self._dataset.episode_indices[unit]
        (episode,) = self._dataset.iterate_episodes([index])
        steps = {
            "action": episode.actions,
            "reward": np.asarray(episode.rewards, np.float32),
            "terminated": np.asarray(episode.terminations, bool),
            "truncated": np.asarray(episode.truncations, bool),
        }
        for start in range(0, len(steps["reward"]), self._length):
            yield self._segment(episode.observations, steps, start)

    def _segment(self, observations: Nested, steps: dict[str, Any], start: int) -> Rows:
        count = min(self._length, len(steps["reward"]) - start)
        whole = {"observation": observations, **steps}
        cut = nested.map(lambda leaf: self._padded(leaf[start : start + count]), whole)
        final = nested.map(lambda leaf: np.asarray(leaf[start + count])[None], observations)
        return {**cut, "final_observation": final, "length": np.array([count], np.int32)}

    def _padded(self, leaf: Any) -> Any:
        padded = np.zeros((1, self._length, *leaf.shape[1:]), leaf.dtype)
        padded[0, : len(leaf)] = leaf
        return padded

    def describe(self, unit: int) -> str:
        """Return the data set and the episode."""
        return f"{self._dataset.id} episode {self._dataset.episode_indices[unit]}"


def load_minari(name: str) -> Any:
    """Return a Minari data set that is on this machine.

    Args:
        name: Its name, such as `D4RL/pointmaze/umaze-v2`.

    Raises:
        NotFoundError: it is not on this machine.
        MissingExtraError: minari is not installed.
    """
    try:
        import minari
    except ModuleNotFoundError as error:
        raise MissingExtraError("MinariSource", "bray-buffer", "minari") from error
    try:
        return minari.load_dataset(name)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"dataset: {name!r} is not on this machine: fetch it with `minari download {name}`"
        ) from error
