"""Coroutines that are run to their end within a running event loop."""

from __future__ import annotations

import asyncio

import pytest

from bray_core.process.running_loop import outside_running_loop, run_to_end


async def twice(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


def test_it_runs_without_a_loop() -> None:
    assert run_to_end(twice(3)) == 6


def test_it_runs_within_a_loop_which_goes_on_afterwards() -> None:
    async def cell() -> list[int]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        beside = asyncio.create_task(twice(1))
        found = [run_to_end(twice(3))]
        with pytest.raises(ZeroDivisionError):
            run_to_end(fails())
        assert asyncio.get_running_loop() is loop
        assert asyncio.current_task() is task
        return [*found, await twice(4), await beside]

    assert asyncio.run(cell()) == [6, 8, 2]


async def fails() -> None:
    raise ZeroDivisionError


def test_one_runner_is_used_many_times_within_a_loop() -> None:
    async def cell() -> int:
        with asyncio.Runner() as runner:
            total = 0
            for value in range(3):
                with outside_running_loop():
                    total += runner.run(twice(value))
                await asyncio.sleep(0)
            with outside_running_loop():
                runner.close()
            return total

    assert asyncio.run(cell()) == 6
