"""Evaluation on replays that are not trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from bray_core.errors import ClosedError, DeadlineError
from bray_core.layout import Packed
from bray_trainer.checkpoints.random_state import random_state, set_random_state

logger = logging.getLogger(__name__)

_POP_TIMEOUT_S = 10.0


class Evaluation:
    """Pops replays of a buffer of its own and takes the means of their figures.

    Args:
        buffer: Buffer of the replays.
        batches: Function that turns a replay into batches: `Trainer.handle_eval`.
        figures: Function that measures a batch: `Trainer.eval`.
    """

    def __init__(
        self,
        buffer: Any,
        batches: Callable[[Packed], Iterable[Any]],
        figures: Callable[[Any], dict[str, float]],
    ) -> None:
        self._buffer = buffer
        self._batches = batches
        self._figures = figures

    def run(self) -> dict[str, float]:
        """Return the means over one replay's batches; none where there is no replay.

        The global generators of random numbers are left as they were.
        """
        try:
            replay = self._buffer.pop(_POP_TIMEOUT_S)
        except (DeadlineError, ClosedError) as error:
            logger.warning("trainer: no evaluation: %s", error)
            return {}
        random = random_state()
        try:
            found = [self._figures(batch) for batch in self._batches(replay)]
        finally:
            set_random_state(random)
        values: dict[str, list[float]] = {}
        for figures in found:
            for name, value in figures.items():
                values.setdefault(name, []).append(value)
        return {name: sum(several) / len(several) for name, several in values.items()}
