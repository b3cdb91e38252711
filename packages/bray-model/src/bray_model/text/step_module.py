"""What computes logits for rows with cached keys and values: the Protocol of both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from bray_model.text.row_cache import RowCache


class PromptPart(NamedTuple):
    """Tokens of a row that are computed at once, before it is decoded."""

    row: int
    ids: Sequence[int]
    """Tokens to compute, at least one."""
    start: int
    """Position of the first of them; what lies before is in the cache."""


class StepModule(Protocol):
    """A language model over rows of a `RowCache`. Not thread-safe."""

    cache: RowCache

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
        while len(part.ids) > most_tokens:  # a long one in pieces
            module.prefill([part._replace(ids=part.ids[:most_tokens])])
            part = PromptPart(part.row, part.ids[most_tokens:], part.start + most_tokens)
        if batch and (len(batch) + 1) * len(part.ids) > most_tokens:
            compute()
            batch = []
        batch.append(part)
    if batch:
        compute()
    return logits
