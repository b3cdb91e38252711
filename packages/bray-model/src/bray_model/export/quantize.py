"""Adds a graph in fewer bits to an export, and tells how far it is from the float graph."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bray_core import nested
from bray_core.errors import ConfigError, ExportError, MissingExtraError, SpecError
from bray_core.nested import Nested
from bray_core.settings.choice import check_choice
from bray_model.engines.engine import Engine
from bray_model.engines.onnx_engine import OnnxEngine
from bray_model.export.export_folder import extend_export
from bray_model.export.export_report import ExportReport, GraphReport, OutputAgreement
from bray_model.export.trial_inputs import random_inputs
from bray_model.export_files.graph_files import external_files
from bray_model.export_files.manifest import GRAPH, MANIFEST, QUANTIZED, REPORT, Manifest, sha256
from bray_model.signature import Forward, Signature
from bray_model.tree_spec import Leaves

logger = logging.getLogger(__name__)

Batch = tuple[Nested, ...]
"""A model's inputs, nested arrays `[B, ...]`."""

_RANDOM_BATCHES, _RANDOM_ROWS = 4, 64
_HELD_OUT = 4
"""One row of so many is kept from the calibration, to compare on."""
_HALF_ROWS = 256
"""Rows that a float16 graph is compared on: some ten seconds of an Atari CNN's reference."""


def quantize(
    export: str | Path, kind: str, calibration: Iterable[Batch] | None = None
) -> GraphReport:
    """Add a quantised graph to the export in a folder; `ModelConfig(backend=kind)` runs it.

    The folder gets the graph `<kind>.onnx`, its checksum and its comparison with the float graph
    at once, or stays as it was. The graph's weights are fixed, its inputs and outputs unchanged.

    Args:
        export: Folder of the export.
        kind: `int8` (weights and activations), `int8-dynamic` (weights; activations while it
            runs) or `float16` (for GPUs).
        calibration: inputs as the model will see them, some hundred rows, which are kept in
            memory. `int8` takes its ranges from three quarters of them, and is compared on the
            others; the other kinds are compared on all of them, or else on random inputs.

    Raises:
        ConfigError: the kind is unknown, or `int8` has no calibration or one whose rows are all
            the same.
        SpecError: the calibration does not fit the model; names the batch and the input.
        ExportError: the export is broken, its graph cannot be had in fewer bits, or no weight of
            it is in fewer bits then.
        MissingExtraError: onnx is not installed.
    """
    _check_kind(kind, calibration)
    path = Path(export)
    manifest = Manifest.read(path)
    graph, signature = manifest.read_graph(path, GRAPH), manifest.signature
    report = ExportReport.from_json(path, manifest.read_file(path, REPORT))
    whole = OnnxEngine(graph, signature, folder=path)
    batches = _random(whole, signature) if calibration is None else _checked(signature, calibration)
    unvaried = _unvaried(signature, batches)
    inputs = "random" if calibration is None else "calibration"
    measured = batches
    if kind == "int8":
        batches, measured = _held_out(signature, batches, unvaried)
        inputs = "held-out calibration"
    reduced, share = _reduced(graph, path, kind, signature, batches)
    if kind != "float16" and not share:
        raise ExportError(
            f"{GRAPH}: {kind} leaves all its weights as they are: onnxruntime has it for none of "
            "these operators (for an LSTM it has int8-dynamic): take another kind"
        )
    if kind == "float16":
        measured = _first(signature, measured, _HALF_ROWS)
    runs = _runner(reduced, kind, signature), whole.run
    added = GraphReport(
        kind=kind,
        inputs=inputs,
        num_rows=sum(_num_rows(signature, batch) for batch in measured),
        outputs=_compare(*runs, signature, measured, report.random_outputs),
        share=share,
        unvaried=unvaried,
    )
    if unvaried:
        logger.warning("%s: the same in every row: it was not compared", ", ".join(unvaried))
    files = {QUANTIZED[kind]: reduced, REPORT: report.with_graph(added).to_json()}
    checksums = {name: sha256(data) for name, data in files.items()}
    manifest = replace(manifest, files={**manifest.files, **checksums})
    extend_export(path, {**files, MANIFEST: manifest.to_json()})
    return added


def _check_kind(kind: str, calibration: Iterable[Batch] | None) -> None:
    check_choice("kind", kind, QUANTIZED)
    if kind == "int8" and calibration is None:
        raise ConfigError(
            "calibration: kind='int8' takes the ranges of its numbers from inputs as the model "
            "will see them: pass some hundred rows, or take kind='int8-dynamic'"
        )


def _checked(signature: Signature, calibration: Iterable[Batch]) -> list[Batch]:
    batches = list(calibration)
    if not batches:
        raise ConfigError("calibration: expected at least one batch of inputs, got none")
    for i, batch in enumerate(batches):
        if not isinstance(batch, tuple):
            raise SpecError(
                f"calibration[{i}]: expected the tuple of the model's inputs, [B, ...] each, "
                f"got {type(batch).__name__}"
            )
        try:
            signature.input_tree.batch(batch)
        except SpecError as error:
            raise SpecError(f"calibration[{i}]: {error}") from None
    return batches


