"""Which tokens keep a completion the beginning of a JSON object."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from bray_core.errors import SpecError
from bray_model.text.sampling.json_grammar import (
    BEGIN,
    MAX_DEPTH,
    JsonGrammar,
    State,
    is_complete,
    is_in_character,
    is_within_string,
)

_NEEDED = b'{}":'
_MOST_MASKS = 512
"""Masks that are remembered, a byte for each token of the vocabulary."""


class _Node:
    """A beginning of tokens: what may follow it, and the tokens that it is."""

    __slots__ = ("following", "ids")

    def __init__(self) -> None:
        self.following: dict[int, _Node] = {}
        self.ids: list[int] = []

    def add(self, token: int, text: bytes) -> None:
        """Add a token below this beginning."""
        node = self
        for byte in text:
            node = node.following.setdefault(byte, _Node())
        node.ids.append(token)


class JsonTokens:
    """The tokens of a vocabulary as a tree of their bytes, and masks of those that may follow.

    Many states allow the same tokens: what counts is the mode, and as much of the open brackets
    as a single token can close or open. A mask is computed once for each such kind of state.

    Args:
        spelled: Bytes of each token, by its id; None or none: it is never allowed.
        eos_ids: Tokens that end a completion, allowed where the object is whole.

    Raises:
        SpecError: The tokens cannot spell an object, or nothing ends one.
    """

    def __init__(self, spelled: Sequence[bytes | None], eos_ids: Sequence[int]) -> None:
        alphabet = frozenset(one[0] for one in spelled if one and len(one) == 1)
        missing = [chr(byte) for byte in _NEEDED if byte not in alphabet]
        if missing or not eos_ids:
            lacks = f"tokens for {' '.join(missing)}" if missing else "an end-of-text token"
            raise SpecError(f"response_format: JSON needs {lacks}, which the tokenizer lacks")
        self._spelled = spelled
        self._eos = np.array(eos_ids, np.int64)
        self._grammar = JsonGrammar(alphabet)
        self._has_all_bytes = alphabet >= set(range(0x80, 0xC0))
        self._root = _Node()
        self._other = _Node()
        """Tokens that are no plain text: those alone are looked at within a string."""
        self._plain = np.array([_is_plain(one) for one in spelled], np.bool_)
        for token, text in enumerate(spelled):
            if text:
                self._root.add(token, text)
            if text and not self._plain[token]:
                self._other.add(token, text)
        texts = [one for one in spelled if one]
        self._most_closed = 1 + max(one.count(b"}") + one.count(b"]") for one in texts)
        self._most_opened = max(one.count(b"{") + one.count(b"[") for one in texts)
        self._masks: OrderedDict[Hashable, npt.NDArray[np.bool_]] = OrderedDict()

    def after(self, state: State, token: int) -> State:
        """Return the state after a token that was allowed."""
        if is_complete(state):
            return state  # the token that ended it

        def step(at: State, byte: int) -> State:
            found = self._grammar.after(at, byte)
            assert found is not None, "only what is allowed is sampled"
            return found

        return reduce(step, self._spelled[token] or b"", state)

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow, `[V]`, not to be written to."""
        mode, count, stack = state
        deepest = len(stack) <= self._most_closed
        room = min(MAX_DEPTH - len(stack), self._most_opened)
        kind = mode, count, stack[-self._most_closed :], deepest, room
        found = self._masks.get(kind)
        if found is None:
            found = self._masks[kind] = self._allowed(state)
            if len(self._masks) > _MOST_MASKS:
                self._masks.popitem(last=False)
        else:
            self._masks.move_to_end(kind)
        return found

    def _allowed(self, state: State) -> npt.NDArray[np.bool_]:
        is_text = is_within_string(state)
        allowed = self._plain.copy() if is_text else np.zeros(len(self._plain), np.bool_)
        if is_complete(state):
            allowed[self._eos] = True
            return allowed
        waiting = [(self._other if is_text else self._root, state)]
        while waiting:
            node, at = waiting.pop()
            for byte, following in node.following.items():
                found = self._grammar.after(at, byte)
                if found is None:
                    continue
                if self._has_all_bytes or not is_in_character(found):
                    allowed[following.ids] = True
                waiting.append((following, found))
        return allowed


def _is_plain(text: bytes | None) -> bool:
    """Return whether a token is whole characters that a string has as they are."""
    if not text or min(text) < 0x20 or b'"' in text or b"\\" in text:
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class JsonConstraint:
    """Keeps one completion a JSON object.

    Args:
        tokens: The vocabulary.
    """

    def __init__(self, tokens: JsonTokens) -> None:
        self._tokens = tokens
        self._state, self._count = BEGIN, 0

    def allowed(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow those that were sampled, `[V]`, not to be written to."""
        if len(ids) < self._count:  # it began anew
            self._state, self._count = BEGIN, 0
        for token in ids[self._count :].tolist():
            self._state = self._tokens.after(self._state, token)
        self._count = len(ids)
        return self._tokens.mask(self._state)
