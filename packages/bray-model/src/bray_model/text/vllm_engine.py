"""An engine of vLLM, for machines with a GPU. UNPROVEN: no test of bray has run it.

It was written from the documentation of vLLM's `LLMEngine`, which is not installed where bray is
tested. What it cannot do yet it refuses: new weights while it runs. Use `TorchTextEngine` where the
weights change.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bray_core.errors import (
    CapacityError,
    ClosedError,
    ConfigError,
    DeadlineError,
)
from bray_model.text.config import TextModelConfig
from bray_model.text.engine import TextFigures, Ticket, TokenListener
from bray_model.text.job import Ending, Job, TokenColumns
from bray_model.text.requests import FinishReason, TextRequest, Token
from bray_model.text.sampling.uniforms import stream_seed


class VllmTextEngine:
    """A `TextEngine` of a folder that vLLM opens. Unproven: see the module's docstring.

    Raw log-probabilities are those that vLLM reports. Where a request has a temperature other than
    1 or a filter, the log-probability under the distribution sampled from is not reported by vLLM,
    so such a request is refused, except at temperature 0.

    Args:
        folder: Folder as `TextModel.save` writes it.
        config: Settings; `max_rows` and `context_length` are handed on.
        eos_ids: Tokens that end a completion.

    Raises:
        ConfigError: vLLM is not installed.
    """

    def __init__(self, folder: Path, config: TextModelConfig, *, eos_ids: Sequence[int]) -> None:
        try:
            import vllm
        except ImportError as error:
            raise ConfigError("VllmTextEngine needs vllm, which no extra of bray brings") from error
        self._vllm = vllm
        arguments = vllm.EngineArgs(
            model=str(folder),
            max_num_seqs=config.max_rows,
            max_model_len=config.context_length,
            seed=config.seed,
            enable_prefix_caching=True,
        )
        self._engine = vllm.LLMEngine.from_engine_args(arguments)
        model_config = self._engine.model_config
        self._context_length = int(model_config.max_model_len)
        self._vocab_size = int(model_config.get_vocab_size())
        self._config = config
        self._eos_ids = frozenset(eos_ids)
        self._jobs: dict[str, Job] = {}
        self._columns: dict[str, list[Token]] = {}
        self._names = itertools.count()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._tokens = self._steps = self._finished = self._cancelled = self._prompt_tokens = 0

    @property
    def version(self) -> int:
        """Version of the weights: 0, since they are fixed."""
        return 0

    @property
    def context_length(self) -> int:
        """Largest number of tokens of prompt and completion together."""
        return self._context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocab_size

    def check(self, request: TextRequest) -> None:
        """Raise what `submit` would raise for a request."""
        request.check_fits(self._context_length, self._vocab_size)
        sampling = request.sampling
        if sampling.response_format != "text":
            raise ConfigError("response_format: expected 'text' with vLLM, got 'json_object'")
        is_filtered = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        if sampling.temperature not in (0.0, 1.0) or (is_filtered and sampling.temperature > 0):
            raise ConfigError(
                "sampling: vLLM reports log-probabilities at temperature 1 without filters only: "
                "set temperature to 1 or 0, and no top_k, top_p or min_p"
            )
        if sampling.is_adjusted:
            raise ConfigError(
                "sampling: frequency_penalty, presence_penalty and logit_bias are not handed on to "
                "vLLM: leave them out"
            )

    def submit(
        self, requests: Sequence[TextRequest], listeners: Sequence[TokenListener | None] = ()
    ) -> list[Ticket]:
        """Queue requests, all of them or none."""
        for request in requests:
            self.check(request)
        with self._changed:
            self._check_open()
            if len(self._jobs) + len(requests) > self._config.max_queue + self._config.max_rows:
                raise CapacityError(f"max_queue={self._config.max_queue} would be exceeded")
            tickets: list[Ticket] = []
            for index, request in enumerate(requests):
                tickets.append(self._add(request, listeners[index] if listeners else None))
            self._changed.notify_all()
            return tickets

    def _add(self, request: TextRequest, listener: TokenListener | None) -> Job:
        order = next(self._names)
        sampling = request.sampling
        seed = request.own_seed
        if seed is None:
            seed = stream_seed(self._config.seed, 1 + order)
        job = Job(
            request=request,
            listener=listener,
            seed=seed,
            stop_ids=frozenset(sampling.stop_ids),
            order=order,
        )
        parameters = self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=seed % 2**31,
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        name = str(order)
        self._engine.add_request(name, {"prompt_token_ids": list(request.prompt_ids)}, parameters)
        self._jobs[name], self._columns[name] = job, []
        self._prompt_tokens += len(request.prompt_ids)
        return job

    def cancel(self, ticket: Ticket, *, wait: bool = True) -> None:
        """End a request now, whether or not somebody waits for it."""
        assert isinstance(ticket, Job)
        with self._changed:
            name = str(ticket.order)
            if name in self._jobs:
                self._engine.abort_request([name])
                self._cancelled += 1
                self._end(name, "cancelled")

    def wait(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> None:
        """Wait until the requests are done; generates in this thread unless `start` was called."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while any(ticket.completion is None for ticket in tickets):
            if end is not None and time.monotonic() > end:
                raise DeadlineError(f"requests are not done after {timeout_s} s")
            with self._changed:
                self._check_open()
                if self._thread is None:
                    self._step()
                else:
                    self._changed.wait(0.05)

    def start(self) -> None:
        """Generate in a thread of its own from now on."""
        with self._changed:
            self._check_open()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bray-vllm", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._step()

    def _step(self) -> None:
        self._steps += 1
        for output in self._engine.step():
            name = output.request_id
            job = self._jobs.get(name)
            if job is None:
                continue
            [part] = output.outputs
            stopped = False
            for token_id, row in zip(part.token_ids, part.logprobs, strict=True):
                stopped = stopped or self._take(name, job, token_id, row)
            if stopped and not output.finished:
                self._engine.abort_request([name])
            if stopped or output.finished:
                self._end(name, "stop" if stopped or part.finish_reason == "stop" else "length")

    def _take(self, name: str, job: Job, token_id: int, row: Mapping[int, Any]) -> bool:
        sampling = job.request.sampling
        raw = float(row[token_id].logprob)
        ranked = sorted(row.items(), key=lambda item: -float(item[1].logprob))
        top = tuple((int(id), float(one.logprob)) for id, one in ranked[: sampling.logprobs])
        token = Token(token_id, raw if sampling.temperature else 0.0, raw, 0, top)
        self._columns[name].append(token)
        self._tokens += 1
        if top:
            job.top.append(top)
        return job.listener is not None and job.listener.on_token(token)

    def _end(self, name: str, reason: FinishReason) -> None:
        job, tokens = self._jobs.pop(name), self._columns.pop(name)
        columns = TokenColumns(
            np.array([token.id for token in tokens], np.int64),
            np.array([token.logprob for token in tokens], np.float32),
            np.array([token.raw_logprob for token in tokens], np.float32),
            np.zeros(len(tokens), np.int64),
        )
        self._finished += 1
        Ending(job, reason, columns).tell()
        self._changed.notify_all()

    def publish(self, weights: Mapping[str, Any], version: int) -> None:
        """Refuse: weights cannot be exchanged here yet."""
        raise ConfigError(
            "VllmTextEngine takes no new weights yet: use the torch engine, or reopen"
        )

    def weights(self) -> Mapping[str, Any]:
        """Refuse: the weights lie with vLLM."""
        raise ConfigError("the weights of a VllmTextEngine lie with vLLM")

    def figures(self) -> TextFigures:
        """Return counts; those of memory are not known."""
        return TextFigures(
            num_running=len(self._jobs),
            num_waiting=0,
            cache_bytes=0,
            cache_limit_bytes=0,
            tokens=self._tokens,
            prompt_tokens=self._prompt_tokens,
            shared_tokens=0,
            steps=self._steps,
            finished=self._finished,
            cancelled=self._cancelled,
            preempted=0,
            restarted=0,
        )

    def close(self) -> None:
        """End what is under way as cancelled."""
        with self._changed:
            self._closed = True
            for name in list(self._jobs):
                self._engine.abort_request([name])
                self._end(name, "cancelled")
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the text engine was closed")
