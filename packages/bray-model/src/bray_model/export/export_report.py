"""How far an export differs from the module that it came from, and how fast it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bray_core.errors import ConfigError, ExportError
from bray_model.export.graph_report import GraphReport
from bray_model.export.measurement import Measurement, table
from bray_model.export.output_error import OutputError


def check_tolerance(tolerance: float | None) -> None:
    """Check a relative error that somebody allows.

    Raises:
        ConfigError: it is no number between 0 and 1, without both.
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
    """Those that were compared: all but `random_outputs`."""
    random_outputs: tuple[str, ...] = ()
    """Outputs that the graph draws at random."""
    latency: tuple[Measurement, ...] = ()
    """Of a forward of the module in torch and of the graph, where the export was made."""
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
            tolerance: largest relative error; None: `rtol`.

        Raises:
            ExportError: one is; names it.
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
            ExportError: it is malformed.
        """
        try:
            content = json.loads(data)
            return cls(
                path=path,
                outputs=tuple(OutputError(**output) for output in content.pop("outputs")),
                batch_sizes=tuple(content.pop("batch_sizes")),
                random_outputs=tuple(content.pop("random_outputs", ())),
                latency=tuple(Measurement(**found) for found in content.pop("latency", ())),
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
