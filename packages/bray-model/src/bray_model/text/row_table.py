"""State of the rows that are being decoded, as arrays over the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bray_model.text.job import Job, TokenColumns
from bray_model.text.sampling.sampler import Sampled, SamplingRows

_LARGEST = 2**62
"""Larger numbers mean the same: requests may bring any integer, the arrays hold 64 bits."""
_COLUMNS = {
    "lengths": np.int64,
    "next_ids": np.int64,
    "produced": np.int64,
    "max_tokens": np.int64,
    "prompt_versions": np.int64,
    "heeds_eos": np.bool_,
    "watched": np.bool_,
    "adjusted": np.bool_,
    "seeds": np.uint64,
    "temperature": np.float64,
    "top_k": np.int64,
    "top_p": np.float64,
    "min_p": np.float64,
}


class RowTable:
    """Arrays `[max_rows]` of which the first `count` are live, and the job of each.

    Args:
        max_rows: Largest number of rows.
        context_length: Largest number of tokens of prompt and completion together.
    """

    def __init__(self, max_rows: int, context_length: int) -> None:
        self._context_length = context_length
        self.jobs: list[Job] = []
        self.lengths: npt.NDArray[np.int64]
        """Tokens in the cache."""
        self.next_ids: npt.NDArray[np.int64]
        """Token that is computed next."""
        self.produced: npt.NDArray[np.int64]
        """Tokens sampled."""
        self.max_tokens: npt.NDArray[np.int64]
        """Tokens with which it is at its end: it asked for no more, or the context has none."""
        self.prompt_versions: npt.NDArray[np.int64]
        """Version that computed everything in the cache so far; -1: several did."""
        self.heeds_eos: npt.NDArray[np.bool_]
        """Whether the model's own end-of-text tokens end it."""
        self.watched: npt.NDArray[np.bool_]
        """Whether each token is looked at: by a listener, for stop ids, for top tokens."""
        self.adjusted: npt.NDArray[np.bool_]
        """Whether its request adds something to the logits."""
        self.seeds: npt.NDArray[np.uint64]
        self.temperature: npt.NDArray[np.float64]
        self.top_k: npt.NDArray[np.int64]
        self.top_p: npt.NDArray[np.float64]
        self.min_p: npt.NDArray[np.float64]
        for name, dtype in _COLUMNS.items():
            setattr(self, name, np.zeros(max_rows, dtype))
        self._ids = np.zeros((max_rows, 16), np.int64)
        self._logprobs = np.zeros((max_rows, 16), np.float32)
        self._raw = np.zeros((max_rows, 16), np.float32)
        self._versions = np.zeros((max_rows, 16), np.int64)

    @property
    def count(self) -> int:
        """Number of live rows."""
        return len(self.jobs)

    def sampling(self, rows: npt.NDArray[np.int64]) -> SamplingRows:
        """Return how rows are sampled."""
        return SamplingRows(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows]
        )

    def add(self, job: Job, length: int, version: int) -> int:
        """Add a job behind the others and return its row; its cache holds `length` tokens."""
        row = job.row = self.count
        sampling = job.request.sampling
        self.jobs.append(job)
        self.lengths[row] = length
        room = self._context_length - len(job.request.prompt_ids)
        self.max_tokens[row] = min(sampling.max_tokens, room)
        self.prompt_versions[row] = version
        self.heeds_eos[row] = not sampling.ignore_eos
        self.watched[row] = bool(job.listener or sampling.stop_ids or sampling.logprobs)
        self.adjusted[row] = sampling.is_adjusted
        self.seeds[row] = job.seed
        self.temperature[row] = sampling.temperature
        self.top_k[row] = min(sampling.top_k, _LARGEST)
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.produced[row] = 0
        if job.kept is not None:
            self._restore(row, job.kept)
            job.kept = None
        return row

    def _restore(self, row: int, kept: TokenColumns) -> None:
        count = len(kept.ids)
        self._reserve(count)
        self.produced[row] = count
        if count:
            self.next_ids[row] = kept.ids[-1]
        self._ids[row, :count] = kept.ids
        self._logprobs[row, :count] = kept.logprobs
        self._raw[row, :count] = kept.raw_logprobs
        self._versions[row, :count] = kept.versions

    def record(self, rows: npt.NDArray[np.int64], sampled: Sampled, version: int) -> None:
        """Append one sampled token to each of the rows."""
        produced = self.produced[rows]
        self._reserve(int(produced.max()) + 1)
        self._ids[rows, produced] = sampled.ids
        self._logprobs[rows, produced] = sampled.logprobs
        self._raw[rows, produced] = sampled.raw_logprobs
        self._versions[rows, produced] = version
        self.next_ids[rows] = sampled.ids
        self.produced[rows] += 1

    def columns(self, row: int) -> TokenColumns:
        """Return a copy of what a row has sampled."""
        count = int(self.produced[row])
        return TokenColumns(
            self._ids[row, :count].copy(),
            self._logprobs[row, :count].copy(),
            self._raw[row, :count].copy(),
            self._versions[row, :count].copy(),
        )

    def sampled_ids(self, row: int) -> npt.NDArray[np.int64]:
        """Return the tokens that a row has sampled, a view."""
        return self._ids[row, : self.produced[row]]

    def cached_ids(self, row: int) -> list[int]:
        """Return the tokens whose keys and values a row has."""
        prompt = self.jobs[row].request.prompt_ids
        length = int(self.lengths[row])
        if length <= len(prompt):
            return list(prompt[:length])
        return [*prompt, *self._ids[row, : length - len(prompt)].tolist()]

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Remove rows and close the gaps.

        Returns:
            Rows that were moved, and where to: the caller moves their keys and values.
        """
        gone = set(rows)
        left = self.count - len(gone)
        targets = sorted(row for row in gone if row < left)
        sources = [row for row in range(left, self.count) if row not in gone]
        if sources:
            longest = int(self.produced[sources].max())
            for array in (self._ids, self._logprobs, self._raw, self._versions):
                array[targets, :longest] = array[sources, :longest]
            for name in _COLUMNS:
                array = getattr(self, name)
                array[targets] = array[sources]
        for row in gone:
            self.jobs[row].row = -1
        for source, target in zip(sources, targets, strict=True):
            self.jobs[target] = self.jobs[source]
            self.jobs[target].row = target
        del self.jobs[left:]
        return sources, targets

    def _reserve(self, count: int) -> None:
        if count <= self._ids.shape[1]:
            return
        wider = max(count, 2 * self._ids.shape[1]) - self._ids.shape[1]
        self._ids = np.pad(self._ids, ((0, 0), (0, wider)))
        self._logprobs = np.pad(self._logprobs, ((0, 0), (0, wider)))
        self._raw = np.pad(self._raw, ((0, 0), (0, wider)))
        self._versions = np.pad(self._versions, ((0, 0), (0, wider)))
