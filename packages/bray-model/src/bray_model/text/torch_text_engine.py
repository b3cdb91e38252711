"""Generation with torch: requests from many threads, decoded together by one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bray_core.errors import CapacityError, ClosedError, DeadlineError, SpecError
from bray_model.text.config import TextModelConfig
from bray_model.text.continuous_batch import ContinuousBatch
from bray_model.text.engine import TextFigures, Ticket, TokenListener
from bray_model.text.errand import Errand
from bray_model.text.job import Ending, Job
from bray_model.text.module_weights import ModuleWeights
from bray_model.text.requests import TextRequest
from bray_model.text.sampling.uniforms import stream_seed
from bray_model.text.step_module import StepModule

_logger = logging.getLogger(__name__)


class TorchTextEngine:
    """A `TextEngine` of one torch module.

    Whoever holds the step lock decodes: a thread that waits for its requests, or the thread that
    `start` makes. What others ask for while a step runs is done between two steps.

    Args:
        step_module: What computes logits.
        weights: Weights of the module behind it.
        config: Settings.
        eos_ids: Tokens that end a completion.
        context_length: Largest number of tokens of prompt and completion that the module takes.
        vocab_size: Number of token ids.
    """

    def __init__(
        self,
        step_module: StepModule,
        weights: ModuleWeights,
        config: TextModelConfig,
        *,
        eos_ids: Sequence[int],
        context_length: int,
        vocab_size: int,
    ) -> None:
        self._context_length = min(context_length, step_module.cache.limit_tokens)
        self._vocab_size = vocab_size
        self._config = config
        self._weights = weights
        self._decoder = ContinuousBatch(
            step_module,
            max_rows=config.max_rows,
            prefill_tokens=config.prefill_tokens,
            context_length=self._context_length,
            eos_ids=eos_ids,
        )
        self._step_lock = threading.Lock()
        """Held by whoever uses the decoder."""
        self._changed = threading.Condition()
        """Guards the fields below; notified when a job came, or was done."""
        self._inbox: list[Job] = []
        self._errands: list[Errand] = []
        self._num_submitted = 0
        self._num_open = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._later: tuple[dict[str, torch.Tensor], int] | None = None
        """Weights that wait for the end of what is under way."""
        self._finished = self._cancelled = self._restarted = 0

    @property
    def version(self) -> int:
        """Version of the weights that the next token is computed with."""
        return self._decoder.version

    @property
    def context_length(self) -> int:
        """Largest number of tokens of prompt and completion: of the module, or of the cache."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocab_size

    def check(self, request: TextRequest) -> None:
        """Raise what `submit` would raise for a request."""
        request.check_fits(self._context_length, self._vocab_size)
        request.check_held()

    def submit(
        self, requests: Sequence[TextRequest], listeners: Sequence[TokenListener | None] = ()
    ) -> list[Ticket]:
        """Queue requests, all of them or none."""
        for request in requests:
            self.check(request)
        if listeners and len(listeners) != len(requests):
            raise SpecError(f"{len(requests)} requests, but {len(listeners)} listeners")
        with self._changed:
            self._check_open()
            if self._num_open + len(requests) > self._config.max_queue + self._config.max_rows:
                raise CapacityError(
                    f"{self._num_open} requests are under way: {len(requests)} more exceed "
                    f"max_queue={self._config.max_queue}: wait, or raise it"
                )
            jobs = [
                self._job(request, listeners[index] if listeners else None)
                for index, request in enumerate(requests)
            ]
            self._inbox += jobs
            self._num_open += len(jobs)
            self._changed.notify_all()
        return list(jobs)

    def _job(self, request: TextRequest, listener: TokenListener | None) -> Job:
        order = self._num_submitted
        self._num_submitted += 1
        seed = request.own_seed
        return Job(
            request=request,
            listener=listener,
            seed=stream_seed(self._config.seed, 1 + order) if seed is None else stream_seed(seed),
            stop_ids=frozenset(request.sampling.stop_ids),
            order=order,
            group=request.group if self._decoder.module.cache.lends else None,
        )

    def cancel(self, ticket: Ticket, *, wait: bool = True) -> None:
        """End a request now; its place is free for another at the next step."""
        assert isinstance(ticket, Job)
        if wait:
            self._between_steps(lambda: self._cancel(ticket))
        else:
            self._note(Errand(lambda: self._cancel(ticket)))

    def _cancel(self, job: Job) -> None:
        if job.completion is None:
            self._cancelled += 1
            self._tell([self._decoder.drop(job, "cancelled")])

    def wait(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> None:
        """Wait until the requests are done; generates in this thread unless `start` was called."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        left = list(tickets)
        while True:
            while left and left[-1].completion is not None:
                left.pop()
            if not left:
                return
            remaining = None if end is None else end - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise DeadlineError(
                    f"{len(left)} of {len(tickets)} requests are not done after {timeout_s} s"
                )
            if self._thread is None and self._step_lock.acquire(timeout=0.01):
                try:
                    self._check_open()
                    self._step()
                finally:
                    self._step_lock.release()
                continue
            with self._changed:
                self._check_open()
                if left[-1].completion is None:
                    self._changed.wait(0.05 if remaining is None else min(remaining, 0.05))

    def start(self) -> None:
        """Generate in a thread of its own from now on."""
        with self._changed:
            self._check_open()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="bray-text-engine", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._step_lock:
                if self._closed:
                    return
                self._step()
            with self._changed:
                # Looked at anew each time: another thread's errands take the inbox along.
                while not (self._has_work() or self._closed):
                    self._changed.wait()

    def _has_work(self) -> bool:
        return bool(self._inbox or self._errands or not self._decoder.is_idle)

    def _step(self) -> None:
        """Run errands, take new jobs, and decode one token of each row. Holds the step lock."""
        self._run_errands()
        try:
            done = self._decoder.step()
        except Exception as error:  # whatever the module raised: nobody may wait for ever
            _logger.exception("decoding failed; all requests under way end with an error")
            self._fail(f"{type(error).__name__}: {error}")
            return
        if done:
            self._tell(done)
        self._apply_what_waits()

    def _run_errands(self) -> None:
        with self._changed:
            inbox, self._inbox = self._inbox, []
            errands, self._errands = self._errands, []
        for job in inbox:
            self._decoder.add(job)
        if inbox:
            with self._changed:
                self._changed.notify_all()
        for errand in errands:
            errand.run()
        self._apply_what_waits()

    def _fail(self, error: str) -> None:
        decoder = self._decoder
        failed = decoder.abandon(error)
        self._tell([*decoder.endings, *failed])
        self._apply_what_waits()

    def _tell(self, endings: Sequence[Ending]) -> None:
        """Count what is done, then tell those who wait for it."""
        with self._changed:
            self._num_open -= len(endings)
            self._finished += len(endings)
            for ending in endings:
                ending.tell()
            self._changed.notify_all()

    def _between_steps(self, do: Callable[[], None]) -> None:
        """Run something while no step is under way, and wait for it; raises what it raised."""
        errand = Errand(do)
        self._note(errand)
        while not errand.done.is_set():
            if self._step_lock.acquire(timeout=0.005):
                try:
                    self._run_errands()
                finally:
                    self._step_lock.release()
        if errand.error is not None:
            raise errand.error

    def _note(self, errand: Errand) -> None:
        with self._changed:
            self._check_open()
            self._errands.append(errand)
            self._changed.notify_all()

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Take new weights as the setting `in_flight` says."""
        checked = self._weights.check(weights)
        self._between_steps(lambda: self._publish(checked, version))

    def _publish(self, weights: dict[str, torch.Tensor], version: int) -> None:
        decoder = self._decoder
        jobs = decoder.table.jobs
        if jobs and self._config.in_flight == "finish":
            self._later = {name: value.clone() for name, value in weights.items()}, version
            decoder.paused = True
            return
        if jobs and self._config.in_flight == "restart":
            self._restarted += decoder.restart(
                [job for job in jobs if job.listener is None or job.listener.on_restart()]
            )
        self._later, decoder.paused = None, False
        self._weights.write(weights)
        decoder.set_version(version)

    def _apply_what_waits(self) -> None:
        """Take the weights that waited for the end of what was under way, if that has come."""
        if self._later is None or self._decoder.table.count:
            return
        (weights, version), self._later = self._later, None
        self._decoder.paused = False
        self._weights.write(weights)
        self._decoder.set_version(version)

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the current weights by name, not to be written to."""
        return self._weights.by_name()

    def figures(self) -> TextFigures:
        """Return counts."""
        decoder = self._decoder
        cache = decoder.module.cache
        return TextFigures(
            num_running=decoder.table.count,
            num_waiting=max(0, self._num_open - decoder.table.count),
            cache_bytes=cache.nbytes,
            cache_limit_bytes=cache.limit_bytes,
            tokens=decoder.tokens,
            prompt_tokens=decoder.prompt_tokens,
            shared_tokens=decoder.shared_tokens,
            steps=decoder.steps,
            finished=self._finished,
            cancelled=self._cancelled,
            preempted=decoder.preempted,
            restarted=self._restarted,
        )

    def close(self) -> None:
        """End what is under way as cancelled, and let the memory go."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        with self._step_lock:
            self._run_errands()
            decoder = self._decoder
            jobs = [*decoder.table.jobs, *decoder.waiting]
            self._tell([decoder.drop(job, "cancelled") for job in jobs])
            decoder.module.cache.free()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the text engine was closed")
