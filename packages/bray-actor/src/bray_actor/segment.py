"""Segments: T consecutive steps of one agent in one episode, written in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import ConfigError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import ArraySpec, Nested

DISCOUNTED_RETURN = "discounted_return"
"""Leaf of the discounted sum of an episode's rewards up to each step."""
_STEP_LEAVES = {
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "log_prob": "float32",
    "value": "float32",
    "policy_version": "int64",
}
_SEGMENT_LEAVES = {"length": "int32", "episode_return": "float32", "episode_length": "int32"}
_NAMES = {
    "observation",
    "action",
    "final_observation",
    "frames",
    DISCOUNTED_RETURN,
    "initial_state",
    *_STEP_LEAVES,
    *_SEGMENT_LEAVES,
}


def segment_spec(
    observation: Nested,
    action: Nested,
    length: int,
    extra: Mapping[str, Nested] | None = None,
    *,
    state_size: int = 0,
    stack: bool = False,
    discounted: bool = False,
) -> Nested:
    """Return the spec of a segment of at most `length` steps.

    Leaves `[T, …]`: observation, action, reward, terminated, truncated, log_prob, value,
    policy_version; steps from `length` on are padding. Leaves of the segment: length,
    final_observation (after the last step: zeros if it terminated), episode_return and
    episode_length (NaN and 0 unless the segment ends its episode), and of a recurrent policy
    initial_state `[S]` (before the first step: zeros if it begins its episode).

    Args:
        observation: Nested `ArraySpec` of one observation.
        action: Nested `ArraySpec` of one action.
        length: T.
        extra: Leaves that the algorithm adds to each step, by name: nested `ArraySpec` of one step.
            `PolicyActor` fills it with the model's outputs of these names.
        state_size: S of a recurrent policy; 0 is none.
        stack: Whether an observation `[C, …]` is a stack of the newest C frames, of which each is
            then stored once: `frames [T + C, …]` instead of observation and final_observation.
            Step t saw the C frames from t on; those from `length` on followed the last step.
            `bray_actor.segment.unstacked` gives both back.
        discounted: Whether there is a leaf `discounted_return [T]` besides: the sum R = γ R + r of
            the episode's rewards up to each step, also those of earlier segments.
    """
    if length < 1:
        raise ConfigError(f"length: expected 1 or more, got {length}")
    if stack and (not isinstance(observation, ArraySpec) or not observation.shape):
        raise ConfigError(
            f"stack: expected an observation [C, …] that is one array, got {observation}"
        )
    if state_size < 0:
        raise ConfigError(f"state_size: expected 0 or more, got {state_size}")
    state = {"initial_state": ArraySpec(np.dtype(np.float32), (state_size,))} if state_size else {}
    taken = sorted(_NAMES & set(extra or {}))
    if taken:
        raise ConfigError(f"extra: {taken} are leaves of every segment: choose other names")

    def per_step(leaf: ArraySpec) -> ArraySpec:
        return ArraySpec(leaf.dtype, (length, *leaf.shape))

    kinds = {**_STEP_LEAVES, **({DISCOUNTED_RETURN: "float32"} if discounted else {})}
    seen: dict[str, Nested] = {
        "observation": nested.map(per_step, observation),
        "final_observation": observation,
    }
    if stack:
        count, *frame = observation.shape
        seen = {"frames": ArraySpec(observation.dtype, (length + count, *frame))}
    return {
        **seen,
        "action": nested.map(per_step, action),
        **state,
        **{name: ArraySpec(np.dtype(kind), (length,)) for name, kind in kinds.items()},
        **{name: ArraySpec(np.dtype(kind), ()) for name, kind in _SEGMENT_LEAVES.items()},
        **{name: nested.map(per_step, leaf) for name, leaf in (extra or {}).items()},
    }


def can_hold(recorded: Nested, given: Nested) -> bool:
    """Return whether leaves of these specs hold what is given: the same, or float64 as float32."""
    columns, leaves = nested.flatten(recorded), nested.flatten(given)
    return columns.keys() == leaves.keys() and all(
        column.shape == leaf.shape
        and (column.dtype == leaf.dtype or (column.dtype, leaf.dtype) == (np.float32, np.float64))
        for column, leaf in zip(columns.values(), leaves.values(), strict=True)
    )


def extra_names(layout: Layout) -> tuple[str, ...]:
    """Return the names of what the algorithm added to a `segment_spec`."""
    return tuple(sorted(set(layout.spec) - _NAMES))


def stack_of(layout: Layout) -> int:
    """Return C of the stacked frames that these segments hold once; 0: they hold observations."""
    frames = layout.spec.get("frames")
    return 0 if frames is None else int(frames.shape[0] - layout.spec["reward"].shape[0])


