"""Log-probabilities of tokens as the API shows them: with each token's text and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bray_model.text.requests import Token

_INCOMPLETE = "\ufffd"


class TokenTexts:
    """Texts of single tokens, each decoded once.

    Args:
        decode: Returns the text of token ids, special tokens by their names.
        token_bytes: Returns the bytes of a token that is a part of a character, or None.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        token_bytes: Callable[[int], bytes | None],
    ) -> None:
        self._decode = decode
        self._token_bytes = token_bytes
        self._known: dict[int, tuple[str, list[int] | None]] = {}

    def text(self, token_id: int) -> str:
        """Return the text of a token."""
        return self._of(token_id)[0]

    def chat_logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Return what a chat completion has as `logprobs`: those of the plain model."""
        content = []
        for token in tokens:
            one = self._entry(token.id, token.raw_logprob)
            one["top_logprobs"] = [self._entry(*likely) for likely in token.top]
            content.append(one)
        return {"content": content, "refusal": None}

    def completion_logprobs(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        """Return what a plain completion has as `logprobs`.

        Args:
            tokens: The tokens.
            offset: Number of characters of the text before them.
        """
        texts = [self.text(token.id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += 1 if text.startswith("bytes:") else len(text)
        top = [{self.text(one): value for one, value in token.top} for token in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [token.raw_logprob for token in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, as_bytes = self._of(token_id)
        return {"token": text, "logprob": logprob, "bytes": as_bytes}

    def _of(self, token_id: int) -> tuple[str, list[int] | None]:
        known = self._known.get(token_id)
        if known is None:
            text = self._decode([token_id])
            if _INCOMPLETE not in text:
                known = text, list(text.encode(errors="replace"))
            else:  # a part of a character, written as OpenAI writes it: no two are alike
                parts = self._token_bytes(token_id)
                if parts is not None:
                    text = "bytes:" + "".join(f"\\x{one:02x}" for one in parts)
                known = text, None if parts is None else list(parts)
            self._known[token_id] = known
        return known
