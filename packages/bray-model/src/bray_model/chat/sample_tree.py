"""The conversations of one session as a tree: each sample continues a prompt, or another sample.

A request whose messages extend a known history continues the tokens of the sample that ends it.
Concurrent requests and `n` answers to one request are branches. Each leaf of the tree is a row to
train on, from the root to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bray_model.chat.episodes import NO_TURN, TokenSegment
from bray_model.text.requests import Completion


class SampleNode:
    """What was sampled for one prompt, and what stood between it and the sample before.

    Args:
        parent: The sample that this one's prompt continues; None: it begins a conversation.
        context_ids: Tokens of the prompt after those of the parent.
        completion: What the engine sampled.
        turn: Index of the turn in its session.
    """

    __slots__ = (
        "context_ids", "ids", "is_leaf", "log_probs", "num_tokens", "parent", "raw_log_probs",
        "text", "turn", "versions",
    )  # fmt: skip

    def __init__(
        self,
        parent: SampleNode | None,
        context_ids: Sequence[int],
        completion: Completion,
        turn: int,
    ) -> None:
        self.parent = parent
        self.context_ids: npt.NDArray[np.int32] = np.asarray(context_ids, np.int32)
        self.ids = completion.ids.astype(np.int32)
        self.log_probs = completion.logprobs
        self.raw_log_probs = completion.raw_logprobs
        self.versions = completion.versions
        self.text = completion.text
        self.turn = turn
        self.is_leaf = True
        before = parent.num_tokens if parent is not None else 0
        self.num_tokens: int = before + len(self.context_ids) + len(self.ids)
        """Number of tokens from the beginning of the conversation to the end of this sample."""

    def chain(self) -> list[SampleNode]:
        """Return the samples from the first one of the conversation to this one."""
        found: list[SampleNode] = []
        sample: SampleNode | None = self
        while sample is not None:
            found.append(sample)
            sample = sample.parent
        return found[::-1]

    def all_ids(self) -> list[int]:
        """Return all token ids from the beginning of the conversation to the end of this sample."""
        parts = [part for sample in self.chain() for part in (sample.context_ids, sample.ids)]
        ids: list[int] = np.concatenate(parts).tolist()
        return ids


class SampleTree:
    """All samples of one session."""

    def __init__(self) -> None:
        self._samples: list[SampleNode] = []
        self.row_tokens = 0
        """Number of tokens of all rows: what branches share counts once for each of them."""

    def __len__(self) -> int:
        return len(self._samples)

    def more_tokens(self, parent: SampleNode | None, num_tokens: int) -> int:
        """Return by how many tokens the rows grow if a sample is added.

        Args:
            parent: The sample that it continues.
            num_tokens: Number of its own tokens and those of its context.
        """
        if parent is None or parent.is_leaf:
            return num_tokens
        return parent.num_tokens + num_tokens

    def add(
        self,
        parent: SampleNode | None,
        context_ids: Sequence[int],
        completion: Completion,
        turn: int,
    ) -> SampleNode:
        """Add what was sampled."""
        sample = SampleNode(parent, context_ids, completion, turn)
        self.row_tokens += self.more_tokens(parent, len(sample.context_ids) + len(sample.ids))
        if parent is not None:
            parent.is_leaf = False
        self._samples.append(sample)
        return sample

    def segments(self) -> Iterator[TokenSegment]:
        """Yield a row for each leaf; each sampled token is own in one of them."""
        claimed: set[int] = set()
        for leaf in self._samples:
            if leaf.is_leaf:
                segment = _segment(leaf.chain(), claimed)
                if segment.num_own:
                    yield segment


def _segment(chain: list[SampleNode], claimed: set[int]) -> TokenSegment:
    num_tokens = chain[-1].num_tokens
    token_ids = np.empty(num_tokens, np.int32)
    is_own = np.zeros(num_tokens, np.bool_)
    log_probs = np.zeros(num_tokens, np.float32)
    raw_log_probs = np.zeros(num_tokens, np.float32)
    versions = np.full(num_tokens, NO_TURN, np.int64)
    turns = np.full(num_tokens, NO_TURN, np.int32)
    position = 0
    for sample in chain:
        end = position + len(sample.context_ids)
        token_ids[position:end] = sample.context_ids
        own = slice(end, end + len(sample.ids))
        position = own.stop
        token_ids[own] = sample.ids
        if id(sample) in claimed:
            continue
        claimed.add(id(sample))
        is_own[own] = True
        log_probs[own] = sample.log_probs
        raw_log_probs[own] = sample.raw_log_probs
        versions[own] = sample.versions
        turns[own] = sample.turn
    return TokenSegment(
        token_ids=token_ids,
        is_own=is_own,
        log_probs=log_probs,
        raw_log_probs=raw_log_probs,
        versions=versions,
        turns=turns,
    )