def observation_spec(layout: Layout) -> Nested:
    """Return the spec of one observation of these segments, nested `ArraySpec`."""
    if stack := stack_of(layout):
        frames = layout.spec["frames"]
        return ArraySpec(frames.dtype, (stack, *frames.shape[1:]))
    return layout.spec["final_observation"]


def unstacked(
    frames: npt.NDArray[Any], length: npt.NDArray[Any], num_steps: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the observations of segments that store each frame once.

    Args:
        frames: `[B, T + C, …]`.
        length: Number of steps of each segment, `[B]`.
        num_steps: T.

    Returns:
        `observation [B, T, C, …]`, a view that must not be written to, and `final_observation
        [B, C, …]`, a copy. What they hold of steps that are padding means nothing.
    """
    stack = frames.shape[1] - num_steps
    windows = np.lib.stride_tricks.sliding_window_view(frames, stack, axis=1)
    windows = np.moveaxis(windows, -1, 2)  # [B, T + 1, …, C] -> [B, T + 1, C, …]
    return windows[:, :num_steps], windows[np.arange(len(frames)), length]


def state_size_of(layout: Layout) -> int:
    """Return S of the recurrent policy whose segments these are; 0 is none."""
    spec = layout.spec.get("initial_state")
    return 0 if spec is None else int(spec.shape[0])


class SegmentWriter:
    """Writes steps into the columns of a packed segment.

    A step begins with the observation and the action taken; its reward and whether the episode
    ended are known one request later.

    Args:
        layout: Packed layout of a `segment_spec`.
        gamma: Discount of the leaf `discounted_return`, if the layout has it.

    Examples:
        >>> number = ArraySpec(np.dtype("float32"), ())
        >>> writer = SegmentWriter(Layout(segment_spec(number, number, 4)))
        >>> writer.begin_step(np.float32(1), np.float32(0), log_prob=-0.7, value=0.0, version=3)
        >>> writer.finish_step(reward=1.0)
        >>> segment = writer.finish(np.float32(2))
        >>> int(segment.tree["length"]), float(segment.tree["final_observation"])
        (1, 2.0)
    """

    def __init__(self, layout: Layout, gamma: float = 0.99) -> None:
        self._layout = layout
        self._capacity: int = layout.spec["reward"].shape[0]
        self._has_state = state_size_of(layout) > 0
        self._stack = stack_of(layout)
        self.extra: tuple[str, ...] = extra_names(layout)
        """Names that `begin_step` needs beside those of every segment."""
        self._has_open_step = False
        self._gamma = gamma
        self._discounted_return = 0.0
        self._begin()

    def _begin(self) -> None:
        self._block = self._layout.empty()
        self._views = self._layout.views(self._block)
        if not self._stack:
            self._observation = list(nested.flatten(self._views["observation"]).items())
        self._action = list(nested.flatten(self._views["action"]).items())
        self._extra = [
            (name, list(nested.flatten(self._views[name]).items())) for name in self.extra
        ]
        self._count = 0

    def __len__(self) -> int:
        """Steps that were begun, the open one included."""
        return self._count + self._has_open_step

    @property
    def is_full(self) -> bool:
        """Whether the segment holds T finished steps."""
        return self._count == self._capacity

    @property
    def has_open_step(self) -> bool:
        """Whether a step waits for its reward."""
        return self._has_open_step

    def begin_step(
        self,
        observation: Nested,
        action: Nested,
        *,
        log_prob: float,
        value: float,
        version: int,
        extra: Mapping[str, Nested] | None = None,
        state: Nested = None,
    ) -> None:
        """Write what is known when the agent acts.

        Args:
            observation: Observation of the agent.
            action: Action that it took.
            log_prob: Log probability of the action under the policy that chose it.
            value: Value of the observation under the same policy.
            version: Version of that policy.
            extra: Extra leaves of the layout by name; others are ignored.
            state: State of a recurrent policy before it acted; the segment's first is kept.

        Raises:
            SpecError: an array does not fit (the message names the leaf), the segment is
                full, or the step before is not finished.
        """
        if self._has_open_step or self.is_full:
            raise SpecError("begin_step: finish the step and cut the full segment first")
        at = self._count
        self._see(observation, at)
        _write("action", self._action, action, at)
        for name, targets in self._extra:
            _write(name, targets, (extra or {}).get(name), at)
        views = self._views
        if self._has_state and at == 0:
            _write("state", [("", views["initial_state"])], state, ...)
        views["log_prob"][at] = log_prob
        views["value"][at] = value
        views["policy_version"][at] = version
        self._has_open_step = True

    def finish_step(
        self, reward: float, *, terminated: bool = False, truncated: bool = False
    ) -> None:
        """Write what the step led to."""
        if not self._has_open_step:
            raise SpecError("finish_step: no step was begun")
        at = self._count
        self._views["reward"][at] = reward
        self._views["terminated"][at] = terminated
        self._views["truncated"][at] = truncated
        if DISCOUNTED_RETURN in self._views:
            self._views[DISCOUNTED_RETURN][at] = self._discount(reward)
            if terminated or truncated:
                self._discounted_return = 0.0
        self._count += 1
        self._has_open_step = False

    def pass_step(self, reward: float) -> None:
        """Take the reward of a step that is not recorded, for the discounted return of later ones.

        Raises:
            SpecError: a segment is under way: it would have a gap.
        """
        if len(self):
            raise SpecError("pass_step: cut the segment first")
        self._discount(reward)

    def _discount(self, reward: float) -> float:
        self._discounted_return = self._gamma * self._discounted_return + reward
        return self._discounted_return

    def finish(
        self,
        final_observation: Nested | None,
        *,
        episode_return: float = math.nan,
        episode_length: int = 0,
    ) -> Packed:
        """Hand over the segment of the finished steps and begin a new one.

        Args:
            final_observation: Observation after the last step; None if the episode terminated.
            episode_return: Sum of the episode's rewards, if the segment ends it.
            episode_length: Number of its steps, if the segment ends it.
        """
        if self._count == 0 or self._has_open_step:
            raise SpecError("finish: expected one or more finished steps and no open one")
        views, block = self._views, self._block
        views["length"][...] = self._count
        views["episode_return"][...] = episode_return
        views["episode_length"][...] = episode_length
        if final_observation is not None:
            self._see_last(final_observation)
        self._begin()
        return Packed(self._layout, block)

    def _see(self, observation: Nested, at: int) -> None:
        if not self._stack:
            _write("observation", self._observation, observation, at)
            return
        self._see_frames("observation", observation, at)

    def _see_last(self, observation: Nested) -> None:
        if not self._stack:
            targets = list(nested.flatten(self._views["final_observation"]).items())
            _write("final_observation", targets, observation, ...)
            return
        self._see_frames("final_observation", observation, self._count)

    def _see_frames(self, name: str, observation: Nested, at: int) -> None:
        seen = self._views["frames"][at : at + self._stack]
        _check_leaf(name, observation, seen)
        frames = np.asarray(observation, seen.dtype)
        if at:  # before anything is written: a tick that failed may be sent again
            check_stack(seen[:-1], frames[:-1])
            seen[-1] = frames[-1]
        else:
            seen[...] = frames

    def discard(self) -> int:
        """Drop the segment and return how many steps are lost."""
        lost = len(self)
        self._has_open_step = False
        self._begin()
        return lost


def _write(name: str, targets: list[tuple[str, Any]], tree: Nested, at: Any) -> None:
    """Write a tree's leaves into row `at` of the columns, refusing what does not fit."""
    if len(targets) == 1 and not isinstance(tree, dict | list | tuple):
        leaves = {targets[0][0]: tree}
    else:
        leaves = dict(islice(nested.items(tree), len(targets) + 1))  # a client may send any number
        if len(leaves) > len(targets):
            path = min(set(leaves) - {path for path, _ in targets})
            raise SpecError(f"{name}/{path}: unexpected; the segment has no such leaf")
    for path, column in targets:
        leaf = leaves.get(path)
        _check_leaf(f"{name}/{path}" if path else name, leaf, column[at])
        column[at] = leaf


def _check_leaf(name: str, leaf: Any, target: Any) -> None:
    """Refuse what does not fit where it is to be written."""
    if leaf is None or np.shape(leaf) != target.shape or not _is_kept(leaf, target.dtype):
        got = "nothing" if leaf is None else f"{np.asarray(leaf).dtype} {np.shape(leaf)}"
        raise SpecError(f"{name}: expected {target.dtype} {target.shape}, got {got}")


def _is_kept(leaf: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a value keeps its kind in a column, so that 0.7 never becomes the action 0."""
    given = getattr(leaf, "dtype", None)
    if given is None:  # Python's own numbers have no width
        if dtype.kind == "f":
            return isinstance(leaf, int | float)
        return isinstance(leaf, int) and dtype.kind in "iub"
    return bool(given == dtype or np.can_cast(given, dtype, "same_kind"))


def check_stack(before: npt.NDArray[Any], now: npt.NDArray[Any]) -> None:
    """Refuse an observation that is no stack of frames.

    Args:
        before: The newest frames of the observation before.
        now: The oldest frames of this one.

    Raises:
        SpecError: the frames differ.
    """
    if not np.array_equal(before, now, equal_nan=now.dtype.kind == "f"):
        raise SpecError(
            "observation: expected stacked frames, each step's moved on by one, as stack=True "
            "says; got others: leave stack at False"
        )
