"""Running coroutines to their end where an event loop runs already, as in a notebook's cell."""

from __future__ import annotations

import asyncio
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@contextmanager
def outside_running_loop() -> Iterator[None]:
    """Let this thread run another event loop in the block, though one runs already.

    Jupyter calls a cell's code in its loop, where `asyncio.run` is refused. The outer loop stands
    still meanwhile, as it does for any call that computes for long.
    """
    loop = _get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, from code that is no coroutine; also in a notebook.

    Examples:
        >>> async def answer() -> int:
        ...     return 42
        >>> run_to_end(answer())
        42
    """
    with outside_running_loop():
        return asyncio.run(coroutine)
