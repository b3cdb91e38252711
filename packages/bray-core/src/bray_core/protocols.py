"""The components as Protocols: the architecture on one page.

    gamecore ──start/tick/end──► actor ──infer──► model
                                   │                ▲
                                   │ push           │ publish
                                   ▼                │
                                 buffer ───pop───► trainer

Trainer, actor and buffer know each other only through these. Each Protocol has two
implementations with the same methods: a plain class in this process (`bray_model.Model`) and a
handle over workers on Ray (`bray_model.remote.RemoteModel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt

from bray_core.layout import Layout, Packed
from bray_core.nested import Nested

Weights = Mapping[str, npt.NDArray[Any]]
"""Array of each parameter by its name."""


class Answer(NamedTuple):
    """Outputs of a model for one request, and the version that computed them."""

    outputs: Nested
    """Output leaves: `[...]` for one row, `[B, ...]` for a batched request."""
    version: int


@runtime_checkable
class ModelProtocol(Protocol):
    """Batched inference of a policy whose weights may change while it serves."""

    @property
    def version(self) -> int:
        """The newest version that this side can answer with; 0 before the first publish."""
        ...

    async def infer(self, *inputs: Nested, batch: bool = False) -> Answer:
        """Answer one row (leaves without batch dimension), or with `batch` rows `[B, ...]`."""
        ...

    async def forward(self, *inputs: Nested, batch: bool = False) -> Nested:
        """`infer` without the version."""
        ...

    def publish(self, weights: Weights) -> int:
        """Make new weights the current version and return its number."""
        ...

    def checkpoint(self) -> Path | None:
        """Write the current version to disk; None where there is no folder for it."""
        ...

    async def wait_version(self, version: int, timeout_s: float | None = None) -> int:
        """Wait until `self.version >= version`; return it. Raises DeadlineError."""
        ...


@runtime_checkable
class BufferProtocol(Protocol):
    """Takes segments, and gives batches that are ready to train on."""

    @property
    def layout(self) -> Layout:
        """The packed layout of one segment."""
        ...

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Add segments; return how many were accepted (the rest is counted as dropped)."""
        ...

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return the next batch, blocks `[B, nbytes]`. Raises DeadlineError or ClosedError."""
        ...

    def stats(self) -> dict[str, float]:
        """Return counters and gauges by name."""
        ...

    def close(self) -> None:
        """Wake every waiter with ClosedError and refuse further use."""
        ...


@runtime_checkable
class ActorProtocol(Protocol):
    """Answers the requests of one session of a gamecore."""

    async def start(self, body: bytes) -> bytes:
        """Answer the session's first request."""
        ...

    async def tick(self, body: bytes) -> bytes:
        """Answer one tick."""
        ...

    async def end(self, body: bytes) -> bytes:
        """Answer the session's last request."""
        ...

    async def abort(self, reason: str) -> None:
        """Free what the session holds: it was lost (connection, idle timeout, drain)."""
        ...


@runtime_checkable
class TrainerProtocol(Protocol):
    """Pops batches, trains, publishes; runs in the background between start and stop."""

    def start(self) -> None:
        """Start, or go on after `stop` or after a pause of its own."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Wait until it pauses or fails; True when it did. Raises the trainer's own error."""
        ...

    def stop(self) -> None:
        """Finish the replay at hand, write a checkpoint and stop."""
        ...

    def progress(self) -> dict[str, float]:
        """Return the latest counters and losses by name."""
        ...
