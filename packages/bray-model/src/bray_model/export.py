"""torch → ONNX, compared with the module before anything is left on disk."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import safetensors.numpy
import torch

from bray_core import nested
from bray_core.errors import ConfigError, ExportError, MissingExtraError
from bray_core.nested import Nested
from bray_model.definition import Definition
from bray_model.engine import Engine
from bray_model.export_folder import check_target, write_export
from bray_model.export_report import ExportReport
from bray_model.manifest import EXCHANGE, GRAPH, MANIFEST, REPORT, WEIGHTS, Manifest, sha256
from bray_model.measurement import Measurement, median_us
from bray_model.onnx_engine import WEIGHT_PREFIX, OnnxEngine
from bray_model.output_error import OutputError, join, output_error
from bray_model.signature import Signature, resize
from bray_model.torch_engine import TorchEngine
from bray_model.tree_spec import Leaf

logger = logging.getLogger(__name__)

BATCH_SIZES = (1, 2, 7, 64)
RTOL = 1e-3
ATOL = 1e-4
_TIMED_SIZES, _TIMED_S = (1, 64), 0.03


def export(
    definition: Definition,
    path: Path,
    *,
    name: str,
    actor: Mapping[str, Any] | None,
    random_outputs: Sequence[str] = (),
) -> ExportReport:
    """Write an export to the folder `path`, whole or not at all.

    Raises:
        ExportError: torch cannot export the module, or an output differs beyond tolerance.
        AlreadyExistsError: `path` holds something else than an export.
        ConfigError: `actor` is malformed, or `random_outputs` names no output.
    """
    _check_actor(actor)
    _check_random(random_outputs, definition.signature)
    check_target(path)
    assert isinstance(definition.engine, TorchEngine)
    engine = TorchEngine(definition.engine.module)  # wherever and however the model itself runs
    definition = replace(definition, engine=engine)
    graph, exchange = _to_onnx(engine.module, definition)
    exported = OnnxEngine(graph, definition.signature)
    report = ExportReport(
        path=path,
        version=definition.version,
        batch_sizes=BATCH_SIZES,
        rtol=RTOL,
        atol=ATOL,
        outputs=_compare(engine, exported, definition, random_outputs),
        random_outputs=tuple(random_outputs),
        latency=_latency("torch", engine, definition, torch.get_num_threads())
        + _latency("onnxruntime", exported, definition, 1),
    )
    _check_report(report)
    files = {GRAPH: graph, REPORT: report.to_json()}
    if _exchanges_weights(graph, exchange, definition, random_outputs):
        files[EXCHANGE] = exchange
        files[WEIGHTS] = safetensors.numpy.save(dict(engine.weights()))
    else:
        logger.warning("export %s: its weights are fixed: they are part of its graph", name)
    manifest = Manifest(
        name=name,
        version=definition.version,
        signature=definition.signature,
        actor=actor,
        files={file: sha256(data) for file, data in files.items()},
    )
    write_export(path, {**files, MANIFEST: manifest.to_json()})
    return report


class _Flat(torch.nn.Module):
    """A module with leaves as arguments and results, in the signature's order."""

    def __init__(self, module: torch.nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self._build = signature.input_tree.build

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.module(*self._build(leaves))
        given = {id(leaf) for leaf in leaves}  # passed through, it would lose its name as an input
        flat = (leaf for _, leaf in nested.items(outputs))
        return tuple(leaf.clone() if id(leaf) in given else leaf for leaf in flat)


def _to_onnx(module: torch.nn.Module, definition: Definition) -> tuple[bytes, bytes]:
    """Return the graph, and the graph that takes its weights as inputs."""
    signature = definition.signature
    example = resize(definition.example, 2)  # torch would take a batch of 1 for a constant
    leaves = tuple(torch.from_numpy(leaf) for _, leaf in nested.items(example))
    batch = torch.export.Dim("batch")
    try:
        with _quiet():
            program = torch.onnx.export(
                _Flat(module, signature).eval(),
                leaves,
                dynamo=True,
                verbose=False,
                optimize=False,  # it would join equal weights, which then could not differ
                dynamic_shapes=(tuple({0: batch} for _ in leaves),),
                input_names=list(signature.input_tree.paths),
                output_names=list(signature.output_tree.paths),
            )
    except ImportError as error:
        raise MissingExtraError("an ONNX export", "bray-model", "torch") from error
    except Exception as error:  # the exporter runs user code and raises anything
        raise ExportError(f"torch cannot export the module: {_reason(error)}") from error
    assert program is not None
    exchange = _with_weights_as_inputs(program.model_proto, module)
    with _quiet():
        program.optimize()
    return program.model_proto.SerializeToString(), exchange


def _with_weights_as_inputs(graph: onnx.ModelProto, module: torch.nn.Module) -> bytes:
    """Return the model with inputs `weights/<name>` in place of the weights that it holds."""
    names = {f"module.{name}": f"{WEIGHT_PREFIX}{name}" for name in module.state_dict()}
    exchange = onnx.ModelProto()
    exchange.CopyFrom(graph)
    del exchange.graph.initializer[:]
    for held in graph.graph.initializer:
        if held.name in names:
            value = onnx.helper.make_tensor_value_info(
                names[held.name], held.data_type, list(held.dims)
            )
            exchange.graph.input.append(value)
        else:
            exchange.graph.initializer.append(held)
    for node in exchange.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    del exchange.graph.value_info[:]  # some name weights; onnxruntime infers them anew
    exchanged: bytes = exchange.SerializeToString()
    return exchanged


def _exchanges_weights(
    graph: bytes, exchange: bytes, definition: Definition, random_outputs: Sequence[str]
) -> bool:
    """Return whether the graph follows other weights as the module does, tried with some."""
    module = definition.engine.copy()
    weights = module.weights()
    assert weights is not None
    others = {
        name: np.asarray(array * 1.1, array.dtype) if array.dtype.kind == "f" else array
        for name, array in weights.items()
    }
    module.load(others)
    try:
        exported = OnnxEngine(graph, definition.signature, exchange, others)
        exported.load(others)
        errors = _compare(module, exported, definition, random_outputs)
    except Exception:  # whatever onnxruntime says of it: then the weights stay fixed
        logger.info("the graph does not take its weights as inputs", exc_info=True)
        return False
    return all(output.max_rel_error <= RTOL for output in errors)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's advice about itself; its errors are raised, not logged."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost cause: the outer ones only say that it failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _latency(
    backend: str, engine: Engine, definition: Definition, num_threads: int
) -> tuple[Measurement, ...]:
    found = []
    for rows in _TIMED_SIZES:
        inputs = resize(definition.example, rows)
        took_us = median_us(engine, inputs, _TIMED_S)
        found.append(Measurement(backend, num_threads, rows, took_us))
    return tuple(found)


