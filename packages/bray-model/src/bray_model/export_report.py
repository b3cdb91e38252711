"""How far an export differs from the module that it came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import ExportError


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """The result of an export, also written to it as `report.json`.

    An output is within tolerance if its relative error is at most `rtol`, which is the same as
    `|export - module| <= max(atol, rtol * |module|)` everywhere. Integers must be equal.
    """

    path: Path
    version: int
    batch_sizes: tuple[int, ...]
    rtol: float
    atol: float
    outputs: tuple[OutputError, ...]

    @property
    def max_abs_error(self) -> float:
        """The largest absolute error of any output."""
        return max(output.max_abs_error for output in self.outputs)

    @property
    def max_rel_error(self) -> float:
        """The largest relative error of any output."""
        return max(output.max_rel_error for output in self.outputs)

    def table(self) -> str:
        """Return a line per output, as text."""
        width = max(len(output.name) for output in self.outputs)
        lines = [f"{'output':<{width}}  max abs error  max rel error"]
        for output in self.outputs:
            lines.append(
                f"{output.name:<{width}}  {output.max_abs_error:13.2e}  "
                f"{output.max_rel_error:13.2e}"
            )
        return "\n".join(lines)

    @classmethod
    def from_json(cls, path: Path, data: bytes) -> ExportReport:
        """Read what `to_json` wrote for the export in the folder `path`.

        Raises:
            ExportError: it is malformed.
        """
        try:
            content = json.loads(data)
            outputs = tuple(OutputError(**output) for output in content.pop("outputs"))
            sizes = tuple(content.pop("batch_sizes"))
            return cls(path=path, outputs=outputs, batch_sizes=sizes, **content)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ExportError(f"{path}: its report is malformed ({error!r})") from error

    def to_json(self) -> bytes:
        """Return the content of `report.json`."""
        content = asdict(self)
        del content["path"]
        return json.dumps(content, indent=2).encode() + b"\n"


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
