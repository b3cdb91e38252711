"""A mixture: each batch comes from one of several buffers, drawn by weight."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_buffer.iterable_buffer import IterableBuffer
from bray_buffer.saved_state import generator_state, set_generator_state
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.nested import Nested
from bray_core.protocols import BufferProtocol

_LOOK_S = 0.005
"""How often a mixture that is ahead of its inserts looks for new ones."""
_OWNER_SHIFT = 48
"""Bits of a batch's keys below those that say which buffer they are of; no replay counts so far."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Mixture(IterableBuffer):
    """Pops from several buffers; what is pushed goes to one of them, by its own `push`.

    Of replays that draw by priority the keys of a batch say which of them it came from, so that new
    priorities go to that one.

    Args:
        buffers: Buffers by name, each with its weight of 0 or more; weights need not add up to 1.
            All give batches of one layout.
        seed: Seed of the draws.
        samples_per_insert: Rows drawn per step that is inserted into any of the replays after the
            first batch: a batch waits while more were drawn. Inserts never wait. None draws as fast
            as it is asked. A copy in another process counts anew.

    Raises:
        ConfigError: there is no buffer, a name cannot be a file name, a weight is negative, all are
            0, layouts differ, or `samples_per_insert` is not above 0.
    """

    def __init__(
        self,
        buffers: Mapping[str, tuple[BufferProtocol, float]],
        seed: int = 0,
        samples_per_insert: float | None = None,
    ) -> None:
        if not buffers:
            raise ConfigError("buffers: expected at least one, got none")
        if samples_per_insert is not None and not 0 < samples_per_insert < math.inf:
            raise ConfigError(
                f"samples_per_insert: expected a number above 0, got {samples_per_insert}"
            )
        self._seed = seed
        self._rate = samples_per_insert
        self._held: dict[str, float] = {}
        """Steps that each buffer held, or had held, when they were counted; empty: no batch yet."""
        self._due = 0.0
        """Rows that may be drawn of what is known to be inserted."""
        self._drawn = 0
        self._buffers: dict[str, Any] = {name: buffer for name, (buffer, _) in buffers.items()}
        self._layout = _one_layout(self._buffers)
        self._owners = {name: number << _OWNER_SHIFT for number, name in enumerate(self._buffers)}
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._owed: list[str] = []
        self.set_weights({name: weight for name, (_, weight) in buffers.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the buffers, handles of processes of their own, and what is drawn from each."""
        shares = {name: (buffer, self._shares[name]) for name, buffer in self._buffers.items()}
        return Mixture, (shares, self._seed, self._rate)

    @property
    def layout(self) -> Layout:
        """The packed layout of a batch's rows, as `batch_layout`."""
        return self._layout

    @property
    def batch_layout(self) -> Layout:
        """The packed layout of a batch's rows."""
        return self._layout

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the weights of all buffers, from the next draw on.

        Raises:
            ConfigError: the names differ, a weight is negative, or all are 0.
        """
        if set(weights) != set(self._buffers):
            raise ConfigError(f"weights: expected {sorted(self._buffers)}, got {sorted(weights)}")
        total = sum(weights.values())
        if not math.isfinite(total) or min(weights.values()) < 0 or total <= 0:
            raise ConfigError(f"weights: expected 0 or more and one above 0, got {dict(weights)}")
        shares = {name: weights[name] / total for name in self._buffers}
        with self._lock:
            self._shares = shares
            # What is owed to a buffer that shall give nothing any more is not waited for.
            self._owed = [name for name in self._owed if shares[name]]

    def push(
        self, *segments: Packed | Nested, wait: bool = False, timeout_s: float | None = None
    ) -> int:
        """Refuse: a push goes to one of the buffers, by its own `push`."""
        raise ConfigError(
            f"mixture: push to one of its buffers instead: {', '.join(self._buffers)}"
        )

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[Any]) -> None:
        """Give items of a batch new priorities, in the replay that the batch came from.

        Args:
            keys: Keys of the batch, `[B]`.
            priorities: Priorities `[B]`, finite and 0 or more.

        Raises:
            ConfigError: the buffer of this batch does not draw by priority.
            SpecError: the keys are of no batch of this mixture.
        """
        keys, priorities = np.asarray(keys), np.asarray(priorities)
        owners = keys >> _OWNER_SHIFT
        names = list(self._buffers)
        if len(keys) and not (owners.min() >= 0 and owners.max() < len(names)):
            raise SpecError(f"keys: expected those of batches of {', '.join(names)}")
        for owner in np.unique(owners).tolist():
            buffer = self._buffers[names[owner]]
            if not hasattr(buffer, "update_priorities"):
                raise ConfigError(f"mixture: {names[owner]!r} does not draw by priority")
            own = owners == owner
            buffer.update_priorities(keys[own] - self._owners[names[owner]], priorities[own])

    def pop(self, timeout_s: float | None = None) -> Packed:
        """Return a batch of the drawn buffer.

        Waits for that one, and after a DeadlineError goes on waiting for it at the next call, so
        that the shares of batches are those of the weights however fast each buffer fills.

        Raises:
            DeadlineError: the drawn buffer has no batch within `timeout_s`; the message names it.
            ClosedError: the drawn buffer was closed or is exhausted; the message names it.
        """
        started = time.monotonic()
        while not self._has_due():
            if (left_s := _left(started, timeout_s)) <= 0:
                raise self._ahead(started)
            time.sleep(min(_LOOK_S, left_s))
        name = self._draw()
        try:
            batch: Packed = self._buffers[name].pop(_left_or_none(started, timeout_s))
        except BaseException as error:
            self._explain(name, started, error)
            raise
        return self._counted(batch, name)

    async def pop_async(self, timeout_s: float | None = None) -> Packed:
        """`pop` for a coroutine; if it is cancelled, the next pop waits for the same buffer."""
        started = time.monotonic()
        while not self._has_due():
            if (left_s := _left(started, timeout_s)) <= 0:
                raise self._ahead(started)
            await asyncio.sleep(min(_LOOK_S, left_s))
        name = self._draw()
        try:
            batch: Packed = await self._buffers[name].pop_async(_left_or_none(started, timeout_s))
        except BaseException as error:
            self._explain(name, started, error)
            raise
        return self._counted(batch, name)

    def _has_due(self) -> bool:
        """Return whether another batch may be drawn, for what was inserted."""
        if self._rate is None:
            return True
        with self._lock:
            if not self._held or self._drawn < self._due:
                return True
            self._due += self._rate * self._count_inserted()
            return self._drawn < self._due

    def _counted(self, batch: Packed, name: str) -> Packed:
        """Return what was drawn, its keys telling from where; the first batch is that of what was
        inserted before."""
        if "key" in batch.tree:
            batch.tree["key"][...] += self._owners[name]
        if self._rate is None:
            return batch
        with self._lock:
            if self._held:
                self._drawn += len(batch.block)
            else:
                self._count_inserted()
        return batch

    def _count_inserted(self) -> float:
        """Return the steps that came since this was called last.

        A worker in the place of one that died begins to count anew: of what was inserted before,
        nothing is taken back.
        """
        new = 0.0
        for name, buffer in self._buffers.items():
            figures = buffer.stats()
            held = figures.get("queued", 0.0) + figures.get("dropped", 0.0)
            new += max(0.0, held - self._held.get(name, 0.0))
            self._held[name] = held
        return new

    def _ahead(self, started: float) -> DeadlineError:
        waited_s = time.monotonic() - started
        return DeadlineError(
            f"mixture: no batch after {waited_s:.1f} s: too little was pushed for "
            f"samples_per_insert={self._rate:g}"
        )

    def _explain(self, name: str, started: float, error: BaseException) -> None:
        """Note that no batch came of a draw, and raise a waiting or closing error by name."""
        with self._lock:
            if self._shares[name]:
                self._owed.append(name)
        if isinstance(error, DeadlineError):
            waited_s = time.monotonic() - started
            raise DeadlineError(f"mixture: {name!r} waited {waited_s:.1f} s: {error}") from error
        if isinstance(error, ClosedError):
            raise ClosedError(f"mixture: {name!r}: {error}") from error

    def _draw(self) -> str:
        with self._lock:
            if self._owed:
                return self._owed.pop(0)
            return str(self._random.choice(list(self._shares), p=list(self._shares.values())))

    def set_policy_version(self, version: int) -> None:
        """Tell every buffer which policy version is the newest."""
        for buffer in self._having("set_policy_version").values():
            buffer.set_policy_version(version)

    def stats(self) -> dict[str, float]:
        """Return the figures of every buffer, `name/figure`."""
        return {
            f"{name}/{figure}": value
            for name, buffer in self._buffers.items()
            for figure, value in buffer.stats().items()
        }

    def save(self, path: Path) -> None:
        """Write every buffer that can be saved to a file of its name in the folder `path`."""
        Path(path).mkdir(parents=True, exist_ok=True)
        for name, buffer in self._having("save").items():
            buffer.save(Path(path) / name)

    def load(self, path: Path) -> int:
        """Load what `save` wrote into every buffer; return how many segments that were.

        Raises:
            NotFoundError: a file is missing.
            SpecError: a file is broken, or holds another layout.
        """
        return sum(b.load(Path(path) / name) for name, b in self._having("load").items())

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, the random generator's state and those of all buffers."""
        states = {n: b.state_dict() for n, b in self._having("state_dict").items()}
        with self._lock:
            return {
                "random": generator_state(self._random),
                "weights": dict(self._shares),
                "owed": list(self._owed),
                "buffers": states,
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises:
            SpecError: the state is of another kind of buffer, or of other buffers.
            ConfigError: the weights are of other buffers.
        """
        holders = self._having("load_state_dict")
        if set(state.get("buffers", ())) != set(holders):
            raise SpecError(f"mixture: expected the states of {sorted(holders)}, got {dict(state)}")
        set_generator_state(self._random, state.get("random"))
        self.set_weights(state["weights"])
        self._owed = list(state["owed"])
        for name, buffer in holders.items():
            buffer.load_state_dict(state["buffers"][name])

    def _having(self, method: str) -> dict[str, Any]:
        """Return the buffers that can do something; a handle on Ray cannot do all."""
        return {name: b for name, b in self._buffers.items() if hasattr(b, method)}

    def close(self) -> None:
        """Close every buffer."""
        for buffer in self._buffers.values():
            buffer.close()


def _left(started: float, timeout_s: float | None) -> float:
    """Return the seconds that are left of a wait, at least 0."""
    return math.inf if timeout_s is None else max(0.0, started + timeout_s - time.monotonic())


def _left_or_none(started: float, timeout_s: float | None) -> float | None:
    return None if timeout_s is None else _left(started, timeout_s)


def _one_layout(buffers: Mapping[str, Any]) -> Layout:
    layouts: dict[str, Layout] = {
        name: getattr(buffer, "batch_layout", buffer.layout) for name, buffer in buffers.items()
    }
    first, layout = next(iter(layouts.items()))
    for name, other in layouts.items():
        if not _NAME.fullmatch(name):
            raise ConfigError(f"buffers: expected names that files can have, got {name!r}")
        if other != layout:
            differ = sorted(set(layout.describe()) ^ set(other.describe()))
            raise ConfigError(
                f"buffers: expected batches of one layout, got {layout.id} from {first!r} and "
                f"{other.id} from {name!r}: the leaf {differ[0][0]!r} differs"
            )
    return layout
