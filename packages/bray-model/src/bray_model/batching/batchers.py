"""One batcher for each event loop from which a model is asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bray_core.errors import ClosedError
from bray_core.protocols import Answer
from bray_model.batching.batcher import Batcher, Run
from bray_model.batching.executor import BatchRequest
from bray_model.config import ModelConfig


class Batchers:
    """Thread-safe; made when a loop first asks, dropped when it is closed.

    Args:
        run, config, pool, name: as for a `Batcher`.
    """

    def __init__(self, run: Run, config: ModelConfig, pool: ThreadPoolExecutor, name: str) -> None:
        self._run = run
        self._config = config
        self._pool = pool
        self._name = name
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, Batcher] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._by_loop)

    def answer(self, request: BatchRequest) -> Coroutine[Any, Any, Answer]:
        """Answer in a batch with others of this loop; see `Batcher.answer`."""
        batcher = self._by_loop.get(asyncio.get_running_loop()) or self._new()
        return batcher.answer(request)

    def close(self) -> None:
        """Fail those who wait, on any loop, and refuse further requests."""
        with self._lock:
            self._closed = True
            batchers = list(self._by_loop.values())
        for batcher in batchers:
            batcher.close_soon()

    def _new(self) -> Batcher:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise ClosedError(f"model {self._name!r}: closed")
            for other in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[other]
            batcher = Batcher(loop, self._run, self._config, self._pool, self._name)
            self._by_loop[loop] = batcher
        return batcher
