"""Replays for the training loop: popped from the buffers ahead of time, or used once more."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from bray_core import metrics
from bray_core.errors import BrayError, DeadlineError
from bray_core.layout import Packed
from bray_core.protocols import BufferProtocol
from bray_trainer.arguments import UNNAMED
from bray_trainer.background_thread import BackgroundThread
from bray_trainer.config import TrainerConfig

Replay = Packed | dict[str, Packed]
"""One popped batch, or one of each buffer by name."""

_SLICE_S = 0.1
"""Length of one pop: what a checkpoint waits for at most while no replay is ready."""
_CLOSE_TIMEOUT_S = 60.0


class Prefetcher:
    """Pops replays in a thread of its own while the loop trains on those before.

    Up to `prefetch` of them wait; a replay is given again, up to `max_reuse` times in all, only
    while the buffer has no fresh one. What was popped and not taken stays for the next `open`.

    Args:
        buffers: Sources of the replays by name; a single buffer has the empty name. With
            several, the batches of some wait for the others.
        move: Function that brings a popped batch to the device, in the same thread.
        config: Gives `prefetch` and `max_reuse`.
    """

    def __init__(
        self,
        buffers: Mapping[str, BufferProtocol],
        move: Callable[[Packed], Packed],
        config: TrainerConfig,
    ) -> None:
        self._buffers = dict(buffers)
        self._move = move
        self._config = config
        self.reason = ""
        """Why there was no replay at the last try."""
        self._parts: dict[str, Packed] = {}
        """Batches of some buffers; the others have none yet."""
        self._changed = threading.Condition()
        self._ready: deque[Replay] = deque()
        self._last: Replay | None = None
        self._uses = 0
        self._wanted: int | None = 0
        self._may_reuse = False
        self._is_dry = False
        self._is_popping = False
        self._is_held = False
        self._is_closing = False
        self._error: Exception | None = None
        self._thread = BackgroundThread("trainer-prefetch")

    def open(self, max_replays: int | None = None) -> None:
        """Begin to pop; at most `max_replays`, each used once, or without end."""
        with self._changed:
            self._wanted = None if max_replays is None else max_replays - len(self._ready)
            self._may_reuse = max_replays is None and self._config.max_reuse > 1
            self._is_closing = self._is_dry = False
            self._error = None
        if self._config.prefetch:
            self._thread.start(self._pop_ahead)

    def close(self) -> None:
        """End the thread; what it popped is kept."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if not self._thread.is_idle(_CLOSE_TIMEOUT_S):
            raise DeadlineError(f"buffer: a pop took longer than {_CLOSE_TIMEOUT_S:g} s")

    def wait(self, timeout_s: float) -> bool:
        """Wait for a replay; return whether `take` has one.

        Raises:
            Exception: what the buffer's `pop` failed with, such as ClosedError.
        """
        if not self._config.prefetch:
            return self._pop_here(timeout_s)
        with self._changed:
            if not self._changed.wait_for(self._has_answer, timeout_s):
                # At least one try of the buffer is awaited, however short the time.
                self._changed.wait_for(lambda: self._has_answer() or self._is_dry)
            if self._error is not None and not self._ready:
                raise self._error
            return bool(self._ready) or self._can_reuse()

    @property
    def num_ready(self) -> int:
        """Number of replays that were popped and not yet taken."""
        return len(self._ready)

    def _has_answer(self) -> bool:
        ended = self._error is not None or self._is_closing
        return bool(self._ready) or ended or (self._is_dry and self._can_reuse())

    def _can_reuse(self) -> bool:
        return self._may_reuse and self._last is not None and self._uses < self._config.max_reuse

    def _pop_here(self, timeout_s: float) -> bool:
        try:
            if not self._ready:
                self._ready.append(self._pop(0.0 if self._can_reuse() else timeout_s))
        except DeadlineError as error:
            self.reason = str(error)
            return self._can_reuse()
        return True

    def take(self) -> Replay:
        """Return what `wait` found: a fresh replay if there is any."""
        with self._changed:
            replay = self._ready.popleft() if self._ready else self._last
            assert replay is not None
            if replay is self._last:
                self._uses += 1
                return replay
            if self._uses:
                metrics.record("trainer/reuse", self._uses)
            self._uses = 1
            # Kept only for reuse: it may be a slot that the buffer waits for.
            self._last = replay if self._may_reuse else None
            self._is_dry = False  # there is room for another
            self._changed.notify_all()
        return replay

    # The thread.

    def _pop_ahead(self) -> None:
        timeout_s = 0.0
        while self._begin():
            replay, error = None, None
            try:
                replay = self._pop(timeout_s)
            except DeadlineError as dry:
                self.reason = str(dry)
            except Exception as failed:  # noqa: BLE001 - raised to the loop
                error = failed
            # A first try does not wait, so that the loop knows soon whether to reuse.
            timeout_s = 0.0 if replay is not None else _SLICE_S
            if self._end(replay, error):
                return

    def _begin(self) -> bool:
        """Wait until a replay is wanted; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._has_room())
            self._is_popping = not self._is_closing
            return self._is_popping

    def _has_room(self) -> bool:
        is_wanted = self._wanted is None or self._wanted > 0
        return is_wanted and not self._is_held and len(self._ready) < self._config.prefetch

    def _end(self, replay: Replay | None, error: Exception | None) -> bool:
        """Hand over what a try brought; return whether it was the last one."""
        with self._changed:
            self._is_popping = False
            self._error = error
            self._is_dry = replay is None
            if replay is not None:
                self._ready.append(replay)
                self._wanted = None if self._wanted is None else self._wanted - 1
            self._changed.notify_all()
        return error is not None

    def _pop(self, timeout_s: float) -> Replay:
        """Return a batch, or one of each buffer by name, on the device.

        Raises:
            DeadlineError: there is none in time; what some buffers gave is kept.
            ClosedError: a buffer was closed.
        """
        deadline = time.monotonic() + timeout_s
        for name, buffer in self._buffers.items():
            if name not in self._parts:
                self._parts[name] = buffer.pop(max(0.0, deadline - time.monotonic()))
        parts, self._parts = self._parts, {}
        return self._moved(parts)

    def _moved(self, parts: Mapping[str, Packed]) -> Replay:
        moved = {name: self._move(packed) for name, packed in parts.items()}
        return moved[UNNAMED] if UNNAMED in self._buffers else moved

    # Checkpoints.

    @contextmanager
    def held(self) -> Iterator[None]:
        """Pop nothing meanwhile, so that buffers and prefetched replays are of one moment."""
        with self._changed:
            self._is_held = True
            self._changed.wait_for(lambda: not self._is_popping)
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()

    def state_dict(self) -> dict[str, Any]:
        """Return what was popped and may still be trained on, while it is `held`."""
        last = self._last if self._can_reuse() else None
        return {
            "ready": [_encode(replay) for replay in self._ready],
            "last": None if last is None else _encode(last),
            "uses": self._uses,
            "parts": _encode(self._parts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            BrayError: a buffer has another layout now, or none at all.
        """
        self._ready = deque(self._moved(self._decode(parts)) for parts in state["ready"])
        self._last = None if state["last"] is None else self._moved(self._decode(state["last"]))
        self._uses = state["uses"]
        self._parts = self._decode(state["parts"])

    def _decode(self, state: Mapping[str, Any]) -> dict[str, Packed]:
        return {name: self._packed(name, part) for name, part in state.items()}

    def _packed(self, name: str, part: Mapping[str, Any]) -> Packed:
        buffer = self._buffers.get(name)
        # What a buffer adds to its rows, such as importance weights, is in `batch_layout` only.
        for layout in (getattr(buffer, "batch_layout", None), getattr(buffer, "layout", None)):
            if layout is not None and layout.id == part["layout"]:
                return Packed(layout, part["block"].numpy())
        raise BrayError(
            f"buffer{f' {name!r}' if name else ''}: holds no batches of layout {part['layout']}"
        )


def _encode(replay: Replay) -> dict[str, Any]:
    """Return a replay's batches by name, as tensors and strings."""
    parts = {UNNAMED: replay} if isinstance(replay, Packed) else replay
    return {
        name: {"layout": part.layout.id, "block": torch.from_numpy(part.block.copy())}
        for name, part in parts.items()
    }
