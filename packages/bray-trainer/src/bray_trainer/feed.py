"""What the loop trains on next: a fresh replay, or the last one again."""

from __future__ import annotations

from collections.abc import Mapping

from bray_core import metrics
from bray_core.errors import DeadlineError
from bray_core.layout import Packed
from bray_core.protocols import Buffer
from bray_trainer.config import TrainerConfig

Replay = Packed | dict[str, Packed]
"""One popped batch, or one of each buffer by name."""


class Feed:
    """Pops replays; gives one again, up to `max_reuse` times, while no fresh one is ready."""

    def __init__(self, buffers: Mapping[str, Buffer], config: TrainerConfig) -> None:
        self._buffers = dict(buffers)
        self._config = config
        self._last: Replay | None = None
        self._uses = 0
        self._ready: Replay | None = None
        self.said = ""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a replay; return whether `take` has one. Raises ClosedError."""
        may_reuse = self._last is not None and self._uses < self._config.max_reuse
        try:
            self._ready = self._pop(0.0 if may_reuse else timeout_s)
        except DeadlineError as error:
            self.said = str(error)
            return may_reuse
        return True

    def _pop(self, timeout_s: float) -> Replay:
        (buffer,) = self._buffers.values()
        return buffer.pop(timeout_s)

    def take(self) -> Replay:
        """Return what `wait` found."""
        if self._ready is not None:
            if self._last is not None:
                metrics.record("trainer/reuse", self._uses)
            self._last, self._ready, self._uses = self._ready, None, 0
        assert self._last is not None
        self._uses += 1
        return self._last
