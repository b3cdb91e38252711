"""Between text and token ids: a transformers tokenizer, its chat template, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bray_core.errors import ConfigError, SpecError
from bray_model.text.requests import MissingChatTemplateError, TextRequest
from bray_model.text.sampling.json_tokens import JsonConstraint, JsonTokens
from bray_model.text.token_bytes import bytes_of


class TokenizerText:
    """A tokenizer of transformers for one model.

    Args:
        tokenizer: The tokenizer.
        vocab_size: Number of token ids that the model knows.

    Raises:
        ConfigError: The tokenizer has ids that the model does not know.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        ids = tokenizer.get_vocab()
        most = max(ids.values(), default=-1)
        if most >= vocab_size:
            name = next(name for name, token in ids.items() if token == most)
            raise ConfigError(
                f"the tokenizer does not fit the model: its token {name!r} has id {most}, but the "
                f"model knows {vocab_size} ids: take the model's own tokenizer, or resize its "
                "embeddings"
            )
        self._tokenizer = tokenizer
        self._rust = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = self._rust is not None and "ByteLevel" in repr(self._rust.decoder)
        self._vocab_size = vocab_size
        self._json_tokens: JsonTokens | None = None

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Return token ids."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=special))

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids."""
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that is a part of a character; None where nothing tells."""
        name = self._tokenizer.convert_ids_to_tokens(int(token))
        return None if name is None else bytes_of(name, is_byte_level=self._is_byte_level)

    def held(self, request: TextRequest, eos_ids: Sequence[int]) -> TextRequest:
        """Return a request with what its tokens are held to, where it asks for a format.

        Raises:
            SpecError: The tokens cannot spell it.
        """
        if request.sampling.response_format == "text" or request.constraint is not None:
            return request
        return replace(request, constraint=JsonConstraint(self.json_tokens(eos_ids)))

    def json_tokens(self, eos_ids: Sequence[int]) -> JsonTokens:
        """Return which tokens may follow each other in JSON, made at the first call.

        Args:
            eos_ids: Tokens that end a completion.

        Raises:
            SpecError: The tokens cannot spell an object.
        """
        if self._json_tokens is None:
            self._json_tokens = JsonTokens(self._spelled(eos_ids), eos_ids)
        return self._json_tokens

    def _spelled(self, eos_ids: Sequence[int]) -> list[bytes | None]:
        """Return the bytes that each token adds to a text; None where it adds no certain ones."""
        known = set(self._tokenizer.get_vocab().values())
        hidden = {*self._tokenizer.all_special_ids, *eos_ids}
        tokens = [one for one in range(self._vocab_size) if one in known and one not in hidden]
        # A tokenizer may write a token otherwise where it is the first one: each is behind another.
        alone = self.decode_all([[one] for one in tokens])
        first = next((one for one, text in zip(tokens, alone, strict=True) if text.isalnum()), None)
        found: list[bytes | None] = [None] * self._vocab_size
        if first is None:
            return found
        before = self.decode([first])
        behind = self.decode_all([[first, one] for one in tokens])
        for one, text in zip(tokens, behind, strict=True):
            if text.startswith(before) and "\ufffd" not in text:
                found[one] = text[len(before) :].encode(errors="replace")
            else:
                found[one] = self.token_bytes(one)
        return found

    def decoder(self) -> Callable[[Sequence[int]], str]:
        """Return what decodes the tokens of one completion, called for each of them."""
        if self._rust is None:
            return self.decode
        decode = self._rust.decode
        return lambda ids: decode(ids, skip_special_tokens=True)

    def decode_all(self, rows: list[list[int]]) -> list[str]:
        """Return the texts of many rows of ids."""
        if self._rust is None:
            return [self.decode(row) for row in rows]
        texts: list[str] = self._rust.decode_batch(rows, skip_special_tokens=True)
        return texts

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text that the chat template makes of messages."""
        if not self._tokenizer.chat_template:
            raise MissingChatTemplateError(
                "the model's tokenizer has no chat template, so it takes no messages: ask for a "
                "completion of plain text, or put a chat_template.jinja into the model's folder"
            )
        if not messages:
            raise SpecError("messages: expected at least one message")
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:
            raise SpecError(
                f"the model's chat template refuses the messages: {type(error).__name__}: {error}"
            ) from error
        return text
