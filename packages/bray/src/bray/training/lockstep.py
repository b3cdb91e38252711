"""On-policy rounds: games of one version, one replay, the next version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bray_core.errors import ClosedError, DeadlineError
from bray_core.protocols import ModelProtocol, TrainerProtocol

_LOOK_S = 1.0


@asynccontextmanager
async def training(
    trainer: TrainerProtocol, models: Sequence[ModelProtocol]
) -> AsyncIterator[None]:
    """Start a trainer that publishes to these models, and stop it at the end of the `async with`.

    One that resumes publishes what it resumed with: that is waited for.
    """
    versions = [model.version for model in models]
    trainer.start()
    try:
        if trainer.progress()["replays"]:
            await next_versions(trainer, models, versions)
        yield
    finally:
        trainer.stop()


async def next_versions(
    trainer: TrainerProtocol, models: Sequence[ModelProtocol], versions: Sequence[int]
) -> None:
    """Wait until each model answers with a later version than the given one.

    A trainer on Ray whose process dies is replaced meanwhile; its successor publishes what it
    resumed with, so the wait ends, and the replay at hand is lost.

    Raises:
        ClosedError: the trainer has ended, so no version will come.
        Exception: what the trainer failed with.
    """
    for model, version in zip(models, versions, strict=True):
        while model.version <= version:
            try:
                await model.wait_version(version + 1, _LOOK_S)
            except DeadlineError:
                if await asyncio.to_thread(trainer.wait, 0.0):
                    raise ClosedError("trainer: has ended: no further version comes") from None
