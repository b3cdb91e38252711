"""What the endpoint of language models costs a request, without the model: CPU of the server.

    uv run python -m benchmarks.text.endpoint

The server is a process of its own with everything but the weights: a byte-pair tokenizer, a ChatML
template, sessions, log-probabilities and a `TextModel`, whose engine gives one token after another
without computing anything. A client on one connection plays sessions of 4 turns, each answer 32
tokens, the prompts about 30, 75, 120 and 165. The figure is the CPU time of the server's process by
its own clock, divided by the turns: whole answers and streamed ones in turns, beside a request
for `/v1/models`, which is what the server itself takes. At most 3 ms are wanted.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from benchmarks.harness import Report, in_turns, itself, main

from bray_model.chat.endpoint import ChatEndpoint
from bray_model.text.engine import TextFigures, Ticket, TokenListener
from bray_model.text.requests import Completion, TextRequest, Token
from bray_model.text.text_model import TextModel
from bray_server import PageReply, PageRequest, PageStream, ServerThread

TOKENS, TURNS = 32, 4
_CONTEXT = 4096
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class _Ticket:
    """A request that was taken."""

    def __init__(self, request: TextRequest, listener: TokenListener | None) -> None:
        self.request = request
        self.listener = listener
        self.completion: Completion | None = None


class NoEngine:
    """Gives the same tokens to everybody, from a thread, one after another."""

    version, context_length, vocab_size = 0, _CONTEXT, 400

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._queue: queue.SimpleQueue[_Ticket] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin, once."""
        if not hasattr(self, "_thread"):
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def check(self, request: TextRequest) -> None:
        """Take anything."""

    def submit(
        self, requests: Sequence[TextRequest], listeners: Sequence[TokenListener | None] = ()
    ) -> list[_Ticket]:
        """Queue requests."""
        tickets = [_Ticket(*pair) for pair in zip(requests, listeners, strict=True)]
        for ticket in tickets:
            self._queue.put(ticket)
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """Nothing runs for long."""

    def wait(self, tickets: Sequence[Ticket], timeout_s: float | None = None) -> None:
        """Nothing is asked for that is not done."""

    def figures(self) -> TextFigures:
        """Return no counts."""
        return TextFigures(**dict.fromkeys(TextFigures.__dataclass_fields__, 1))

    def close(self) -> None:
        """Nothing to free."""

    def _run(self) -> None:
        while True:
            ticket = self._queue.get()
            ids = self._ids[: ticket.request.sampling.max_tokens]
            for one in ids:
                if ticket.listener is not None:
                    ticket.listener.on_token(Token(one, -1.0, -1.0, 0))
            count = len(ids)
            ticket.completion = Completion(
                prompt_ids=ticket.request.prompt_ids,
                ids=np.array(ids),
                logprobs=np.full(count, -1, np.float32),
                raw_logprobs=np.full(count, -1, np.float32),
                versions=np.zeros(count, np.int64),
                finish_reason="length",
            )
            if ticket.listener is not None:
                ticket.listener.on_finish(ticket.completion)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the agent moves to the next room and looks around"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=_CHATML
    )


class _Timed(ChatEndpoint):
    """The endpoint, and the CPU seconds of its process at `/cpu`."""

    async def answer(self, request: PageRequest) -> PageReply | PageStream:
        if request.path == "/cpu":
            return PageReply(json.dumps(time.process_time()).encode())
        return await super().answer(request)


def serve() -> None:
    """Serve until standard input ends."""
    tokenizer = _tokenizer()
    ids = tokenizer.encode("the agent moves to the next room and looks around" * TOKENS)[:TOKENS]
    model = TextModel(NoEngine(ids), tokenizer, eos_ids=[tokenizer.eos_token_id], name="none")
    endpoint = _Timed(model)
    server = ServerThread(endpoint.actor, tcp_port=None, http_port=0, pages=endpoint)
    print(server.addresses[0], flush=True)
    sys.stdin.read()
    server.close(0)


class Client:
    """One connection, which reads answers whole."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        self._num_sessions = 0

    def ask(self, path: str, body: object = None) -> bytes:
        """Return the body of an answer that is 200."""
        method = "GET" if body is None else "POST"
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data)
        reply = self._connection.getresponse()
        found = reply.read()
        if reply.status != 200:
            raise OSError(f"{path}: {reply.status} {found[:300]!r}")
        return found

    def models(self) -> int:
        """Ask for the list of models, and return the number of requests."""
        self.ask("/v1/models")
        return 1

    def session(self, *, stream: bool) -> int:
        """Play one session, and return the number of its turns; its end is counted with them."""
        self._num_sessions += 1
        base = f"/sessions/{stream}{self._num_sessions}/v1"
        messages: list[dict[str, str]] = []
        for _ in range(TURNS):
            messages.append({"role": "user", "content": "look around and tell what is there"})
            found = self.ask(
                f"{base}/chat/completions",
                {"model": "none", "messages": messages, "max_tokens": TOKENS, "stream": stream},
            )
            messages.append({"role": "assistant", "content": _content(found, stream)})
        self.ask(f"{base}/end", {"reward": 1.0})
        return TURNS

    def cpu_ms(self, play: Callable[[], int], seconds: float) -> float:
        """Return the server's CPU time for each request, in ms."""
        before, num_requests = json.loads(self.ask("/cpu")), 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            num_requests += play()
        return (json.loads(self.ask("/cpu")) - before) * 1e3 / num_requests


def _content(found: bytes, stream: bool) -> str:
    if not stream:
        return json.loads(found)["choices"][0]["message"]["content"]
    chunks = [json.loads(line[6:]) for line in found.splitlines() if line.startswith(b"data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


def benchmark(options: Namespace, report: Report) -> None:
    """Start a server and ask it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        itself(__file__, "serve"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        client = Client(process.stdout.readline().strip())
        ways = {
            "GET /v1/models": client.models,
            "whole": partial(client.session, stream=False),
            "streamed": partial(client.session, stream=True),
        }
        found = in_turns(
            {name: partial(client.cpu_ms, way, options.seconds) for name, way in ways.items()},
            options.rounds,
            warm_up=1,
        )
        report.table(f"server CPU for a request, {TOKENS} tokens an answer", found, unit="ms")
    finally:
        process.communicate("")


if __name__ == "__main__":
    main(
        __doc__,
        benchmark,
        rounds=5,
        seconds=2.0,
        inner={"serve": serve},
    )
