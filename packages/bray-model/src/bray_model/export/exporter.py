"""torch → ONNX, compared with the module before anything is left on disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import safetensors.numpy
import torch

from bray_core import nested
from bray_core.errors import ConfigError, ExportError
from bray_core.nested import Nested
from bray_core.process import memory
from bray_core.protocols import Weights
from bray_model.engines.definition import NetworkDefinition
from bray_model.engines.engine import Engine
from bray_model.engines.onnx_engine import OnnxEngine
from bray_model.engines.torch_engine import TorchEngine
from bray_model.export.bench import ForwardMeasurement, median_us
from bray_model.export.export_folder import check_target, new_folder
from bray_model.export.export_report import (
    ExportReport,
    OutputError,
    check_tolerance,
    join,
    output_error,
)
from bray_model.export.row_check import check_rows
from bray_model.export.torch_graph import WrittenGraph, write_torch_graph
from bray_model.export.trial_inputs import trial_inputs
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

BATCH_SIZES = (1, 2, 7, 64)
RTOL = 1e-3
_RTOL_OF = {"FLOAT16": 2e-2, "BFLOAT16": 1e-1}
"""Tolerance for a module that computes in fewer bits: some twenty times a number's rounding."""
_NEAR_ZERO = 0.1
"""Below it errors are absolute: `atol = rtol * 0.1`."""
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
    definition = replace(definition, engine=engine)
    check_tolerance(tolerance)
    with new_folder(path) as folder:
        written = _write_graph(folder, definition)
        memory.give_back()  # what torch's exporter needed, before onnxruntime needs as much
        rtol = _rtol(written) if tolerance is None else float(tolerance)
        comparison = _Comparison(definition, rtol, tuple(random_outputs))
        report = _report(path, folder, comparison)
        files = [GRAPH, *written.files]
        if _write_exchange(folder, comparison, written):
            files += [EXCHANGE, WEIGHTS]
        else:
            logger.warning("export %s: its weights are fixed: they are part of its graph", name)
        (folder / REPORT).write_bytes(report.to_json())
        manifest = Manifest(
            name=name,
            version=definition.version,
            signature=definition.signature,
            actor=actor,
            files={file: file_sha256(folder / file) for file in (*files, REPORT)},
            made_with=_made_with(written, engine),
        )
        (folder / MANIFEST).write_bytes(manifest.to_json())
    memory.give_back()
    return report


class _Comparison:
    """Runs an export and its module on the same inputs."""

    def __init__(
        self, definition: NetworkDefinition, rtol: float, random_outputs: tuple[str, ...]
    ) -> None:
        assert isinstance(definition.engine, TorchEngine)
        assert definition.example is not None
        self.definition = definition
        self.module = definition.engine
        self.rtol, self.atol = rtol, rtol * _NEAR_ZERO
        self.random_outputs = random_outputs
        self.inputs = trial_inputs(self.module.run, definition.example, max(BATCH_SIZES))

    def errors(self, exported: Engine) -> tuple[OutputError, ...]:
        """Return how far each output is from the module's, but for those drawn at random.

        Raises:
            ExportError: one of them fails.
        """
        paths = self.definition.signature.output_tree.paths
        found = []
        for rows in BATCH_SIZES:
            for inputs in (resize(self.definition.example, rows), _first(self.inputs, rows)):
                want = nested.flatten(_run_module(self.module, inputs, rows))
                got = nested.flatten(exported.run(inputs))
                pairs = zip(paths, got.values(), want.values(), strict=True)
                found.append(
                    [
                        output_error(path, a, b, self.rtol, self.atol)
                        for path, a, b in pairs
                        if path not in self.random_outputs
                    ]
                )
        return join(found)

    def check_rows(self) -> None:
        """Raise ExportError if the module's rows depend on each other."""
        compared = [
            path
            for path in self.definition.signature.output_tree.paths
            if path not in self.random_outputs
        ]
        check_rows(self.module.run, self.inputs, compared, self.rtol, self.atol)


def _rtol(written: WrittenGraph) -> float:
    return max((_RTOL_OF.get(dtype, RTOL) for dtype in written.dtypes), default=RTOL)


def _write_graph(folder: Path, definition: NetworkDefinition) -> WrittenGraph:
    assert isinstance(definition.engine, TorchEngine)
    assert definition.example is not None
    return write_torch_graph(
        folder / GRAPH,
        definition.engine.module,
        definition.signature,
        definition.example,
        takes_bf16=definition.engine.takes_bf16,
    )


def _report(path: Path, folder: Path, comparison: _Comparison) -> ExportReport:
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


def _write_exchange(folder: Path, comparison: _Comparison, written: WrittenGraph) -> bool:
    """Write the graph that takes its weights as inputs, and the weights, where it works.

    It is tried with other weights, which the module has afterwards.
    """
    engine, signature = comparison.module, comparison.definition.signature
    (folder / EXCHANGE).write_bytes(written.exchange)
    safetensors.numpy.save_file(dict(engine.views()), folder / WEIGHTS)
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


def _run_module(module: Engine, inputs: tuple[Nested, ...], rows: int) -> Nested:
    try:
        return module.run(inputs)
    except Exception as error:  # the user's code raises anything
        raise ExportError(
            f"the module fails with {rows} row{'s' * (rows > 1)} ({type(error).__name__}: "
            f"{error}): an export is asked for any number of rows, one too"
        ) from error


def _first(tree: tuple[Nested, ...], rows: int) -> tuple[Nested, ...]:
    first: tuple[Nested, ...] = nested.map(lambda leaf: leaf[:rows], tree)
    return first


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
