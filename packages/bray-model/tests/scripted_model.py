"""A language model that says what a script tells it, letter by letter: no weights, no torch."""

from __future__ import annotations

import asyncio

import numpy as np

from bray_model.text.engine import TextFigures
from bray_model.text.requests import (
    Completion,
    MissingChatTemplateError,
    PromptTooLongError,
    TextPiece,
    Token,
)

START, END = "\u2402", "\u2403"  # one character, and so one token, each


class ScriptedModel:
    """Tokens are characters. Answers are taken from `script` in order; then the prompt's length.

    `gate`, an event, holds back every token but the first of an answer.
    """

    def __init__(self, script=(), *, context_length=4000, has_template=True):
        self.name = "scripted"
        self.version = 7
        self.context_length = context_length
        self.script = list(script)
        self.has_template = has_template
        self.gate = None
        self.requests = []
        self.num_cancelled = self.num_running = self.num_tokens = 0
        self.began = asyncio.Event()

    def encode(self, text, *, special=True):
        return tuple(map(ord, text))

    def decode(self, ids, *, special=False):
        return "".join(chr(one) for one in ids if special or chr(one) not in (START, END))

    def token_bytes(self, token):
        return None

    def render_chat(self, messages, tools=None, *, add_generation_prompt=True):
        if not self.has_template:
            raise MissingChatTemplateError("the tokenizer has no chat template")
        said = [f"tools {len(tools)}\n"] if tools else []
        for message in messages:
            text = message["content"] + "".join(
                f"[{call['function']['name']}]" for call in message.get("tool_calls", ())
            )
            said.append(f"{START}{message['role']}:{text}{END}\n")
        return "".join(said) + (f"{START}assistant:" if add_generation_prompt else "")

    def check(self, request):
        if len(request.prompt_ids) >= self.context_length:
            raise PromptTooLongError(
                f"the prompt has {len(request.prompt_ids)} tokens, the context "
                f"{self.context_length}: shorten it"
            )

    async def complete(self, request):
        *_, whole = [made async for made in self.stream(request)]
        return whole

    async def stream(self, request):
        self.check(request)
        self.requests.append(request)
        text = self.script.pop(0) if self.script else f"n{len(request.prompt_ids)}"
        if isinstance(text, Exception):
            raise text
        self.num_running += 1
        is_whole = False
        try:
            ids = list(map(ord, text))[: request.sampling.max_tokens]
            is_cut = len(ids) == request.sampling.max_tokens
            for number, one in enumerate(ids):
                if number and self.gate is not None:
                    await self.gate.wait()
                self.num_tokens += 1
                top = tuple((one + i, -1.0 - i) for i in range(request.sampling.logprobs))
                yield TextPiece(chr(one), (Token(one, -0.5, -1.0, self.version, top),))
                self.began.set()
            is_whole = True
        finally:
            self.num_running -= 1
            self.num_cancelled += not is_whole
        shown = "".join(map(chr, ids))
        if not is_cut:
            ids.append(ord(END))
        count = len(ids)
        tops = tuple(
            tuple((one + i, -1.0 - i) for i in range(request.sampling.logprobs)) for one in ids
        )
        yield Completion(
            prompt_ids=request.prompt_ids,
            ids=np.array(ids, np.int64),
            logprobs=np.full(count, -0.5, np.float32),
            raw_logprobs=np.full(count, -1.0, np.float32),
            versions=np.full(count, self.version, np.int64),
            finish_reason="length" if is_cut else "stop",
            text=shown,
            top=tops if request.sampling.logprobs else (),
        )

    def figures(self):
        return TextFigures(
            num_running=self.num_running,
            num_waiting=0,
            cache_bytes=10,
            cache_limit_bytes=100,
            tokens=self.num_tokens,
            prompt_tokens=0,
            shared_tokens=0,
            steps=0,
            finished=0,
            cancelled=self.num_cancelled,
            preempted=0,
            restarted=0,
        )