def _unvaried(signature: Signature, batches: Sequence[Batch]) -> tuple[str, ...]:
    """Return the inputs that are the same in every row, if there is more than one row."""
    columns = _columns(signature, batches)
    if len(columns[0]) < 2:
        return ()
    paths = signature.input_tree.paths
    same = (bool((leaf == leaf[:1]).all()) for leaf in columns)
    return tuple(path for path, is_same in zip(paths, same, strict=True) if is_same)


def _held_out(
    signature: Signature, batches: Sequence[Batch], unvaried: Sequence[str]
) -> tuple[list[Batch], list[Batch]]:
    """Return rows that show the ranges, and every fourth row, which shows how good those are.

    Raises:
        ConfigError: there is one row, or all are the same.
    """
    rows = sum(_num_rows(signature, batch) for batch in batches)
    if rows < 2 or len(unvaried) == len(signature.input_tree.paths):
        raise ConfigError(
            f"calibration: expected rows that differ as those that the model will see, got {rows} "
            "of which all are the same: ranges of numbers cannot be told from them"
        )
    kept: list[Batch] = []
    held: list[Batch] = []
    seen = 0
    for batch in batches:
        count = _num_rows(signature, batch)
        is_held = np.arange(seen + 1, seen + count + 1) % _HELD_OUT == 0
        if seen + count == rows and rows < _HELD_OUT:
            is_held[-1] = True
        for chosen, into in ((~is_held, kept), (is_held, held)):
            if chosen.any():
                into.append(nested.map(lambda leaf, chosen=chosen: leaf[chosen], batch))
        seen += count
    return kept, held


def _columns(signature: Signature, batches: Sequence[Batch]) -> Leaves:
    """Return the leaves of all rows together."""
    leaves = [signature.input_tree.batch(batch)[0] for batch in batches]
    return [np.concatenate(column) for column in zip(*leaves, strict=True)]


def _random(engine: Engine, signature: Signature) -> list[Batch]:
    """Return random inputs; integers as pixels if the graph takes them, else zeros."""
    seeds = range(_RANDOM_BATCHES)
    batches = [random_inputs(signature, _RANDOM_ROWS, seed, below=256) for seed in seeds]
    try:
        engine.run(batches[0])
    except Exception:  # noqa: BLE001  onnxruntime's own: an index beyond a table
        return [random_inputs(signature, _RANDOM_ROWS, seed) for seed in seeds]
    return batches


def _num_rows(signature: Signature, batch: Batch) -> int:
    return signature.input_tree.batch(batch)[1]


def _first(signature: Signature, batches: Sequence[Batch], rows: int) -> list[Batch]:
    """Return the first so many rows of batches."""
    kept: list[Batch] = []
    for batch in batches:
        if rows > 0:
            kept.append(nested.map(lambda leaf, rows=rows: leaf[:rows], batch))
        rows -= _num_rows(signature, batch)
    return kept


def _reduced(
    graph: bytes, folder: Path, kind: str, signature: Signature, batches: Sequence[Batch]
) -> tuple[bytes, float]:
    """Return the graph in fewer bits, and the share of its weights that are."""
    try:
        from bray_model.export import reduced_graph
    except ImportError as error:
        raise MissingExtraError("a quantised graph", "bray-model", "torch") from error
    tree = signature.input_tree
    try:
        if external_files(graph, GRAPH):
            graph = reduced_graph.whole(graph, folder)
        if kind == "float16":
            return reduced_graph.half(graph)
        if kind == "int8-dynamic":
            return reduced_graph.dynamic_int8(graph)
        feeds = [dict(zip(tree.paths, tree.batch(batch)[0], strict=True)) for batch in batches]
        return reduced_graph.static_int8(graph, feeds)
    except Exception as error:  # onnx and onnxruntime raise anything
        raise ExportError(
            f"{GRAPH}: onnxruntime cannot make it {kind}: {type(error).__name__}: {error}"
        ) from error


def _runner(graph: bytes, kind: str, signature: Signature) -> Forward:
    """Return what runs a quantised graph as its numbers really are."""
    engine = OnnxEngine(graph, signature, file=QUANTIZED[kind])
    if kind != "float16":
        return engine.run
    from bray_model.export.reduced_graph import HalfReference

    return HalfReference(graph, signature).run


def _compare(
    reduced: Forward,
    whole: Forward,
    signature: Signature,
    batches: Sequence[Batch],
    random_outputs: Sequence[str],
) -> tuple[OutputAgreement, ...]:
    got, want = (_outputs(run, signature, batches) for run in (reduced, whole))
    found = []
    for path, a, b in zip(signature.output_tree.paths, got, want, strict=True):
        if path in random_outputs:
            continue
        found.append(OutputAgreement.of(path, a, b))
        if not np.isfinite(found[-1].max_abs_error):
            raise ExportError(
                f"{path}: the quantised graph gives NaN or inf where the float one does not: its "
                "numbers are beyond the smaller type's range"
            )
    return tuple(found)


def _outputs(run: Forward, signature: Signature, batches: Sequence[Batch]) -> Leaves:
    columns: list[Leaves] = []
    for batch in batches:
        leaves = signature.output_tree.leaves(run(batch))
        assert leaves is not None
        columns.append(leaves)
    return [np.concatenate(column) for column in zip(*columns, strict=True)]
