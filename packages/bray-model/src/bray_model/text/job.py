"""One submitted request on its way through an engine."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bray_model.text.engine import TokenListener
from bray_model.text.requests import Completion, FinishReason, TextRequest


@dataclass(slots=True, eq=False)
class Job:
    """A request, what it has so far while it waits, and what came of it in the end."""

    request: TextRequest
    listener: TokenListener | None
    seed: int
    """Seed of its stream of random numbers."""
    stop_ids: frozenset[int]
    """Tokens that end it."""
    order: int
    """Jobs are begun in this order; a smaller one keeps its memory longer."""
    group: Hashable = None
    """Jobs of one group share the memory of a common beginning; None shares nothing."""
    row: int = -1
    """Row in which it is decoded; -1: it waits, or is done."""
    kept: TokenColumns | None = None
    """Tokens that were sampled before it had to wait again."""
    num_shared: int = 0
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cancelled: bool = False
    completion: Completion | None = None

    @property
    def cached_part(self) -> tuple[int, ...]:
        """The tokens whose keys and values it needs before the next one is computed."""
        if self.kept is None:
            return self.request.prompt_ids
        return (*self.request.prompt_ids, *self.kept.ids[:-1].tolist())

    @property
    def final_length(self) -> int:
        """Largest number of tokens that it will have, the prompt's included."""
        return len(self.request.prompt_ids) + self.request.sampling.max_tokens


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """Sampled tokens as arrays, `[T]` each."""

    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    raw_logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]

    @classmethod
    def empty(cls) -> TokenColumns:
        """Return no tokens."""
        whole, real = np.empty(0, np.int64), np.empty(0, np.float32)
        return cls(whole, real, real, whole)


class Ending(NamedTuple):
    """A job that is done, and with what."""

    job: Job
    reason: FinishReason
    columns: TokenColumns
    error: str | None = None

    def tell(self) -> None:
        """Make the completion, and tell the listener."""
        job, columns = self.job, self.columns
        job.completion = Completion(
            prompt_ids=job.request.prompt_ids,
            ids=columns.ids,
            logprobs=columns.logprobs,
            raw_logprobs=columns.raw_logprobs,
            versions=columns.versions,
            finish_reason=self.reason,
            top=tuple(job.top),
            error=self.error,
            num_shared=job.num_shared,
        )
        if job.listener is not None:
            job.listener.on_finish(job.completion)