def _compare(
    module: Engine, exported: Engine, definition: Definition, random_outputs: Sequence[str]
) -> tuple[OutputError, ...]:
    paths = definition.signature.output_tree.paths
    rng = np.random.default_rng(0)
    errors = []
    for rows in BATCH_SIZES:
        example = resize(definition.example, rows)
        for inputs in (example, _random_like(example, rng)):
            got, want = nested.flatten(exported.run(inputs)), nested.flatten(module.run(inputs))
            errors.append(
                [
                    output_error(path, a, b, RTOL, ATOL)
                    for path, a, b in zip(paths, got.values(), want.values(), strict=True)
                    if path not in random_outputs
                ]
            )
    return join(errors)


def _random_like(example: tuple[Nested, ...], rng: np.random.Generator) -> tuple[Nested, ...]:
    """Normal floats; integers and bools drawn from the example, since they may be indices."""

    def draw(leaf: Leaf) -> Leaf:
        if leaf.dtype.kind == "f":
            return np.asarray(rng.standard_normal(leaf.shape), leaf.dtype)
        if leaf.size == 0:
            return leaf
        return np.asarray(rng.choice(leaf.reshape(-1), leaf.shape))

    inputs: tuple[Nested, ...] = nested.map(draw, example)
    return inputs


def _check_report(report: ExportReport) -> None:
    for output in report.outputs:
        if not output.max_rel_error <= report.rtol:
            raise ExportError(
                f"{output.name}: the export differs from the module by {output.max_abs_error:.3g} "
                f"(relative {output.max_rel_error:.3g}, allowed {report.rtol:g}): a module that "
                "draws random numbers (take them as an input, or name what depends on them: "
                f"random_outputs=({output.name!r},)), or an operator that exports inexactly"
            )


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
