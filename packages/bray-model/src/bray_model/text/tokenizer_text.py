"""Between text and token ids: a transformers tokenizer, its chat template, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bray_core.errors import ConfigError, SpecError
from bray_model.text.requests import MissingChatTemplateError
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
