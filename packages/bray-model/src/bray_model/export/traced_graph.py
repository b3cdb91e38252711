"""torch → ONNX by tracing, in a tenth of a second: for small float32 modules without branches.

Torch's newer exporter reads a module's code, which takes seconds, most of them to be imported. The
older one runs the module once and writes down what it computed: a branch that depends on numbers,
or a number of rows that becomes Python's own, is lost. Torch warns of these, and then this module
refuses; `bray_model.export.exporter` compares what is left with the module, and takes the newer
exporter where anything is different.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch

from bray_core import nested
from bray_core.errors import ExportError
from bray_core.nested import Nested
from bray_model.engines.onnx_engine import WEIGHT_PREFIX
from bray_model.export.torch_graph import FlatModule, WrittenGraph, check_exportable, quiet
from bray_model.signature import Signature, resize

MOST_WEIGHT_BYTES = 64 * 2**20
"""Weights that are traced: of larger ones the exporter would hold several copies."""
_OPSET = 18
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def is_traceable(module: torch.nn.Module) -> bool:
    """Return whether a module is worth the try: it is small, and has weights of float32 alone.

    Args:
        module: Module in eval mode, on the CPU.
    """
    weights = list(module.state_dict().values())
    floats = {weight.dtype for weight in weights if weight.is_floating_point()}
    return (
        floats <= {torch.float32}
        and sum(weight.nbytes for weight in weights) <= MOST_WEIGHT_BYTES
        and not any(part.training for part in module.modules())
    )


def write_traced_graph(
    path: Path, module: torch.nn.Module, signature: Signature, example: tuple[Nested, ...]
) -> WrittenGraph:
    """Write a module's graph to the file `path`, as `write_torch_graph` does.

    Args:
        path: File to write.
        module: Module that `is_traceable`.
        signature: names the inputs and outputs.
        example: inputs `[B, ...]`.

    Raises:
        ExportError: the module cannot be traced, or what was traced may not be all of it.
    """
    check_exportable(module)
    flat = FlatModule(module, signature, takes_bf16=False).eval()
    example = resize(example, 2)  # torch would take a batch of 1 for a constant
    leaves = tuple(torch.from_numpy(leaf) for _, leaf in nested.items(example))
    model = _traced(path, flat, leaves, signature)
    _name_rows_alone(model, signature)
    names = {f"module.{name}": f"{WEIGHT_PREFIX}{name}" for name in module.state_dict()}
    held = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in held]
    weights = [one for one in model.graph.input if one.name in held & set(names)]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    path.write_bytes(model.SerializeToString())
    exchange = _with_weights_as_inputs(model, weights, names)
    return WrittenGraph(exchange=exchange, files=(), opset=_OPSET, dtypes=frozenset({"FLOAT"}))


def _traced(
    path: Path, flat: torch.nn.Module, leaves: tuple[torch.Tensor, ...], signature: Signature
) -> onnx.ModelProto:
    """Trace a module into the file `path`; return what is in it."""
    names, results = list(signature.input_tree.paths), list(signature.output_tree.paths)
    with quiet(), _no_graphs_printed(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")  # that this exporter is the older one
        warnings.simplefilter("always", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        torch.onnx.export(
            flat,
            leaves,
            path,
            dynamo=False,
            verbose=False,
            opset_version=_OPSET,
            input_names=names,
            output_names=results,
            dynamic_axes={name: {0: "batch"} for name in (*names, *results)},
            keep_initializers_as_inputs=True,  # else it would join equal weights
            do_constant_folding=False,  # and what is computed from weights could not follow them
            training=torch.onnx.TrainingMode.PRESERVE,  # as would a normalisation in its layer
        )
    if told:
        raise ExportError(f"torch cannot trace the module: {told[0].message}")
    model = onnx.load(path)
    if narrow := [kind for kind in _types(model.graph) if kind in _NARROW]:
        kind = onnx.TensorProto.DataType.Name(narrow[0])
        raise ExportError(f"a traced module computes in FLOAT alone, got {kind}")
    return model


@contextmanager
def _no_graphs_printed() -> Iterator[None]:
    """Keep torch from printing the graph of what it cannot trace.

    torch turns this log on at each export, whatever was set before; it goes to the standard output,
    where a command's answer is.
    """
    switch = torch._C._jit_set_onnx_log_enabled
    switch(False)
    torch._C._jit_set_onnx_log_enabled = lambda enabled: None
    try:
        yield
    finally:
        torch._C._jit_set_onnx_log_enabled = switch


def _name_rows_alone(model: onnx.ModelProto, signature: Signature) -> None:
    """Write the sizes of a row to outputs of which torch did not follow them, as of a constant."""
    for output, (_, spec) in zip(model.graph.output, nested.items(signature.outputs), strict=True):
        shape = output.type.tensor_type.shape
        if len(shape.dim) == 1 + len(spec.shape):
            for dim, size in zip(shape.dim[1:], spec.shape, strict=True):
                dim.dim_value = size


def _types(graph: Any) -> Iterator[int]:
    """Return the types of what a graph holds and casts to."""
    yield from (one.data_type for one in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype"):
                yield attribute.i
            if attribute.HasField("t"):
                yield attribute.t.data_type
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _types(inner)


def _with_weights_as_inputs(
    model: onnx.ModelProto, weights: list[Any], names: dict[str, str]
) -> bytes:
    """Return the model with inputs `weights/<name>` in place of the weights that it holds."""
    exchange = onnx.ModelProto()
    exchange.CopyFrom(model)
    graph = exchange.graph
    kept = [one for one in graph.initializer if one.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for weight in weights:
        added = graph.input.add()
        added.CopyFrom(weight)
        added.name = names[weight.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    del graph.value_info[:]  # some name weights; onnxruntime infers them anew
    exchanged: bytes = exchange.SerializeToString()
    return exchanged
