"""What computes logits for rows that are being decoded: the Protocol of all ways of doing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class RowMemory(Protocol):
    """What is kept of the rows that are being decoded; rows `0 .. n-1` are the live ones."""

    device: torch.device
    num_rows: int
    """Rows that there is memory for."""
    length: int
    """Tokens a row that there is memory for."""
    limit_tokens: int
    """Tokens of one row that fill all memory."""
    lends: bool
    """Whether a part of what a row has is of use: a beginning for others, a piece to go on from."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        ...

    @property
    def limit_bytes(self) -> int:
        """Largest number of bytes that are held."""
        ...

    def fits(self, num_rows: int, length: int) -> bool:
        """Return whether so many rows of such a length are within the limit."""
        ...

    def resize(self, num_rows: int, length: int, live_rows: int, live_length: int) -> None:
        """Reallocate, keeping the first `live_length` tokens of the first `live_rows` rows."""
        ...

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` tokens of rows to other rows; one that does not lend moves."""
        ...

    def take(self, row: int, length: int) -> list[torch.Tensor]:
        """Return a copy of the first `length` tokens of a row."""
        ...

    def put(self, row: int, taken: Sequence[torch.Tensor]) -> None:
        """Write what `take` gave to the beginning of a row."""
        ...

    def free(self) -> None:
        """Let the memory go."""
        ...


class PromptPart(NamedTuple):
    """Tokens of a row that are computed at once, before it is decoded."""

    row: int
    ids: Sequence[int]
    """Tokens to compute, at least one."""
    start: int
    """Position of the first of them; what lies before is in the cache."""


class StepModule(Protocol):
    """A language model over rows with a memory. Not thread-safe."""

    @property
    def cache(self) -> RowMemory:
        """What is kept of the rows."""
        ...

    def prefill(self, parts: Sequence[PromptPart]) -> torch.Tensor:
        """Compute parts of prompts, fill the cache, and return the last token's logits `[P, V]`."""
        ...

    def decode(self, ids: torch.Tensor, lengths: torch.Tensor, longest: int) -> torch.Tensor:
        """Compute one token for each of the first `n` rows, and return logits `[n, V]`.

        Args:
            ids: The tokens, `[n]`.
            lengths: Their positions: what each row has in the cache, `[n]`.
            longest: The largest of the lengths.
        """
        ...

    def weights_changed(self) -> None:
        """Take note that the weights of the module were written to."""
        ...


def prefill_all(
    module: StepModule, parts: Sequence[PromptPart], most_tokens: int
) -> dict[int, torch.Tensor]:
    """Compute parts of about equal length together; return logits `[V]` by row.

    Args:
        module: What computes them.
        parts: Parts of prompts, each of another row.
        most_tokens: Tokens that are computed at once.
    """
    logits: dict[int, torch.Tensor] = {}
    batch: list[PromptPart] = []

    def compute() -> None:
        logits.update(zip([part.row for part in batch], module.prefill(batch), strict=True))

    for part in sorted(parts, key=lambda part: len(part.ids)):
        while len(part.ids) > most_tokens and module.cache.lends:  # a long one in pieces
            module.prefill([part._replace(ids=part.ids[:most_tokens])])
            part = PromptPart(part.row, part.ids[most_tokens:], part.start + most_tokens)
        if batch and (len(batch) + 1) * len(part.ids) > most_tokens:
            compute()
            batch = []
        batch.append(part)
    if batch:
        compute()
    return logits
