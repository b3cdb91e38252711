"""Steps of a data set, looked at as they are read: one that nothing can learn from is named.

Actions beyond their bounds are clipped to them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bray_core import nested
from bray_core.action_vector import ActionVector
from bray_core.errors import SpecError
from bray_core.nested import Nested
from bray_core.spaces import Spaces

_MAY_BE_NAN = "return"
"""Leaf that is NaN where an episode was cut: nobody knows it."""
_ROUNDING = 1e-3
"""Part of a bound by which an action may lie beyond it and nothing is said."""


class StepCheck:
    """Finds what the spaces of a data set do not have: other shapes, other choices, no numbers.

    Args:
        spaces: what was seen and done.
        spec: nested `ArraySpec`s of a step.
    """

    def __init__(self, spaces: Spaces, spec: Nested) -> None:
        actions = ActionVector(spaces.action, spaces.origin)
        self._is_one_choice = actions.is_one
        self._specs = nested.flatten(spec)
        self._low, self._high = actions.low, actions.high
        greatest = np.asarray(actions.sizes, int) - 1
        self._greatest = {"action": greatest[0] if actions.is_one else greatest}
        """Greatest number of each choice; they begin at 0."""
        for name in ("observation", "next_observation"):
            for path, leaf in nested.items(spaces.observation, name):
                if leaf.kind == "category":
                    self._greatest[path] = np.reshape(np.asarray(leaf.sizes) - 1, leaf.shape)

    def checked(self, steps: Any) -> Nested:
        """Return the steps, leaves `[n, …]` in the types of the spaces.

        A single choice may come as `[n, 1]`.

        Raises:
            SpecError: names the step, the leaf, what was expected and what it holds.
        """
        action = steps["action"]
        if self._is_one_choice and action.shape[1:] == (1,):
            steps = {**steps, "action": action[:, 0]}
        # What was seen next is seen at the step after it, too, and named there.
        for path, leaf in sorted(nested.items(steps), key=lambda one: one[0].startswith("next_")):
            spec = self._specs.get(path)
            if spec is not None and leaf.shape[1:] != spec.shape:
                expected, got = list(spec.shape), list(leaf.shape[1:])
                raise SpecError(f"{path}: expected the shape {expected} of a step, got {got}")
            if leaf.dtype.kind not in "biuf":
                raise SpecError(f"{path}: expected numbers, got {leaf.dtype}")
            if leaf.dtype.kind == "f" and path != _MAY_BE_NAN:
                _refuse(path, leaf, ~np.isfinite(leaf), "finite numbers")
            if spec is not None and spec.dtype.kind in "biu" and leaf.dtype != spec.dtype:
                with np.errstate(invalid="ignore"):  # numbers that are too large
                    is_other = leaf.astype(spec.dtype) != leaf
                _refuse(path, leaf, is_other, f"whole numbers of {spec.dtype}")
            if (greatest := self._greatest.get(path)) is not None:
                # Of an action with reals, too, the choices come first.
                choices = leaf[:, : len(greatest)] if path == "action" and greatest.ndim else leaf
                wrong = (choices < 0) | (choices > greatest)
                _refuse(path, choices, wrong, f"choices from 0 to {greatest}")
        # Numbers that are all whole, say, of a list, stand for reals, too.
        typed = [
            leaf.astype(self._specs[path].dtype, copy=False) if path in self._specs else leaf
            for path, leaf in nested.items(steps)
        ]
        return nested.unflatten(steps, typed)

    def clipped(self, steps: Any) -> tuple[Nested, str]:
        """Return the steps with the reals of their actions within the bounds, as play clips them.

        Returns:
            The steps, and what to say of those that lay beyond; empty where none did.
        """
        if not len(self._low):
            return steps, ""
        first = steps["action"].shape[1] - len(self._low)  # choices come before reals
        reals = steps["action"][:, first:]
        within = np.clip(reals, self._low, self._high).astype(reals.dtype)
        ends = np.abs([self._low, self._high])
        size = np.where(np.isfinite(ends), ends, 1.0).max(0)
        is_beyond = np.abs(reals - within) > _ROUNDING * size
        action = np.concatenate([steps["action"][:, :first], within], 1)
        words = ""
        if is_beyond.any():
            step, at = np.argwhere(is_beyond)[0]
            words = (
                f"step {step}: action: expected {self._low[at]:g} to {self._high[at]:g}, got "
                f"{reals[step, at]:g}: actions beyond the bounds, here of "
                f"{is_beyond.any(1).sum()} of {len(reals)} steps, are clipped to them, as in play. "
                "If they have another scale, rescale them in the data set"
            )
        return {**steps, "action": action}, words


def _refuse(path: str, leaf: Any, is_wrong: Any, expected: str) -> None:
    if is_wrong.any():
        step = int(np.nonzero(is_wrong)[0][0])
        raise SpecError(
            f"step {step}: {path}: expected {expected}, got {leaf[is_wrong][0]:g}: mend the data "
            "set, or leave this out"
        )
