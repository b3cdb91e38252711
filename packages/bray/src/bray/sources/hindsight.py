"""Hindsight: what was achieved later in an episode, recorded as if it had been the goal.

Andrychowicz et al. 2017, "Hindsight experience replay" (arXiv 1707.01495), strategy `future`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from bray.sources.goal_rewards import ACHIEVED, DESIRED, GoalRewards
from bray_core import nested
from bray_core.layout import Block, Layout, Packed
from bray_core.nested import Nested

logger = logging.getLogger(__name__)

_MOST_STEPS = 1_000
"""Steps of an episode that are kept for goals; a longer one is relabelled in pieces."""
_ROWS = 256
"""Relabelled transitions of one push."""
_COPIED = ("action", "log_prob", "value", "policy_version")
_STEPS = ("observation", "reward", "terminated", "truncated", *_COPIED)
_MOST_DIFFERENT = 0.1
"""Share of an episode's rewards that may differ from `compute_reward`, as numbers are rounded."""


class HindsightBuffer:
    """A buffer as a runner pushes to it, which adds relabelled transitions when episodes end.

    Segments go on as they come. Those of one episode are put together again: a segment continues
    the one whose final observation it begins with. Were two environments ever to be in the same
    state with the same goal, either continuation would be as true for the one as for the other.
    A relabelled transition is a segment of one step. Not thread-safe: one runner pushes.

    Args:
        buffer: where the segments go.
        rewards: what the environment says of goals.
        count: relabelled transitions for each real one, k.
        seed: seed of the goals that are drawn.
    """

    def __init__(self, buffer: Any, rewards: GoalRewards, count: int, seed: int) -> None:
        self._buffer = buffer
        self._rewards = rewards
        self._count = count
        self._random = np.random.default_rng((seed, 1))  # the runner draws its actions by the seed
        self._open: dict[bytes, list[list[Nested]]] = {}
        self._has_warned = False

    @property
    def layout(self) -> Layout:
        """Layout of a segment."""
        layout: Layout = self._buffer.layout
        return layout

    def push(self, segments: Packed, **options: Any) -> int:
        """Push segments, and the relabelled steps of the episodes that end with them.

        Args:
            segments: one, or rows of them.
            **options: those of the buffer's `push`.

        Returns:
            how many of the segments were taken; relabelled ones are not counted.
        """
        taken: int = self._buffer.push(segments, **options)
        for row in np.atleast_2d(segments.block)[:taken]:
            steps = self._ended(row)
            if steps is not None:
                block = self.relabelled(steps)
                for start in range(0, len(block), _ROWS):
                    rows = Packed(self.layout, block[start : start + _ROWS])
                    self._buffer.push(rows, **options)
        return taken

    def _ended(self, row: Block) -> Nested | None:
        """Return the steps of the episode that ends with a segment; None while it goes on."""
        segment = self.layout.views(row.copy())
        length = int(segment["length"])
        steps = {name: nested.map(lambda leaf: leaf[:length], segment[name]) for name in _STEPS}
        final = nested.map(lambda leaf: leaf[None], segment["final_observation"])
        rest = nested.map(lambda leaf: leaf[1:], steps["observation"])
        steps["next_observation"] = nested.concat([rest, final])
        episode = [*self._taken_up(_key(steps["observation"], 0)), steps]
        ended = bool(steps["terminated"][-1] or steps["truncated"][-1])
        if ended or sum(len(one["reward"]) for one in episode) >= _MOST_STEPS:
            return nested.concat(episode)
        self._open.setdefault(_key(steps["next_observation"], -1), []).append(episode)
        return None

    def _taken_up(self, key: bytes) -> list[Nested]:
        """Return the earlier segments of the episode that goes on here; none where it begins."""
        found = self._open.get(key)
        if not found:
            return []
        episode = found.pop(0)
        if not found:
            del self._open[key]
        return episode

    def relabelled(self, steps: Nested) -> Block:
        """Return k segments of one step for each step of an episode, `[k · T, nbytes]`.

        The goals of step t are what was achieved by k of the steps t, t + 1, …, drawn evenly. A
        step that terminated has none, and is no goal: what it led to is not recorded.

        Args:
            steps: leaves `[T, …]` of the episode, with `next_observation`.
        """
        known = len(steps["reward"]) - int(steps["terminated"][-1])
        following = steps["next_observation"]
        self._compare(steps, known)
        at = np.repeat(np.arange(known), self._count)
        block = self.layout.empty(len(at))
        if not len(at):
            return block
        goals = following[ACHIEVED][self._random.integers(at, known)]
        views = self.layout.views(block)
        _write(views["observation"], steps["observation"], at, goals, (slice(None), 0))
        _write(views["final_observation"], following, at, goals, (slice(None),))
        for name in _COPIED:
            views[name][:, 0] = steps[name][at]
        views["reward"][:, 0] = self._rewards.rewards(following[ACHIEVED][at], goals)
        views["terminated"][:, 0] = self._rewards.terminated(following[ACHIEVED][at], goals)
        views["length"][:] = 1
        views["episode_return"][:] = np.nan
        return block

    def _compare(self, steps: Nested, known: int) -> None:
        """Warn once where the recorded rewards are not those that relabelled steps would have."""
        known -= int(steps["truncated"][-1])  # an environment that raised gave that step none
        if self._has_warned or known < 1:
            return
        achieved, desired = steps["next_observation"][ACHIEVED], steps["observation"][DESIRED]
        wanted = self._rewards.rewards(achieved[:known], desired[:known])
        recorded = steps["reward"][:known]
        differs = ~np.isclose(recorded, wanted, rtol=1e-3, atol=1e-5)
        if differs.mean() <= _MOST_DIFFERENT:
            return
        self._has_warned = True
        first = int(differs.argmax())
        logger.warning(
            "buffer.hindsight: %d of %d rewards of an episode are not those of compute_reward (the "
            "first: recorded %g, computed %g): relabelled steps have the computed ones: let step "
            "return compute_reward's, and no wrapper change it",
            int(differs.sum()),
            known,
            recorded[first],
            wanted[first],
        )


def _write(target: Nested, source: Nested, at: Any, goals: Any, where: Any) -> None:
    """Write the observations `at` of an episode, with other goals."""
    for name, leaf in target.items():
        if name == DESIRED:
            leaf[where] = goals
            continue
        pairs = zip(nested.items(leaf), nested.items(source[name]), strict=True)
        for (_, column), (_, given) in pairs:
            column[where] = given[at]


def _key(observation: Nested, at: int) -> bytes:
    """Return one observation's numbers, for comparison to the last bit."""
    return b"".join(
        np.ascontiguousarray(leaf[at]).tobytes() for _, leaf in nested.items(observation)
    )
