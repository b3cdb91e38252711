"""The segments that N environments are filling, written as columns and pushed when complete."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_actor.episodes import PlayedEpisode, record_metrics
from bray_actor.runners.segment_columns import StackedFrames, WholeObservations
from bray_actor.segment import DISCOUNTED_RETURN, extra_names, stack_of, state_size_of
from bray_core import metrics, nested
from bray_core.errors import SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.protocols import BufferProtocol

PUSH_TIMEOUT_S = 900.0
"""Longest wait for a full buffer: as long as a trainer may evaluate."""
_KEPT_EPISODES = 10_000

Rows = npt.NDArray[np.int64]
"""Numbers of environments, `[n]`."""
Column = npt.NDArray[Any]


class OpenSegments:
    """One open segment of each of N environments, and the sums of their episodes.

    Args:
        buffer: Buffer that complete segments are pushed to; its layout has T and the extra leaves.
        num_envs: Number of environments, N.
        gamma: Discount of the leaf `discounted_return`, if the layout has it.
    """

    def __init__(self, buffer: BufferProtocol, num_envs: int, gamma: float = 0.99) -> None:
        self._buffer = buffer
        self._layout: Layout = buffer.layout
        self._length: int = self._layout.spec["reward"].shape[0]
        self._num_envs = num_envs
        self._blocks = self._layout.empty(num_envs)
        views = self._layout.views(self._blocks)
        self._views = views
        stack = stack_of(self._layout)
        self._seen = StackedFrames(views, stack) if stack else WholeObservations(views)
        self._extra = [
            (name, list(nested.flatten(views[name]).items())) for name in extra_names(self._layout)
        ]
        self.has_state = state_size_of(self._layout) > 0
        """Whether segments begin with the state of a recurrent policy."""
        self.steps: Rows = np.zeros(num_envs, np.int64)
        """Steps of each open segment, `[N]`."""
        self._returns = np.zeros(num_envs)
        self._gamma = gamma
        self._discounted = np.zeros(num_envs)
        self._episode_lengths = np.zeros(num_envs, np.int64)
        self._ended: deque[PlayedEpisode] = deque(maxlen=_KEPT_EPISODES)
        self._metrics: dict[int, dict[str, float]] = {}
        """What was said of episodes whose last segment is not pushed yet, by environment."""

    # Steps.

    def begin_steps(
        self,
        acting: Rows,
        observation: Nested,
        state: Column,
        action: Column,
        log_prob: Column,
        outputs: Nested,
        version: int,
    ) -> None:
        """Write the first half of a step of those that act.

        Args:
            acting: Environments that act.
            observation: Observations of all, leaves `[N, …]`.
            state: States of a recurrent policy before it acted, `[N, S]`.
            action: Actions of all, `[N, …]`.
            log_prob: Their log probabilities, `[N]`.
            outputs: Outputs of the model for all; value and extra leaves are taken from it.
            version: Version of the model.

        Raises:
            SpecError: an output is missing or has another shape; the message names it.
        """
        at, views = self.steps[acting], self._views
        where = (acting, at)
        self._seen.begin(acting, at, observation)
        views["action"][where] = action[acting]
        views["log_prob"][where] = log_prob[acting]
        views["value"][where] = self.checked("value", outputs.get("value"), views["value"])[acting]
        views["policy_version"][where] = version
        if self.has_state:
            first = acting[at == 0]
            views["initial_state"][first] = state[first]
        for name, columns in self._extra:
            leaves = nested.flatten(outputs.get(name))
            for path, column in columns:
                whole = f"{name}/{path}" if path else name
                leaf = self.checked(whole, leaves.get(path), column)
                column[where] = leaf[acting]

    def checked(self, name: str, leaf: Any, column: Column) -> Column:
        """Return an output of the model `[N, …]` that fits a column `[N, T, …]`.

        Raises:
            SpecError: the output is missing or has another shape.
        """
        wanted = (self._num_envs, *column.shape[2:])
        if np.shape(leaf) != wanted or not hasattr(leaf, "dtype"):
            got = "nothing" if leaf is None else np.shape(leaf)
            raise SpecError(f"model output {name}: expected {column.dtype} {wanted}, got {got}")
        return leaf  # type: ignore[no-any-return]

    def add_returns(self, acting: Rows, reward: Column) -> None:
        """Add the environments' own rewards `[N]` to the returns of the episodes."""
        self._returns[acting] += reward[acting]

    def finish_steps(
        self, acting: Rows, reward: Column, terminated: Column, truncated: Column
    ) -> None:
        """Write the second half of a step of those that acted."""
        where = (acting, self.steps[acting])
        self._views["reward"][where] = reward[acting]
        self._views["terminated"][where] = terminated[acting]
        self._views["truncated"][where] = truncated[acting]
        if DISCOUNTED_RETURN in self._views:
            sums = self._gamma * self._discounted[acting] + reward[acting]
            self._views[DISCOUNTED_RETURN][where] = sums
            self._discounted[acting] = np.where((terminated | truncated)[acting], 0.0, sums)
        self.steps[acting] += 1
        self._episode_lengths[acting] += 1

    def note_metrics(self, row: int, found: dict[str, float]) -> None:
        """Note what an environment said of its episode, which has just ended."""
        if found:
            self._metrics[row] = found

    # Segments.

    def complete(self, acting: Rows, over: npt.NDArray[np.bool_]) -> Rows:
        """Return those whose segment is full, or whose episode is over `[N]`."""
        complete: Rows = acting[(self.steps[acting] == self._length) | over[acting]]
        return complete

    def write_final(self, rows: Rows, observation: Nested) -> None:
        """Write the observations after the last step of some, given those of all."""
        seen = nested.map(lambda leaf: leaf[rows], observation)
        self._seen.finish(rows, self.steps[rows], seen)

    def write_final_of(self, row: int, observation: Nested) -> None:
        """Write the observation after the last step of one, given its own."""
        rows = np.array([row])
        seen = nested.map(lambda leaf: leaf[None], observation)
        self._seen.finish(rows, self.steps[rows], seen)

    def push(self, rows: Rows, ended: npt.NDArray[np.bool_]) -> None:
        """Push the segments of some, and begin new ones.

        Args:
            rows: Environments whose segments are complete.
            ended: Which episodes ended with their segment, `[N]`.

        Raises:
            DeadlineError: the buffer had no room in time.
        """
        views = self._views
        views["length"][rows] = self.steps[rows]
        views["episode_return"][rows] = np.where(ended[rows], self._returns[rows], math.nan)
        views["episode_length"][rows] = np.where(ended[rows], self._episode_lengths[rows], 0)
        # A fancy index copies: the rows can be overwritten at once.
        segments = Packed(self._layout, self._blocks[rows])
        self._buffer.push(segments, wait=True, timeout_s=PUSH_TIMEOUT_S)
        self._record(rows[ended[rows]])
        self.steps[rows] = 0
        # Padding of the next segments is zeros.
        self._blocks[rows] = 0

    def _record(self, ended: Rows) -> None:
        returns, lengths = self._returns[ended], self._episode_lengths[ended]
        for row, episode_return, length in zip(
            ended.tolist(), returns.tolist(), lengths.tolist(), strict=True
        ):
            metrics.record("actor/episode_return", episode_return)
            metrics.record("actor/episode_length", float(length))
            found = self._metrics.pop(row, {})
            record_metrics(found, "environment: info: metrics")
            self._ended.append(PlayedEpisode(episode_return, length, found))
        metrics.record("actor/episodes", len(ended), kind="count")
        self._returns[ended] = 0.0
        self._episode_lengths[ended] = 0

    def take_episodes(self) -> list[PlayedEpisode]:
        """Return the episodes that ended since the last call (the newest 10,000)."""
        ended = list(self._ended)
        self._ended.clear()
        return ended
