"""A language model that generates: prompts in, completions with log-probabilities out."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from bray_core.errors import ConfigError, DeadlineError, MissingExtraError, SpecError
from bray_core.files.saved_folder import saved_folder
from bray_model.text.config import TextModelConfig
from bray_model.text.detokenizer import until_stop
from bray_model.text.engine import TextEngine, TextFigures, Ticket
from bray_model.text.listeners import AsyncListener, StopListener, WholeListener, leave
from bray_model.text.requests import Completion, TextPiece, TextRequest
from bray_model.text.tokenizer_text import TokenizerText


class TextModel:
    """A causal language model of Hugging Face's kind, generating in continuous batches.

    Every method may be called from any thread. `generate` computes in the caller's thread as long
    as nothing was streamed; `stream` and `complete` start a thread of their own.

    Args:
        engine: What generates. It is closed with the model.
        tokenizer: A `transformers` tokenizer that fits the engine's vocabulary.
        eos_ids: Tokens that end a completion; the first one is what a learnt answer ends with.
        name: Name of the model.
        module: The torch module behind the engine, where there is one in this process.

    Raises:
        ConfigError: The tokenizer has ids that the model does not know.
    """

    def __init__(
        self,
        engine: TextEngine,
        tokenizer: Any,
        *,
        eos_ids: Sequence[int],
        name: str = "model",
        module: Any = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.eos_ids = tuple(eos_ids)
        self.name = name
        self._module = module
        self._text = TokenizerText(tokenizer, engine.vocab_size)
        self._published = engine.version
        self._publishing = threading.Lock()

    @classmethod
    def load(
        cls,
        path: Path | str,
        config: TextModelConfig | None = None,
        *,
        name: str | None = None,
        tokenizer: Any = None,
    ) -> TextModel:
        """Open a folder as `save_pretrained` of transformers writes it; nothing is downloaded.

        Args:
            path: The folder.
            config: Settings of generation.
            name: Name of the model; None is that of the folder.
            tokenizer: A `transformers` tokenizer in place of the folder's.

        Raises:
            ConfigError: The folder lacks a file, its files do not fit each other, or the
                architecture cannot generate token by token; says which and why.
            MissingExtraError: transformers or torch is not installed.
        """
        config = config or TextModelConfig()
        folder = Path(path)
        opening = _opening()
        module, tokenizer = opening.open_folder(folder, config, tokenizer)
        return cls._opened(module, tokenizer, config, name or folder.resolve().name)

    @classmethod
    def create(
        cls,
        architecture: Any,
        tokenizer: Any,
        config: TextModelConfig | None = None,
        *,
        seed: int = 0,
        name: str = "model",
    ) -> TextModel:
        """Make a model with random weights.

        Args:
            architecture: A `transformers.PretrainedConfig` of a causal language model.
            tokenizer: A `transformers.PreTrainedTokenizerFast` or the like.
            config: Settings of generation.
            seed: Seed of the weights.
            name: Name of the model.
        """
        config = config or TextModelConfig()
        module = _opening().make_module(architecture, config, seed)
        return cls._opened(module, tokenizer, config, name)

    @classmethod
    def _opened(cls, module: Any, tokenizer: Any, config: TextModelConfig, name: str) -> TextModel:
        TokenizerText(tokenizer, module.config.get_text_config().vocab_size)
        eos_ids = _opening().eos_ids_of(module, tokenizer)
        engine = _opening().open_engine(module, config, eos_ids)
        return cls(engine, tokenizer, eos_ids=eos_ids, name=name, module=module)

    @property
    def version(self) -> int:
        """Version of the weights; 0 before the first publish."""
        return self.engine.version

    @property
    def context_length(self) -> int:
        """Largest number of tokens of prompt and completion together."""
        return self.engine.context_length

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.engine.vocab_size

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text.

        Args:
            text: The text. Names of special tokens in it are read as such tokens.
            special: Whether the tokenizer adds its beginning-of-text token, if it has one.
        """
        return self._text.encode(text, special=special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids; `special` keeps the names of special tokens in it."""
        return self._text.decode(ids, special=special)

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that is a part of a character; None where nothing tells."""
        return self._text.token_bytes(token)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text that the chat template makes of messages.

        Raises:
            MissingChatTemplateError: The tokenizer has none.
            SpecError: The template refuses the messages; says why.
        """
        return self._text.render_chat(messages, tools, add_generation_prompt=add_generation_prompt)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> tuple[int, ...]:
        """Return the token ids of `render_chat`."""
        text = self.render_chat(messages, tools, add_generation_prompt=add_generation_prompt)
        return self.encode(text, special=False)

    def check(self, request: TextRequest) -> None:
        """Raise what `generate` would raise for this request."""
        self.engine.check(self._held(request))

    def _held(self, request: TextRequest) -> TextRequest:
        """Return a request with what its tokens are held to, where it asks for a format."""
        return self._text.held(request, self.eos_ids)

    def generate(
        self, requests: Sequence[TextRequest], *, timeout_s: float | None = None
    ) -> list[Completion]:
        """Complete prompts, all in one batch as far as the rows reach; waits for all of them.

        Raises:
            PromptTooLongError: A prompt leaves no room in the context for a token.
            SpecError: A token id is beyond the vocabulary.
            CapacityError: The queue is full.
            DeadlineError: It took longer than `timeout_s`; the requests are cancelled.
        """
        tickets = self.submit(requests)
        try:
            return self.collect(tickets, timeout_s=timeout_s)
        except DeadlineError:
            for ticket in tickets:
                self.cancel(ticket)
            raise

    def submit(self, requests: Sequence[TextRequest]) -> list[Ticket]:
        """Queue prompts and return at once; `collect` gives what became of them."""
        requests = [self._held(request) for request in requests]
        listeners = [
            StopListener(self._text.decoder(), request.sampling) if request.sampling.stop else None
            for request in requests
        ]
        return self.engine.submit(requests, listeners)

    def collect(
        self, tickets: Sequence[Ticket], *, timeout_s: float | None = None
    ) -> list[Completion]:
        """Wait for submitted prompts, as `generate` does; a time-out does not cancel them."""
        self.engine.wait(tickets, timeout_s)
        done = [ticket.completion for ticket in tickets]
        completions = [completion for completion in done if completion is not None]
        rows = [
            self._spoken(ticket.request, completion)
            for ticket, completion in zip(tickets, completions, strict=True)
        ]
        texts = self._text.decode_all(rows)
        return [
            dataclasses.replace(completion, text=until_stop(text, ticket.request.sampling.stop))
            for ticket, completion, text in zip(tickets, completions, texts, strict=True)
        ]

    def _spoken(self, request: TextRequest, completion: Completion) -> list[int]:
        """Return the ids without the token that ended the completion."""
        ids: list[int] = completion.ids.tolist()
        if completion.finish_reason == "stop" and ids and self._ends(request, ids[-1]):
            ids.pop()
        return ids

    def _ends(self, request: TextRequest, token: int) -> bool:
        sampling = request.sampling
        return token in sampling.stop_ids or (token in self.eos_ids and not sampling.ignore_eos)

    def cancel(self, ticket: Ticket) -> None:
        """End a submitted request now: its completion holds what there is, as `cancelled`."""
        self.engine.cancel(ticket)

    async def stream(self, request: TextRequest) -> AsyncGenerator[TextPiece | Completion]:
        """Yield pieces as they are sampled, and the whole completion last.

        Closing the iterator (`aclose`), or cancelling the task that reads it, cancels the request.
        Errors are raised as by `generate`, before the first piece.
        """
        request = self._held(request)
        listener = AsyncListener(
            asyncio.get_running_loop(), self._text.decoder(), request.sampling, self._ends
        )
        self.engine.start()
        [ticket] = self.engine.submit([request], [listener])
        try:
            while True:
                item = await listener.queue.get()
                yield item
                if isinstance(item, Completion):
                    return
        finally:
            await leave(self.engine, ticket, listener)

    async def complete(self, request: TextRequest) -> Completion:
        """Complete one prompt; cancelling the task cancels the request.

        With `in_flight: restart` it begins anew where weights are published meanwhile.
        """
        request = self._held(request)
        listener = WholeListener(self._text.decoder(), request.sampling)
        self.engine.start()
        [ticket] = self.engine.submit([request], [listener])
        try:
            await listener.finished()
        finally:
            await leave(self.engine, ticket, listener)
        [completion] = self.collect([ticket])
        return completion

    def publish(self, weights: Mapping[str, Any], version: int | None = None) -> int:
        """Take new weights, tensors or arrays by the names of the module's `state_dict`.

        They are copied before this returns. What it does to completions under way is the setting
        `in_flight`.

        Args:
            weights: All weights. One that is tied to another may be left out.
            version: Their version, larger than the current one; None: the next.

        Returns:
            The version.

        Raises:
            SpecError: A weight is missing, unexpected, of another shape or not finite; the old
                weights stay.
        """
        with self._publishing:
            version = self._next_version(version)
            self.engine.publish(weights, version)
            self._published = version
        return version

    def _next_version(self, version: int | None) -> int:
        if version is None:
            return self._published + 1
        if isinstance(version, bool) or not isinstance(version, int):
            raise SpecError(f"version: expected an integer, got {version!r}")
        if version <= self._published:
            raise SpecError(
                f"version: {version} is not larger than {self._published}, which was published "
                "before"
            )
        return version

    def weights(self) -> Mapping[str, Any]:
        """Return the current weights by name, torch tensors that are not to be written to."""
        return self.engine.weights()

    def new_module(self) -> Any:
        """Return a separate `transformers` module with the current weights, to be trained."""
        if self._module is None:
            raise ConfigError(f"{self.name}: its engine has no module in this process")
        with self._publishing:  # no half of one version and half of the next
            return _opening().copy_module(self._module)

    def save(self, folder: Path | str) -> Path:
        """Write a folder that `load`, transformers and vLLM open; whole, or not at all."""
        target = Path(folder)
        module = self.new_module()
        with saved_folder(target) as new:
            _opening().save_module(module, new)
            self.tokenizer.save_pretrained(new)
            for file in filter(Path.is_file, new.rglob("*")):
                # Those of safetensors are for their owner alone.
                file.chmod(new.stat().st_mode & 0o666)
        return target

    def figures(self) -> TextFigures:
        """Return what it does now, and its counts."""
        return self.engine.figures()

    def close(self) -> None:
        """Cancel what is under way, and let the memory go."""
        self.engine.close()

    def __enter__(self) -> TextModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _opening() -> ModuleType:
    """Load torch and transformers, which plain data and other engines do without."""
    try:
        from bray_model.text import opening
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("torch", "transformers", "tokenizers"):
            raise MissingExtraError("a language model", "bray-model", "llm") from error
        raise
    return opening
