"""The scatter connection: entities put onto a map."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from bray_algo.networks.attention import check_present


def scatter(
    entities: Tensor,
    position: Tensor,
    present: Tensor,
    height: int,
    width: int,
    reduce: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Put each entity's features where it stands: a map `[B, D, H, W]`, zero where nobody is.

    Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods ("scatter connections").

    Args:
        entities: Features of each entity, `[B, N, D]`. The absent may hold anything, NaN too.
        position: Row and column of each, integers `[B, N, 2]`. Who stands off the map is left out.
        present: Entities that are there, bool `[B, N]`.
        height: Number H of rows of the map.
        width: Number W of columns of the map.
        reduce: Result of several entities on one cell: their `sum` or `mean`.

    Raises:
        ValueError: shapes do not agree, or an unknown reduction.

    Examples:
        >>> here, there = torch.tensor([[[0, 1]]]), torch.ones(1, 1, dtype=torch.bool)
        >>> scatter(torch.full((1, 1, 1), 5.0), here, there, 2, 2)[0, 0].tolist()
        [[0.0, 5.0], [0.0, 0.0]]
    """
    _check(entities, position, present, height, width, reduce)
    row, column = position[..., 0].long(), position[..., 1].long()
    on_map = (row >= 0) & (row < height) & (column >= 0) & (column < width) & present
    # Who is not on the map goes to one cell more, which is cut off.
    cell = torch.where(on_map, row * width + column, height * width).unsqueeze(-1)
    values = entities.masked_fill(~on_map.unsqueeze(-1), 0.0)
    total = _add(values, cell, height * width)
    if reduce == "mean":
        # The same sum of ones is the number of entities on each cell.
        total = total / _add(torch.ones_like(values[..., :1]), cell, height * width).clamp(min=1.0)
    return total.transpose(1, 2).reshape(-1, entities.shape[-1], height, width)


def _add(values: Tensor, cell: Tensor, num_cells: int) -> Tensor:
    """Add rows `[B, N, D]` at cells `[B, N, 1]` to `[B, cells, D]`."""
    batch, _, size = values.shape
    total = values.new_zeros(batch, num_cells + 1, size)
    return total.scatter_add(1, cell.expand_as(values), values)[:, :-1]


def _check(
    entities: Tensor, position: Tensor, present: Tensor, height: int, width: int, reduce: str
) -> None:
    if entities.ndim != 3:
        raise ValueError(f"entities: expected [B, N, D], got shape {tuple(entities.shape)}")
    check_present(present, entities)
    if position.shape != (*entities.shape[:2], 2) or position.dtype.is_floating_point:
        raise ValueError(
            f"position: expected integers {(*entities.shape[:2], 2)}, "
            f"got {position.dtype} {tuple(position.shape)}"
        )
    if height < 1 or width < 1:
        raise ValueError(f"height, width: expected positive numbers, got {height}, {width}")
    if reduce not in ("sum", "mean"):
        raise ValueError(f"reduce: expected 'sum' or 'mean', got {reduce!r}")
