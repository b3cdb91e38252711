"""Checks of an export that need no module: shapes, batch sizes, exchanged weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from bray_core import nested
from bray_core.errors import ExportError
from bray_core.nested import Nested
from bray_model.config import Backend, ModelConfig
from bray_model.engines.definition import open_definition
from bray_model.engines.engine import Engine
from bray_model.export.export_folder import read_report
from bray_model.export.export_report import check_tolerance
from bray_model.export.trial_inputs import random_inputs
from bray_model.export_files.manifest import QUANTIZED, Manifest
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf

_BATCH_SIZES = (1, 2, 7, 64)
_SIZES = f"batches of {', '.join(map(str, _BATCH_SIZES))} rows"


def validate(export: Path, manifest: Manifest, tolerance: float | None = None) -> Iterator[str]:
    """Run an export on random inputs in several batch sizes; yield what was found to hold.

    Args:
        export: Folder of the export.
        manifest: Manifest of the export.
        tolerance: relative error between results that are the same; None: what the export was
            made with.

    Raises:
        ExportError: an output has another shape or dtype than the manifest says, a row's result
            depends on the other rows, or the graph that takes its weights as inputs differs.
        ConfigError: the tolerance is out of range.
    """
    check_tolerance(tolerance)
    report = read_report(export)
    drawn = report.random_outputs
    rtol, atol = (report.rtol, report.atol) if tolerance is None else (tolerance, tolerance / 10)
    found = _Outputs(export, manifest.signature, drawn, rtol, atol)
    engine = open_definition(export, None).engine
    largest = random_inputs(manifest.signature, max(_BATCH_SIZES))
    whole = found.of(engine, largest)
    for rows in _BATCH_SIZES:
        outputs = found.of(engine, _first(largest, rows))
        found.compare(f"with {rows} rows", outputs, _first(whole, rows))
    yield f"{_SIZES}: the same result for each row"
    if drawn:
        yield f"drawn at random, and so not compared: {', '.join(drawn)}"
    weights = engine.weights()
    if weights is None:
        yield "its weights are fixed"
    else:
        engine.load(weights)
        found.compare("with its weights as inputs", found.of(engine, largest), whole)
        yield f"its {len(weights)} weights can be exchanged: the same result with them as inputs"
    for backend in get_args(Backend):
        if QUANTIZED.get(backend) in manifest.files:
            engine = open_definition(export, None, ModelConfig(backend=backend)).engine
            for rows in _BATCH_SIZES:
                found.of(engine, _first(largest, rows))
            yield f"{backend}: {_SIZES}: outputs of the right shapes"


def _first(tree: Nested, rows: int) -> Nested:
    return nested.map(lambda leaf: leaf[:rows], tree)


class _Outputs:
    """Outputs by path, but for those drawn at random."""

    def __init__(
        self, export: Path, signature: Signature, drawn: Sequence[str], rtol: float, atol: float
    ) -> None:
        self._export = export
        self._rtol, self._atol = rtol, atol
        self._signature = signature
        self._drawn = drawn

    def of(self, engine: Engine, inputs: tuple[Nested, ...]) -> dict[str, Leaf]:
        """Run a batch; raise ExportError if an output has another shape than the manifest says."""
        outputs = engine.run(inputs)
        rows = self._signature.input_tree.batch(inputs)[1]
        got = nested.map(lambda leaf: leaf.shape, outputs)
        want = nested.map(lambda spec: (rows, *spec.shape), self._signature.outputs)
        if got != want:
            raise ExportError(
                f"{self._export}: with {rows} rows expected the outputs {want}, got {got}"
            )
        named = nested.items(outputs, "outputs")
        return {path: leaf for path, leaf in named if path not in self._drawn}

    def compare(self, when: str, got: dict[str, Leaf], want: dict[str, Leaf]) -> None:
        """Raise ExportError if results differ."""
        for path, leaf in got.items():
            if not np.allclose(leaf, want[path], self._rtol, self._atol, equal_nan=True):
                raise ExportError(
                    f"{self._export}: {path}: another result {when} (allowed: relative "
                    f"{self._rtol:g}, --tolerance allows more)"
                )
