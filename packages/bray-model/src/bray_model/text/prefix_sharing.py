"""Which rows may lend the keys and values of a common beginning to a job of the same group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch

from bray_model.text.job import Job
from bray_model.text.row_table import RowTable


class SharedPrefix(NamedTuple):
    """A beginning that a row has already."""

    row: int
    """Row that has it; -1: no row has, but `tokens` do."""
    length: int
    """Tokens in common."""
    tokens: Sequence[torch.Tensor] = ()
    """What `RowCache.take` gave of a row that had it."""


class _KeptPrompt(NamedTuple):
    """What is known about a prompt for which jobs of its group wait."""

    version: int
    prompt_ids: tuple[int, ...]
    logits: torch.Tensor
    """Logits after the whole prompt, `[V]`."""
    tokens: Sequence[torch.Tensor] = ()
    """Its keys and values, once no row has them any more."""


class PrefixSharing:
    """Follows the jobs of each group, those that wait and those that are decoded.

    Rows lend only what the current weights have computed: keys and values of other weights would
    be wrong without anybody noticing.

    Args:
        table: The rows.
    """

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._live: dict[Hashable, list[Job]] = {}
        self._waiting: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, _KeptPrompt] = {}

    def queued(self, job: Job) -> None:
        """Take note that a job waits."""
        if job.group is not None:
            self._waiting[job.group] += 1

    def unqueued(self, job: Job) -> None:
        """Take note that a job waits no longer."""
        if job.group is None:
            return
        self._waiting[job.group] -= 1
        if self._waiting[job.group] <= 0:
            del self._waiting[job.group]
            self._kept.pop(job.group, None)

    def began(self, job: Job) -> None:
        """Take note that a job has a row."""
        if job.group is not None:
            self._live.setdefault(job.group, []).append(job)

    def leaving(self, job: Job, take: Callable[[int, int], Sequence[torch.Tensor]]) -> None:
        """Take note that a job gives its row up.

        Where it is the last row of a group of which others wait, the keys and values of the prompt
        are kept for them.

        Args:
            job: The job, which still has its row.
            take: Copies the beginning of a row: row and length.
        """
        jobs = self._live.get(job.group)
        if jobs is None or job not in jobs:
            return  # it never began
        jobs.remove(job)
        if jobs:
            return
        del self._live[job.group]
        kept = self._kept.get(job.group)
        if (
            kept is not None
            and kept.version == self._table.prompt_versions[job.row]
            and kept.prompt_ids == job.request.prompt_ids
        ):
            taken = take(job.row, len(kept.prompt_ids))
            self._kept[job.group] = kept._replace(tokens=taken)

    def forget(self) -> None:
        """Take note that the rows are gone, and the cache with them."""
        self._live.clear()
        self._kept.clear()

    def is_live(self, group: Hashable) -> bool:
        """Return whether a row may have a beginning for this group."""
        return group in self._live or group in self._kept

    def find(self, job: Job, tokens: Sequence[int], version: int) -> SharedPrefix | None:
        """Return the longest beginning of `tokens` that a row of the job's group has."""
        best: SharedPrefix | None = None
        kept = self._kept.get(job.group)
        if kept is not None and kept.tokens and kept.version == version:
            length = _num_common(tokens, kept.prompt_ids)
            best = SharedPrefix(-1, length, [part[:, :length] for part in kept.tokens])
        for other in self._live.get(job.group, ()):
            if self._table.prompt_versions[other.row] != version:
                continue
            length = self._common(other, tokens)
            if length > (best.length if best else 0):
                best = SharedPrefix(other.row, length)
            if length == len(tokens):
                break
        return best

    def _common(self, other: Job, tokens: Sequence[int]) -> int:
        prompt = other.request.prompt_ids
        if len(tokens) <= self._table.lengths[other.row] and tokens == prompt:
            return len(tokens)
        return _num_common(tokens, self._table.cached_ids(other.row))

    def keep_logits(self, job: Job, logits: torch.Tensor, version: int) -> None:
        """Keep the logits `[V]` after a prompt for as long as jobs of its group wait."""
        if self._waiting.get(job.group):
            prompt_ids = job.request.prompt_ids
            self._kept[job.group] = _KeptPrompt(version, prompt_ids, logits)

    def logits(self, job: Job, version: int) -> torch.Tensor | None:
        """Return the logits `[V]` after the job's prompt, where they were kept."""
        kept = self._kept.get(job.group)
        if kept is None or kept.version != version or kept.prompt_ids != job.request.prompt_ids:
            return None
        return kept.logits


def _num_common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    count = 0
    for mine, theirs in zip(tokens, others, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
