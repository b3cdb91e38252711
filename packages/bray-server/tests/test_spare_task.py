"""First steps of work in the name of a spare task: results, waits, failures, and what is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextvars import copy_context
from typing import Any

import pytest

from bray_server.sessions.spare_task import SpareTask


@pytest.fixture
async def spare() -> AsyncIterator[SpareTask]:
    made = SpareTask(copy_context())
    await asyncio.sleep(0)
    yield made
    made.dismiss()


class Steps:
    """Work that is stepped through as a coroutine is, but is none of Python's own."""

    def __init__(self, wanted: list[Any]) -> None:
        self.wanted = wanted

    def send(self, value: Any) -> Any:
        if not self.wanted:
            raise StopIteration(f"after {value}")
        return self.wanted.pop(0)

    def close(self) -> None:
        self.wanted = []


async def echo(given: str) -> str:
    return given


async def test_one_piece_of_work_follows_the_other(spare: SpareTask) -> None:
    assert [spare.work.send((echo, word)) for word in ("a", "b")] == ["a", "b"]
    assert not spare.waits


async def test_work_that_is_no_coroutine_is_stepped_through(spare: SpareTask) -> None:
    assert spare.work.send((Steps, [])) == "after None"
    assert not spare.waits
    assert spare.work.send((Steps, ["first", "second"])) == "first"
    assert spare.waits
    assert spare.work.send("news") == "second"
    assert spare.waits


async def test_what_cannot_be_stepped_through_is_told(spare: SpareTask) -> None:
    with pytest.raises(AttributeError, match="'int' object has no attribute 'send'"):
        spare.work.send((int, "7"))


async def test_work_goes_on_after_some_that_failed(spare: SpareTask) -> None:
    async def fail(given: str) -> str:
        raise ValueError(given)

    with pytest.raises(ValueError, match="as asked"):
        spare.work.send((fail, "as asked"))
    spare.renew()
    assert not spare.waits
    assert spare.work.send((echo, "again")) == "again"


async def test_nothing_is_kept_of_work_that_is_done(spare: SpareTask) -> None:
    class Actor:
        async def tick(self, given: Any) -> str:
            return "done"

    actor, given = Actor(), Steps([])
    found = weakref.ref(actor), weakref.ref(given)
    assert spare.work.send((actor.tick, given)) == "done"
    del actor, given
    gc.collect()
    assert [one() for one in found] == [None, None]
