"""The wait for the next version ends when it comes, and when the trainer has ended or failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bray.training import lockstep
from bray_core.errors import ClosedError, DeadlineError


class Published:
    """A model whose version comes after so many waits."""

    def __init__(self, waits: int) -> None:
        self.version = 4
        self.waits = waits

    async def wait_version(self, version: int, timeout_s: float) -> int:
        assert version == 5
        self.waits -= 1
        if self.waits > 0:
            raise DeadlineError("not yet")
        self.version = version
        return version


class Training:
    """A trainer that goes on, has ended, or has failed."""

    def __init__(
        self, ended: bool = False, error: Exception | None = None, replays: int = 0
    ) -> None:
        self.ended, self.error, self.calls = ended, error, ["made"]
        self.replays = replays

    def progress(self) -> dict[str, float]:
        return {"replays": self.replays}

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def wait(self, timeout_s: float) -> bool:
        if self.error:
            raise self.error
        return self.ended


def wait(trainer: Any, *models: Any) -> None:
    asyncio.run(lockstep.next_versions(trainer, models, [4] * len(models)))


def test_it_waits_for_every_model() -> None:
    models = [Published(1), Published(3)]
    wait(Training(), *models)
    assert [model.version for model in models] == [5, 5]
    wait(Training(error=ValueError("never asked")), *models)  # they are there already


def test_a_trainer_that_has_ended_or_failed_ends_the_wait() -> None:
    with pytest.raises(ClosedError, match="has ended: no further version comes"):
        wait(Training(ended=True), Published(3))
    with pytest.raises(ValueError, match="loss is not finite"):
        wait(Training(error=ValueError("loss is not finite")), Published(3))


def test_training_stops_whatever_happens() -> None:
    async def fail(trainer: Any) -> None:
        async with lockstep.training(trainer, []):
            raise KeyError

    trainer: Any = Training()
    with pytest.raises(KeyError):
        asyncio.run(fail(trainer))
    assert trainer.calls == ["made", "start", "stop"]


def test_a_trainer_that_resumes_has_published_when_training_begins() -> None:
    async def begin(trainer: Any, model: Any) -> int:
        async with lockstep.training(trainer, [model]):
            return int(model.version)

    assert asyncio.run(begin(Training(replays=3), Published(2))) == 5
    assert asyncio.run(begin(Training(), Published(2))) == 4  # it begins, and publishes nothing
