"""torch → ONNX, compared with the module before anything is left on disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import safetensors.numpy
import torch

from bray_core.errors import ConfigError
from bray_core.files.saved_folder import saved_folder
from bray_core.process import memory
from bray_core.protocols import Weights
from bray_model.engines.definition import NetworkDefinition
from bray_model.engines.engine import Engine
from bray_model.engines.onnx_engine import OnnxEngine
from bray_model.engines.torch_engine import TorchEngine
from bray_model.export.bench import ForwardMeasurement, median_us
from bray_model.export.comparison import BATCH_SIZES, ExportComparison
from bray_model.export.export_folder import check_target
from bray_model.export.export_report import (
    ExportReport,
    check_tolerance,
)
from bray_model.export.torch_graph import WrittenGraph, write_torch_graph
from bray_model.export.traced_graph import is_traceable, write_traced_graph
from bray_model.export_files.manifest import (
    EXCHANGE,
    GRAPH,
    MANIFEST,
    REPORT,
    WEIGHTS,
    Manifest,
    file_sha256,
)
from bray_model.signature import Signature, resize
from bray_model.versions.weights import refuse_nan

logger = logging.getLogger(__name__)

RTOL = 1e-3
_RTOL_OF = {"FLOAT16": 2e-2, "BFLOAT16": 1e-1}
"""Tolerance for a module that computes in fewer bits: some twenty times a number's rounding."""
_TIMED_SIZES, _TIMED_S = (1, 64), 0.03
_OTHER_WEIGHTS = 0.9
"""Factor of the weights that a graph is tried with, below 1: a share such as ε stays one."""


def export(
    definition: NetworkDefinition,
    path: Path,
    *,
    name: str,
    actor: Mapping[str, Any] | None,
    weights: Weights | None = None,
    random_outputs: Sequence[str] = (),
    tolerance: float | None = None,
) -> ExportReport:
    """Write an export to the folder `path`, whole or not at all.

    Args:
        definition: Network to export.
        path: Folder to make.
        name: Name of the model.
        actor: Actor that `bray serve` shall answer with.
        weights: Weights in place of the definition's own.
        random_outputs: names of outputs that are not compared.
        tolerance: relative error that an output may have; None: 1e-3, of a module that computes
            in float16 2e-2, in bfloat16 1e-1.

    Raises:
        ExportError: torch cannot export the module, an output differs beyond tolerance, rows
            depend on each other, or a weight is NaN.
        AlreadyExistsError: `path` holds something else than an export.
        ConfigError: `actor` or `tolerance` is malformed, or `random_outputs` names no output.
    """
    _check_actor(actor)
    _check_random(random_outputs, definition.signature)
    check_target(path)
    assert isinstance(definition.engine, TorchEngine)
    engine = definition.engine.plain(weights)
    refuse_nan(engine.views())
    check_tolerance(tolerance)
    definition = replace(definition, engine=engine)
    with saved_folder(path) as folder:
        made = _made(folder, path, definition, tuple(random_outputs), tolerance)
        (folder / REPORT).write_bytes(made.report.to_json())
        manifest = Manifest(
            name=name,
            version=definition.version,
            signature=definition.signature,
            actor=actor,
            files={file: file_sha256(folder / file) for file in (*made.files, REPORT)},
            made_with=_made_with(made.written, engine),
        )
        (folder / MANIFEST).write_bytes(manifest.to_json())
    memory.give_back()
    if EXCHANGE not in made.files:
        logger.warning("export %s: its weights are fixed: they are part of its graph", name)
    return made.report


@dataclass(frozen=True, kw_only=True, slots=True)
class _Made:
    """The graphs of an export, written and compared."""

    written: WrittenGraph
    report: ExportReport
    files: tuple[str, ...]
    """Files that were written."""


def _made(
    folder: Path,
    path: Path,
    definition: NetworkDefinition,
    random_outputs: tuple[str, ...],
    tolerance: float | None,
) -> _Made:
    """Write and compare the graphs: traced, if that gives all of the module, else read by torch.

    A traced module without draws is the same in each call, so that the comparison sees all of it.

    Raises:
        ExportError: torch cannot export the module, or the graph differs from it.
    """
    engine = definition.engine
    assert isinstance(engine, TorchEngine)
    if not random_outputs and not engine.takes_bf16 and is_traceable(engine.module):
        # A comparison changes the weights, and the module may be asked once more.
        tried = replace(definition, engine=engine.plain(None))
        try:
            made = _compared(folder, path, tried, random_outputs, tolerance, is_traced=True)
        except Exception:  # torch, onnxruntime and user code raise anything
            logger.debug("%s: not traced", path, exc_info=True)
        else:
            if EXCHANGE in made.files:
                return made
        for left in folder.iterdir():
            left.unlink()
    return _compared(folder, path, definition, random_outputs, tolerance, is_traced=False)


