"""How far one output of an export is from another computation of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputError:
    """The largest errors of one output over all inputs tried."""

    name: str
    max_abs_error: float
    """Largest `|export - module|`."""
    max_rel_error: float
    """Largest `|export - module| / max(|module|, atol / rtol)`: near zero, where a true relative
    error says nothing, it is the absolute error in units of `atol / rtol`."""

    def joined(self, other: OutputError) -> OutputError:
        """Return the larger errors of both."""
        return OutputError(
            name=self.name,
            max_abs_error=max(self.max_abs_error, other.max_abs_error),
            max_rel_error=max(self.max_rel_error, other.max_rel_error),
        )


def output_error(
    name: str, export: npt.NDArray[Any], module: npt.NDArray[Any], rtol: float, atol: float
) -> OutputError:
    """Compare one output. Equal infinities and NaNs are no error; an unequal one is infinite."""
    wide = np.complex128 if module.dtype.kind == "c" else np.float64
    got, want = export.astype(wide), module.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(got - want)
        difference[(got == want) | (np.isnan(got) & np.isnan(want))] = 0.0
        difference[np.isnan(difference)] = np.inf
        scale = np.nan_to_num(np.maximum(np.abs(want), atol / rtol), nan=1.0)
        relative = difference / scale
    if module.dtype.kind in "biu":
        relative = np.where(difference > 0, np.inf, 0.0)
    return OutputError(
        name=name,
        max_abs_error=float(difference.max(initial=0.0)),
        max_rel_error=float(relative.max(initial=0.0)),
    )


def join(reports: Sequence[Sequence[OutputError]]) -> tuple[OutputError, ...]:
    """Return the largest errors per output over several comparisons."""
    joined = list(reports[0])
    for report in reports[1:]:
        joined = [a.joined(b) for a, b in zip(joined, report, strict=True)]
    return tuple(joined)
