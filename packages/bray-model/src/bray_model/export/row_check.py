"""Whether a network answers each row by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bray_core import nested
from bray_core.errors import ExportError
from bray_core.nested import Nested
from bray_model.export.export_report import output_error
from bray_model.signature import Forward

_ALONE = 8
"""Rows that are asked one by one."""
_MANY = 0.25
"""Share of rows from which on a difference is no accident.

One row's may be: of two actions that are worth the same to the last bit, another number of rows
may prefer the other.
"""


def check_rows(
    run: Forward, inputs: tuple[Nested, ...], paths: Sequence[str], rtol: float, atol: float
) -> None:
    """Ask rows alone, and in another order, and compare with all of them together.

    A server joins rows of different callers to a batch: what another asks must change nothing.

    Args:
        run: Forward of the network.
        inputs: Rows `[B, ...]` that differ, 8 or more.
        paths: Paths of the outputs to compare.
        rtol: Largest relative error of an output that is the same.
        atol: Largest absolute error where an output is near zero.

    Raises:
        ExportError: an output depends on the other rows, or the network takes no row alone.
    """
    together = _outputs(run(inputs))
    rows = len(next(iter(together.values())))
    chosen = np.unique(np.linspace(0, rows - 1, _ALONE).astype(int))
    alone = [_outputs(run(_rows(inputs, [row]))) for row in chosen]
    backwards = list(range(rows))[::-1]
    turned = _outputs(run(_rows(inputs, backwards)))
    for path in paths:
        whole = together[path]
        ones = np.concatenate([outputs[path] for outputs in alone])
        for what, got, want in (
            ("alone", ones, whole[chosen]),
            ("in another order", turned[path], whole[backwards]),
        ):
            share = _share_that_differs(path, got, want, rtol, atol)
            if share >= _MANY:
                raise ExportError(
                    f"{path}: rows depend on each other: asked {what}, {share:.0%} of them get "
                    "another result than in one batch. A server joins rows of different callers: "
                    "compute nothing across the batch dimension (a mean over rows, BatchNorm "
                    "without running statistics or in training mode)"
                )


def _share_that_differs(
    path: str, got: npt.NDArray[np.generic], want: npt.NDArray[np.generic], rtol: float, atol: float
) -> float:
    errors = [
        output_error(path, got[i : i + 1], want[i : i + 1], rtol, atol).max_rel_error
        for i in range(len(want))
    ]
    return float(np.mean([not error <= rtol for error in errors]))


def _outputs(outputs: Nested) -> dict[str, npt.NDArray[np.generic]]:
    return dict(nested.items(outputs, "outputs"))


def _rows(inputs: tuple[Nested, ...], rows: Sequence[int]) -> tuple[Nested, ...]:
    chosen: tuple[Nested, ...] = nested.map(lambda leaf: leaf[rows], inputs)
    return chosen
