"""Calls of a reward: batched, sync or async, with a time limit; what fails fails its samples."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from bray.text.task import TextPrompt
from bray_core import metrics
from bray_core.errors import BrayError
from bray_core.process.raised_words import raised_words

logger = logging.getLogger(__name__)

Rewards = Callable[[Sequence[TextPrompt], Sequence[str]], Any]
"""Prompts and completions → a number each, or an awaitable of them."""


class GuardedReward:
    """A reward function whose failures cost the samples that failed, and nothing else.

    Where a call for many samples raises, each of them is asked for by itself, so that one bad
    answer does not cost its neighbours. A call that takes too long fails all of its samples; its
    thread is left alone.

    Args:
        function: the reward.
        timeout_s: longest time of one call.
    """

    def __init__(self, function: Rewards, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self.failed = 0
        """Samples that failed since this was made."""
        self._has_worked = False
        self._last_error = ""

    def __call__(
        self, prompts: Sequence[TextPrompt], completions: Sequence[str]
    ) -> list[float | None]:
        """Return the reward of each answer; None where it failed.

        Raises:
            BrayError: every sample of the first call failed, as a wrong function does.
        """
        if not prompts:
            return []
        found = self._asked(prompts, completions)
        if found is None and len(prompts) > 1:
            singles = [
                self._asked([prompt], [text])
                for prompt, text in zip(prompts, completions, strict=True)
            ]
            found = [math.nan if one is None else one[0] for one in singles]
        found = [math.nan] * len(prompts) if found is None else found
        rewards = [value if math.isfinite(value) else None for value in found]
        failed = sum(value is None for value in rewards)
        if failed:
            self.failed += failed
            metrics.record("text/failed_rewards", failed, kind="count")
        self._has_worked |= failed < len(rewards)
        if not self._has_worked:
            raise BrayError(
                f"reward: failed for all of the first {len(prompts)} answers: "
                f"{self._last_error or 'it returned NaN'}"
            )
        return rewards

    def _asked(
        self, prompts: Sequence[TextPrompt], completions: Sequence[str]
    ) -> list[float] | None:
        """Return what the function said; None where it raised or took too long."""
        answer: list[Any] = []
        error: list[BaseException] = []

        def ask() -> None:
            try:
                found = self._function(prompts, completions)
                answer.append(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)
            except Exception as failed:  # noqa: BLE001 - a user's function: it fails its samples
                error.append(failed)

        thread = threading.Thread(target=ask, name="reward", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if thread.is_alive():
            self._tell(f"took longer than {self._timeout_s:g} s")
            return [math.nan] * len(prompts)  # asking once more would take as long
        if error:
            self._tell(raised_words(error[0]))
            return None
        return self._numbers(answer[0], len(prompts))

    def _numbers(self, found: Any, count: int) -> list[float]:
        """Return the numbers that a function returned.

        Raises:
            BrayError: it returned something else, which is a fault of the function.
        """
        try:
            listed = list(found)
        except TypeError:
            listed = [found]
        if len(listed) != count or not all(isinstance(one, Real) for one in listed):
            raise BrayError(
                f"reward: expected a list of {count} numbers, one for each answer, got "
                f"{found!r:.200}"
            )
        return [float(one) for one in listed]

    def _tell(self, why: str) -> None:
        if why != self._last_error:  # once for each kind of failure
            logger.warning("reward: failed, its samples are left out: %s", why)
        self._last_error = why


async def _awaited(found: Any) -> Any:
    return await found
