"""How far a graph in fewer bits is from the graph that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bray_model.export.output_error import output_error
from bray_model.tree_spec import Leaf

_RTOL, _ATOL = 1e-3, 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputAgreement:
    """One output over all inputs tried."""

    name: str
    max_abs_error: float
    """Largest `|quantised - float|`."""
    max_rel_error: float
    """Largest `|quantised - float| / max(|float|, 0.1)`."""
    agreement: float | None
    """Share of rows whose largest entry is the same one; of an integer output the share of equal
    rows; None for an output of one float, which decides nothing."""

    @classmethod
    def of(cls, name: str, got: Leaf, want: Leaf) -> OutputAgreement:
        """Compare one output, `[B, ...]`; the arg-max is taken along the last axis."""
        # As floats: a quantised network may take another action, which is no infinite error.
        error = output_error(name, got.astype(np.float64), want.astype(np.float64), _RTOL, _ATOL)
        return cls(
            name=name,
            max_abs_error=error.max_abs_error,
            max_rel_error=error.max_rel_error,
            agreement=_agreement(got, want),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReport:
    """A quantised graph beside the float graph of the same export."""

    kind: str
    """As `bray quantize` calls it, such as `int8`."""
    inputs: str
    """What both were run on: `calibration`, `held-out calibration` (rows that showed no range) or
    `random`."""
    num_rows: int
    outputs: tuple[OutputAgreement, ...]
    share: float | None = None
    """Share of the weights that are in fewer bits; None: in a report of an earlier bray-model."""
    unvaried: tuple[str, ...] = ()
    """Inputs that were the same in every row: what depends on them was not compared."""

    @property
    def agreement(self) -> float | None:
        """The lowest of any output that decides; None if there is none."""
        return min((o.agreement for o in self.outputs if o.agreement is not None), default=None)

    def table(self) -> str:
        """Return a line per output, as text."""
        width = max(map(len, ("output", *(output.name for output in self.outputs))))
        lines = [
            f"{self.kind} beside model.onnx, on {self.num_rows} rows of {self.inputs} inputs:",
            f"{'output':<{width}}  max abs error  max rel error  same arg-max",
        ]
        for output in self.outputs:
            share = "" if output.agreement is None else f"{output.agreement:.2%}"
            lines.append(
                f"{output.name:<{width}}  {output.max_abs_error:13.2e}  "
                f"{output.max_rel_error:13.2e}  {share:>12}".rstrip()
            )
        if self.share is not None:
            lines.append(f"{self.share:.1%} of its weights are in fewer bits")
        lines += [f"{name}: the same in every row" for name in self.unvaried]
        return "\n".join(lines)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> GraphReport:
        """Read it as it stands in `report.json`."""
        outputs = tuple(OutputAgreement(**output) for output in content["outputs"])
        unvaried = tuple(content.get("unvaried", ()))
        return cls(**{**content, "outputs": outputs, "unvaried": unvaried})


def _agreement(got: Leaf, want: Leaf) -> float | None:
    if want.dtype.kind in "biu":
        same = got == want
        return float(same.reshape(len(same), -1).all(axis=1).mean())
    if want.ndim < 2 or want.shape[-1] < 2:
        return None
    return float((got.argmax(-1) == want.argmax(-1)).mean())
