"""Bearer tokens, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from bray_core.errors import ConfigError

_MAX_TOKEN_BYTES = 4096


class Tokens:
    """The tokens that a server accepts; several at once, so that they can be rotated."""

    def __init__(self, tokens: Sequence[str]) -> None:
        if isinstance(tokens, str) or not all(tokens):
            raise ConfigError("tokens: expected a list of non-empty strings")
        self._tokens = [token.encode() for token in tokens]

    @property
    def max_bytes(self) -> int:
        """What a client may send before it is known: a token, though perhaps a wrong one."""
        return max([_MAX_TOKEN_BYTES, *map(len, self._tokens)])

    @property
    def required(self) -> bool:
        """Whether clients need one."""
        return bool(self._tokens)

    def accept(self, token: bytes) -> bool:
        """Return whether a client may go on; always where none is required."""
        matches = [hmac.compare_digest(token, known) for known in self._tokens]
        return any(matches) or not self._tokens

    def accept_header(self, authorization: bytes) -> bool:
        """Return whether an `Authorization: Bearer …` header is accepted."""
        scheme, _, token = authorization.partition(b" ")
        return not self._tokens or (scheme.lower() == b"bearer" and self.accept(token.strip()))
