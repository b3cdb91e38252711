"""Continuous batching: jobs join and leave between the steps of one module."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from bray_model.text.job import Ending, Job, TokenColumns
from bray_model.text.prefix_sharing import PrefixSharing
from bray_model.text.requests import FinishReason, Token
from bray_model.text.row_table import RowTable
from bray_model.text.sampling.adjustments import adjusted
from bray_model.text.sampling.sampler import Sampled, sample, top_tokens
from bray_model.text.sampling.uniforms import uniforms
from bray_model.text.step_module import PromptPart, StepModule, prefill_all

_BLOCK = 64
"""Rows of the cache grow by at least this many tokens."""


class ContinuousBatch:
    """Decodes jobs with one module. Not thread-safe: `TorchTextEngine` takes care of that.

    Args:
        module: What computes logits.
        max_rows: Largest number of jobs decoded at once.
        prefill_tokens: Prompt tokens computed at once.
        context_length: Largest number of tokens of prompt and completion together.
        eos_ids: Tokens that end a completion.
    """

    def __init__(
        self,
        module: StepModule,
        *,
        max_rows: int,
        prefill_tokens: int,
        context_length: int,
        eos_ids: Sequence[int],
    ) -> None:
        self.module = module
        self.version = 0
        self.waiting: deque[Job] = deque()
        self.table = RowTable(max_rows, context_length)
        self.paused = False
        """Whether nothing new begins."""
        self.tokens = self.prompt_tokens = self.shared_tokens = self.steps = 0
        self.preempted = 0
        self._cache = module.cache
        self._sharing = PrefixSharing(self.table)
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._context_length = context_length
        self._eos = np.array(sorted(eos_ids), np.int64)
        self.endings: list[Ending] = []
        """What the last step ended, also where it was broken off by an error."""

    @property
    def is_idle(self) -> bool:
        """Whether a step would do nothing."""
        return self.table.count == 0 and (self.paused or not self.waiting)

    def add(self, job: Job, *, first: bool = False) -> None:
        """Let a job wait for its turn; `first` puts it before all others."""
        self._sharing.queued(job)
        if first:
            self.waiting.appendleft(job)
        else:
            self.waiting.append(job)

    @torch.inference_mode()
    def step(self) -> list[Ending]:
        """Begin what fits, sample one token for every row, and return what is done."""
        self.endings = []
        if self.waiting and not self.paused:
            self._admit()
        self._make_room_to_grow()
        count = self.table.count
        if count:
            table, device = self.table, self._cache.device
            lengths = table.lengths[:count]
            logits = self.module.decode(
                torch.from_numpy(table.next_ids[:count]).to(device),
                torch.from_numpy(lengths.copy()).to(device),
                int(lengths.max()),
            )
            lengths += 1
            self.steps += 1
            self._take(np.arange(count), logits)
        return self.endings

    # ---- beginning

    def _admit(self) -> None:
        """Give rows to waiting jobs: first to those that others of their group can copy from."""
        firsts: list[Job] = []
        others: list[Job] = []
        groups: set[Hashable] = set()
        budget, longest = self._prefill_tokens, self._longest()
        while self.waiting and self.table.count + len(firsts) + len(others) < self._max_rows:
            job = self.waiting[0]
            length = len(job.cached_part)
            rows = self.table.count + len(firsts) + len(others) + 1
            if not self._cache.fits(rows, max(longest, length) + 1):
                break
            is_other = job.group in groups or self._sharing.is_live(job.group)
            if not is_other:
                if firsts and length > budget:
                    break
                budget -= length
                firsts.append(job)
                if job.group is not None:
                    groups.add(job.group)
            else:
                others.append(job)
            longest = max(longest, length)
            self.waiting.popleft()
        if not firsts and not others:
            return
        self._fit_coming(firsts + others, longest + 1)
        begun: list[tuple[Job, torch.Tensor]] = []
        try:
            begun += self._begin(firsts)
            begun += self._begin(others)
        except BaseException:
            # Those that have no row yet wait on; the caller ends those that have one.
            self.waiting.extendleft(job for job in reversed(others) if job.row < 0)
            raise
        if begun:
            jobs, logits = zip(*begun, strict=True)
            self._take(np.array([job.row for job in jobs]), torch.stack(logits))

    def _begin(self, jobs: Sequence[Job]) -> list[tuple[Job, torch.Tensor]]:
        """Fill the cache for jobs; return those that have no token yet, with their logits."""
        parts: list[PromptPart] = []
        begun: list[tuple[Job, torch.Tensor | None]] = []
        copies: list[tuple[int, int, int]] = []
        for job in jobs:
            tokens, is_new = job.cached_part, job.kept is None
            shared = self._sharing.find(job, tokens, self.version)
            logits = self._sharing.logits(job, self.version) if is_new else None
            self._sharing.unqueued(job)
            row = self.table.add(job, len(tokens), self.version)
            length = shared.length if shared else 0
            if is_new and logits is None:
                length = min(length, len(tokens) - 1)  # at least one token gives the logits
            if shared is not None and length:
                if shared.row >= 0:
                    copies.append((shared.row, row, length))
                else:
                    self._cache.put(row, [part[:, :length] for part in shared.tokens])
                job.num_shared = length
                self.shared_tokens += length
            if length < len(tokens):
                parts.append(PromptPart(row, tokens[length:], length))
                logits = None
            if is_new:
                begun.append((job, logits))
        if copies:
            sources, targets, lengths = zip(*copies, strict=True)
            self._cache.copy(sources, targets, max(lengths))
        self.prompt_tokens += sum(len(part.ids) for part in parts)
        computed = prefill_all(self.module, parts, self._prefill_tokens)
        result = []
        for job, logits in begun:
            if logits is None:
                logits = computed[job.row]
                self._sharing.keep_logits(job, logits, self.version)
            result.append((job, logits))
        for job in jobs:
            self._sharing.began(job)
        return result

    # ---- memory

    def _longest(self) -> int:
        """Return the most tokens that a row has in the cache."""
        return int(self.table.lengths[: self.table.count].max(initial=0))

    def _make_room_to_grow(self) -> None:
        """Let the youngest rows wait again until each of the others can have one more token."""
        while not self._cache.fits(self.table.count, self._longest() + 1):
            youngest = max(self.table.jobs, key=lambda job: job.order)
            row = youngest.row
            youngest.kept = self.table.columns(row) if self.table.produced[row] else None
            self._remove([row])
            self.add(youngest, first=True)
            self.preempted += 1
        if self.table.count:
            self._fit(self.table.count, self._longest() + 1, ())

    def _fit_coming(self, coming: Sequence[Job], length: int) -> None:
        """Let the cache have rows for jobs too; they end where there is no memory for them."""
        try:
            self._fit(self.table.count + len(coming), length, coming)
        except Exception as error:
            for job in coming:  # asked for again and again, they would wait for ever
                self._sharing.unqueued(job)
                columns = job.kept or TokenColumns.empty()
                text = f"{type(error).__name__}: {error}"
                self.endings.append(Ending(job, "error", columns, text))
            raise

    def _fit(self, rows: int, length: int, coming: Sequence[Job]) -> None:
        """Let the cache have so many rows of such a length, and some more where the bound lets."""
        cache = self._cache
        if rows <= cache.num_rows and length <= cache.length:
            return
        limit = cache.limit_tokens
        new_rows = max(rows, cache.num_rows)
        if rows > cache.num_rows:
            new_rows = min(self._max_rows, 1 << (rows - 1).bit_length())
        wanted = max(length + _BLOCK, length * 5 // 4, cache.length)
        known = max((job.final_length for job in (*self.table.jobs, *coming)), default=0)
        known = min(known, self._context_length)
        if new_rows * known <= limit // 4:
            wanted = max(wanted, known)
        wanted = min(wanted, self._context_length)
        if new_rows * max(length, wanted) > limit:
            new_rows = rows
        new_length = max(length, min(wanted, limit // new_rows))
        cache.resize(new_rows, new_length, self.table.count, self._longest())

    # ---- sampling

    def _take(self, rows: npt.NDArray[np.int64], logits: torch.Tensor) -> None:
        """Sample a token for rows from logits `[N, V]`, and end the jobs that are done."""
        table = self.table
        numbers = uniforms(table.seeds[rows], table.produced[rows])
        sampled = sample(logits, table.sampling(rows), numbers, adjusted(table, rows, logits))
        table.record(rows, sampled, self.version)
        self.tokens += len(rows)
        broken = ~np.isfinite(sampled.logprobs + sampled.raw_logprobs)
        is_eos = (sampled.ids[:, None] == self._eos).any(-1)  # isin would be ten times as slow
        stopped = is_eos & table.heeds_eos[rows] & ~broken
        full = table.produced[rows] >= table.max_tokens[rows]
        watched = table.watched[rows] & ~broken
        if watched.any():
            stopped |= self._watch(rows, logits, sampled, np.flatnonzero(watched))
        done = np.flatnonzero(stopped | full | broken)
        for index in done:
            row = int(rows[index])
            if broken[index]:
                table.produced[row] -= 1
                error = "the logits are not finite: the weights or the precision are to blame"
                self._end(row, "error", error)
            else:
                self._end(row, "stop" if stopped[index] else "length")
        if len(done):
            self._remove(rows[done].tolist())

    def _watch(
        self,
        rows: npt.NDArray[np.int64],
        logits: torch.Tensor,
        sampled: Sampled,
        watched: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        """Show tokens to who listens; return which rows end because of them."""
        ended = np.zeros(len(rows), np.bool_)
        for index in watched.tolist():
            job = self.table.jobs[rows[index]]
            token = int(sampled.ids[index])
            top: tuple[tuple[int, float], ...] = ()
            count = job.request.sampling.logprobs
            if count:
                [top] = top_tokens(logits[index : index + 1], count)
                job.top.append(top)
            ended[index] = token in job.stop_ids
            if job.listener is not None:
                shown = Token(
                    token,
                    float(sampled.logprobs[index]),
                    float(sampled.raw_logprobs[index]),
                    self.version,
                    top,
                )
                ended[index] |= job.listener.on_token(shown)
        return ended

    # ---- ending

    def _end(self, row: int, reason: FinishReason, error: str | None = None) -> None:
        job = self.table.jobs[row]
        self.endings.append(Ending(job, reason, self.table.columns(row), error))

    def _remove(self, rows: Sequence[int]) -> None:
        """Take rows out of the batch, and close the gaps in the cache."""
        for row in rows:
            self._sharing.leaving(self.table.jobs[row], self._cache.take)
        sources, targets = self.table.remove(rows)
        if sources:
            self._cache.copy(sources, targets, int(self.table.lengths[targets].max()))

    def drop(self, job: Job, reason: FinishReason, error: str | None = None) -> Ending:
        """Take a job out that waits or is decoded."""
        if job.row >= 0:
            columns = self.table.columns(job.row)
            self._remove([job.row])
            return Ending(job, reason, columns, error)
        self.waiting.remove(job)
        self._sharing.unqueued(job)
        return Ending(job, reason, job.kept or TokenColumns.empty(), error)

    def abandon(self, error: str) -> list[Ending]:
        """Take all jobs out that are decoded, with an error; the cache may be in any state."""
        jobs = list(self.table.jobs)
        endings = [Ending(job, "error", self.table.columns(job.row), error) for job in jobs]
        self._sharing.forget()
        self.table.remove([job.row for job in jobs])
        self._cache.free()
        return endings

    def restart(self, jobs: Iterable[Job]) -> int:
        """Let jobs begin anew, before those that wait; return how many did."""
        jobs = sorted(jobs, key=lambda job: job.order, reverse=True)
        self._remove([job.row for job in jobs])
        for job in jobs:
            job.kept, job.num_shared = None, 0
            job.top.clear()
            self.add(job, first=True)
        return len(jobs)

    def set_version(self, version: int) -> None:
        """Take note that the module has other weights now."""
        self.version = version
        self.table.prompt_versions[: self.table.count] = -1
        self.module.weights_changed()
