"""How far an export differs from the module that it came from, and how fast it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bray_core.errors import ConfigError, ExportError
from bray_model.export.bench import ForwardMeasurement, table
from bray_model.tree_spec import Leaf

_RTOL, _ATOL = 1e-3, 1e-4
"""How far a quantised graph may be from the float one before its report calls it an error."""


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
    """Kind of the graph in the words of `bray quantize`, such as `int8`."""
    inputs: str
    """Inputs that both were run on: `calibration`, `held-out calibration` (rows that showed no
    range) or `random`."""
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


def check_tolerance(tolerance: float | None) -> None:
    """Check a relative error that somebody allows.

    Raises:
        ConfigError: The tolerance is no number between 0 and 1, without both.
    """
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 < tolerance < 1):
        raise ConfigError(
            f"tolerance: expected a number of more than 0 and less than 1, got {tolerance!r}"
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
    """Outputs that were compared: all but `random_outputs`."""
    random_outputs: tuple[str, ...] = ()
    """Outputs that the graph draws at random."""
    latency: tuple[ForwardMeasurement, ...] = ()
    """Time of a forward of the module in torch and of the graph, where the export was made."""
    quantized: tuple[GraphReport, ...] = ()
    """The graphs that `bray quantize` added, beside the float one."""

    @property
    def max_abs_error(self) -> float:
        """The largest absolute error of any output."""
        return max((output.max_abs_error for output in self.outputs), default=0.0)

    @property
    def max_rel_error(self) -> float:
        """The largest relative error of any output."""
        return max((output.max_rel_error for output in self.outputs), default=0.0)

    def check(self, tolerance: float | None = None) -> None:
        """Check that no output is further from the module's than allowed.

        Args:
            tolerance: Largest relative error; None: `rtol`.

        Raises:
            ExportError: An output is further away; names it.
            ConfigError: the tolerance is out of range.
        """
        check_tolerance(tolerance)
        rtol = self.rtol if tolerance is None else tolerance
        for output in self.outputs:
            if not output.max_rel_error <= rtol:
                raise ExportError(
                    f"{output.name}: the export differs from the module by "
                    f"{output.max_abs_error:.3g} (relative {output.max_rel_error:.3g}, allowed "
                    f"{rtol:g}): a module that draws random numbers (take them as an input, or "
                    f"name what depends on them: random_outputs=({output.name!r},)), or an "
                    "operator that exports inexactly (tolerance allows more)"
                )

    def with_graph(self, graph: GraphReport) -> ExportReport:
        """Return it with the report of one more quantised graph, or of a newer one of its kind."""
        others = (other for other in self.quantized if other.kind != graph.kind)
        return replace(self, quantized=(*others, graph))

    def agreement(self) -> dict[str, float]:
        """Return kind → share of decisions that are the float graph's, where there are any."""
        shares = {graph.kind: graph.agreement for graph in self.quantized}
        return {kind: share for kind, share in shares.items() if share is not None}

    def table(self) -> str:
        """Return a line per output, then the latencies, then the quantised graphs, as text."""
        width = max(map(len, ("output", *self.random_outputs, *self._names())))
        lines = [f"{'output':<{width}}  max abs error  max rel error"]
        for output in self.outputs:
            lines.append(
                f"{output.name:<{width}}  {output.max_abs_error:13.2e}  "
                f"{output.max_rel_error:13.2e}"
            )
        lines += [f"{name:<{width}}  drawn at random" for name in self.random_outputs]
        parts = ["\n".join(lines)]
        if self.latency:
            parts.append(table(self.latency))
        parts += [graph.table() for graph in self.quantized]
        return "\n\n".join(parts)

    def _names(self) -> list[str]:
        return [output.name for output in self.outputs]

    @classmethod
    def from_json(cls, path: Path, data: bytes) -> ExportReport:
        """Read what `to_json` wrote for the export in the folder `path`.

        Raises:
            ExportError: The report is malformed.
        """
        try:
            content = json.loads(data)
            return cls(
                path=path,
                outputs=tuple(OutputError(**output) for output in content.pop("outputs")),
                batch_sizes=tuple(content.pop("batch_sizes")),
                random_outputs=tuple(content.pop("random_outputs", ())),
                latency=tuple(ForwardMeasurement(**found) for found in content.pop("latency", ())),
                quantized=tuple(map(GraphReport.from_content, content.pop("quantized", ()))),
                **content,
            )
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise ExportError(f"{path}: its report is malformed ({error!r})") from error

    def to_json(self) -> bytes:
        """Return the content of `report.json`."""
        content = asdict(self)
        del content["path"]
        return json.dumps(content, indent=2).encode() + b"\n"
