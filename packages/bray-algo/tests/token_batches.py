"""Random batches of tokens, and the same batch packed into one row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

B, T = 4, 6
Batch = dict[str, Tensor]


def batch(seed: int, *names: str) -> Batch:
    """Columns of `[B, T]` in float64, with masks as of multi-turn sessions: holes, and padding."""
    rng = np.random.default_rng(seed)
    made = {name: torch.from_numpy(rng.normal(size=(B, T)) - 1) for name in names}
    mask = torch.from_numpy(rng.random((B, T)) < 0.6)
    mask[:, 1] = True
    for row in range(B):
        mask[row, int(rng.integers(2, T + 1)) :] = False
    return {**made, "mask": mask}


def packed(columns: Batch) -> Batch:
    """The rows of a batch behind each other in two rows, without what follows each one's end."""
    mask = columns["mask"]
    lengths = [int(row.nonzero().max()) + 1 for row in mask]
    wanted = {
        name: [column[b, :n] for b, n in enumerate(lengths)] for name, column in columns.items()
    }
    wanted["sequence"] = [torch.full((n,), b) for b, n in enumerate(lengths)]
    width = max(sum(lengths[: B // 2]), sum(lengths[B // 2 :]))

    def row(pieces: list[Tensor]) -> Tensor:
        joined = torch.cat(pieces)
        return torch.cat([joined, torch.zeros(width - len(joined), dtype=joined.dtype)])

    return {
        name: torch.stack([row(pieces[: B // 2]), row(pieces[B // 2 :])])
        for name, pieces in wanted.items()
    }


def padded(columns: Batch, rubbish: float) -> Batch:
    """The same batch with three more tokens a row, and rubbish wherever the mask is false."""
    made = {}
    for name, column in columns.items():
        more = torch.zeros(B, 3, dtype=column.dtype)
        wider = torch.cat([column, more], -1)
        made[name] = wider
    for name, column in made.items():
        if column.is_floating_point():
            made[name] = column.masked_fill(~made["mask"], rubbish)
    return made
