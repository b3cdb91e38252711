"""Figures of replays that nothing is trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from bray_core.errors import ClosedError, DeadlineError
from bray_core.layout import Packed
from bray_trainer import checkpoint

logger = logging.getLogger(__name__)

_POP_TIMEOUT_S = 10.0


class Evaluation:
    """Pops a replay of a buffer of its own and asks for its figures.

    Args:
        buffer: of the replays.
        batches: as `Trainer.handle_eval`.
        figures: as `Trainer.eval`.
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
        random = checkpoint.random_state()
        try:
            found = [self._figures(batch) for batch in self._batches(replay)]
        finally:
            checkpoint.set_random_state(random)
        values: dict[str, list[float]] = {}
        for figures in found:
            for name, value in figures.items():
                values.setdefault(name, []).append(value)
        return {name: sum(several) / len(several) for name, several in values.items()}
