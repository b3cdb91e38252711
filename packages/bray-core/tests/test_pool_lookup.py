"""A pool is looked up by name while its workers are being replaced."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from bray_core.errors import WorkerLostError


def test_a_worker_that_is_being_replaced_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from bray_core.remote import pool

    calls: list[float] = []

    def get_result(ref: Any, timeout_s: float, what: str) -> Any:
        calls.append(timeout_s)
        if len(calls) == 1:
            raise WorkerLostError("the worker died") from ray.exceptions.RayActorError()
        return 3, 1234, "node"

    monkeypatch.setattr(pool, "require_ray", lambda: None)
    monkeypatch.setattr(pool.ray, "get_actor", Mock())
    monkeypatch.setattr(pool, "get_result", get_result)
    assert pool.WorkerPool.get("adders").size == 3
    assert len(calls) == 2