def _compared(
    folder: Path,
    path: Path,
    definition: NetworkDefinition,
    random_outputs: tuple[str, ...],
    tolerance: float | None,
    *,
    is_traced: bool,
) -> _Made:
    written = _write_graph(folder, definition, is_traced=is_traced)
    memory.give_back()  # what torch's exporter needed, before onnxruntime needs as much
    rtol = _rtol(written) if tolerance is None else float(tolerance)
    comparison = ExportComparison(definition, rtol, random_outputs)
    report = _report(path, folder, comparison)
    files = [GRAPH, *written.files]
    if _write_exchange(folder, comparison, written):
        files += [EXCHANGE, WEIGHTS]
    return _Made(written=written, report=report, files=tuple(files))


def _rtol(written: WrittenGraph) -> float:
    return max((_RTOL_OF.get(dtype, RTOL) for dtype in written.dtypes), default=RTOL)


def _write_graph(folder: Path, definition: NetworkDefinition, *, is_traced: bool) -> WrittenGraph:
    assert isinstance(definition.engine, TorchEngine)
    assert definition.example is not None
    if is_traced:
        return write_traced_graph(
            folder / GRAPH, definition.engine.module, definition.signature, definition.example
        )
    return write_torch_graph(
        folder / GRAPH,
        definition.engine.module,
        definition.signature,
        definition.example,
        takes_bf16=definition.engine.takes_bf16,
    )


def _report(path: Path, folder: Path, comparison: ExportComparison) -> ExportReport:
    """Compare the graph in `folder` with the module. Raises ExportError: it differs."""
    definition, engine = comparison.definition, comparison.module
    exported = OnnxEngine(folder / GRAPH, definition.signature)
    report = ExportReport(
        path=path,
        version=definition.version,
        batch_sizes=BATCH_SIZES,
        rtol=comparison.rtol,
        atol=comparison.atol,
        outputs=comparison.errors(exported),
        random_outputs=comparison.random_outputs,
    )
    report.check()
    comparison.check_rows()
    latency = _latency("torch", engine, definition, torch.get_num_threads())
    return replace(
        report, latency=latency + _latency("onnxruntime", exported, definition, num_threads=1)
    )


def _write_exchange(folder: Path, comparison: ExportComparison, written: WrittenGraph) -> bool:
    """Write the graph that takes its weights as inputs, and the weights, where it works.

    It is tried with other weights, which the module has afterwards.
    """
    engine, signature = comparison.module, comparison.definition.signature
    (folder / EXCHANGE).write_bytes(written.exchange)
    # `save_file` of safetensors would let nobody but its owner read the file.
    (folder / WEIGHTS).write_bytes(safetensors.numpy.save(dict(engine.views())))
    engine.scale(_OTHER_WEIGHTS)
    weights = engine.views()
    try:
        exported = OnnxEngine(folder / GRAPH, signature, written.exchange, weights)
        exported.load(weights)
        errors = comparison.errors(exported)
    except Exception:  # whatever onnxruntime says of it: then the weights stay fixed
        logger.info("the graph does not take its weights as inputs", exc_info=True)
        errors = ()
        works = False
    else:
        works = all(output.max_rel_error <= comparison.rtol for output in errors)
    if not works:
        for name in (EXCHANGE, WEIGHTS):
            (folder / name).unlink()
    return works


def _made_with(written: WrittenGraph, engine: TorchEngine) -> Mapping[str, str]:
    """Return what made an export: versions, and the types of the weights."""
    packages = ("bray-model", "torch", "onnx", "onnxscript", "onnxruntime")
    found = {package: _installed(package) for package in packages}
    types = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in engine.dtypes))
    return {**found, "opset": str(written.opset), "weights": types or "none"}


def _installed(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:  # such as onnxruntime-gpu in its place
        return "unknown"


def _latency(
    backend: str, engine: Engine, definition: NetworkDefinition, num_threads: int
) -> tuple[ForwardMeasurement, ...]:
    found = []
    for rows in _TIMED_SIZES:
        inputs = resize(definition.example, rows)
        took_us = median_us(engine, inputs, _TIMED_S)
        found.append(ForwardMeasurement(backend, num_threads, rows, took_us))
    return tuple(found)


def _check_random(random_outputs: Sequence[str], signature: Signature) -> None:
    paths = signature.output_tree.paths
    if isinstance(random_outputs, str):
        raise ConfigError(f"random_outputs: expected names in a tuple, got {random_outputs!r}")
    for name in random_outputs:
        if name not in paths:
            raise ConfigError(f"random_outputs: expected some of {list(paths)}, got {name!r}")


def _check_actor(actor: Mapping[str, Any] | None) -> None:
    if actor is None:
        return
    try:
        fits = set(actor) == {"name", "config"} and isinstance(actor["name"], str)
        if not fits or not isinstance(actor["config"], dict):
            raise TypeError("other keys or types")
        json.dumps(actor)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'actor: expected {{"name": text, "config": {{...}}}} of JSON values, got {actor!r} '
            f"({error})"
        ) from None
