from __future__ import annotations

import os
import pickle
import signal

import numpy as np
import pytest

from bray_buffer import BufferConfig
from bray_core import nested
from bray_core.errors import DeadlineError, SpecError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SEGMENT = {"x": np.zeros((4, 3), np.float32), "length": np.array(4, np.int32)}


def test_pushed_here_popped_there() -> None:
    from bray_buffer.remote import RemoteBuffer

    buffer = RemoteBuffer("plain", nested.spec(SEGMENT), BufferConfig(batch_steps=8))
    try:
        producer = pickle.loads(pickle.dumps(buffer))
        for number in range(4):
            assert producer.push({**SEGMENT, "x": SEGMENT["x"] + number}) == 1
        producer.flush()
        popped = buffer.pop(10).tree["x"][:, 0, 0].tolist()
        popped += RemoteBuffer.get("plain").pop(10).tree["x"][:, 0, 0].tolist()
        assert sorted(popped) == [0, 1, 2, 3]
        with pytest.raises(DeadlineError, match="0 of 8 steps"):
            buffer.pop(0.1)
        with pytest.raises(SpecError, match="segment/x: expected"):
            producer.push({**SEGMENT, "x": np.zeros(3)})
        assert buffer.push(SEGMENT, wait=True, timeout_s=5) == 1
        stats = buffer.stats()
        assert (stats["pushed"], stats["popped"], stats["lost"]) == (5, 4, 0)
    finally:
        buffer.close()


def test_a_killed_worker_loses_its_share_and_pushes_go_on() -> None:
    from bray_buffer.remote import RemoteBuffer

    buffer = RemoteBuffer("mortal", nested.spec(SEGMENT), BufferConfig(batch_size=2))
    try:
        buffer.push(SEGMENT)
        buffer.flush()
        (pid,) = buffer._pool.pids()
        os.kill(pid, signal.SIGKILL)
        buffer._pool.wait_ready()
        for _ in range(2):
            buffer.push(SEGMENT)
        buffer.flush()
        assert len(buffer.pop(10).block) == 2
        assert buffer.stats()["pushed"] == 2
    finally:
        buffer.close()
