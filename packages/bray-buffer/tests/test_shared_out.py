"""Segments that are shared out to several buffers."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from bray_buffer import Buffer, BufferConfig
from bray_buffer.shared_out import SharedOut
from bray_core import nested
from bray_core.errors import ConfigError

SPEC = nested.spec({"x": np.int64(0)})


def row(number: int) -> dict[str, Any]:
    return {"x": np.array(number)}


def queue(spec: Any = SPEC) -> Buffer:
    return Buffer(spec, BufferConfig(batch_size=1))


def held(buffer: Buffer) -> int:
    return int(buffer.stats()["queued"])


def test_each_segment_goes_to_one_by_shares_from_the_first_on() -> None:
    near, far = queue(), queue()
    both = SharedOut({"near": (near, 3.0), "far": (far, 1.0)})
    assert both.layout == near.layout
    for count in range(1, 13):
        assert both.push(row(count)) == 1
        assert held(near) + held(far) == count
        assert abs(held(near) - 0.75 * count) <= 1
    assert (held(near), held(far)) == (9, 3)
    assert asyncio.run(both.push_async(row(1), row(2), row(3), row(4), wait=True)) == 4
    assert (held(near), held(far)) == (12, 4)
    assert both.stats()["queued"] == 16


class Handle:
    """A buffer that travels, as a handle on Ray does."""

    layout = queue().layout
    pushed: list[int] = []  # noqa: RUF012

    def push(self, *segments: Any, **options: Any) -> int:
        self.pushed.extend(range(len(segments)))
        return len(segments)


def test_a_copy_in_another_process_has_the_same_shares() -> None:
    handles: Any = {"one": (Handle(), 1.0), "two": (Handle(), 1.0)}
    copy = pickle.loads(pickle.dumps(SharedOut(handles)))
    assert copy.push(row(1), row(2)) == 2


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected two or more, got 1"):
        SharedOut({"one": (queue(), 1.0)})
    with pytest.raises(ConfigError, match="two: expected a share above 0, got 0"):
        SharedOut({"one": (queue(), 1.0), "two": (queue(), 0)})
    other = queue(nested.spec({"y": np.int64(0)}))
    with pytest.raises(ConfigError, match="expected segments of one layout, got"):
        SharedOut({"one": (queue(), 1.0), "two": (other, 1.0)})
