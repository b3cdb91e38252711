"""ONNX graphs in fewer bits, made by onnxruntime's own tools. Needs onnx."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import (
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from bray_core.nested import Nested
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf

Feed = dict[str, Leaf]
"""Inputs `[B, ...]` by their names in the graph."""
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


class ReducedGraph(NamedTuple):
    """A graph in fewer bits."""

    graph: bytes
    share: float
    """Share of the weights that are in fewer bits; 0 where there are none."""


# Not Conv: quantised at run time it takes several times as long as in float32 (an Atari CNN).
_DYNAMIC_OPERATORS = ["MatMul", "Gemm", "LSTM"]
# `reduce_range`, weights of seven bits: x86 CPUs without VNNI add two products in 16 bits, which
# eight bits overflow. The answers were a fifth beside the float graph's there.


def whole(graph: bytes, folder: Path) -> bytes:
    """Return the graph with the data in it that files of the folder hold, up to 2 GB."""
    model = onnx.load_from_string(graph)
    onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    joined: bytes = model.SerializeToString()
    return joined


def dynamic_int8(graph: bytes) -> ReducedGraph:
    """Return the graph with int8 weights; its activations are quantised while it runs."""
    with tempfile.TemporaryDirectory() as folder:
        prepared, target = _prepared(graph, folder), Path(folder) / "dynamic.onnx"
        quantize_dynamic(
            prepared,
            target,
            op_types_to_quantize=_DYNAMIC_OPERATORS,
            reduce_range=True,
        )
        return _compared(prepared, target)


def static_int8(graph: bytes, feeds: Sequence[Feed]) -> ReducedGraph:
    """Return the graph with int8 weights and activations, whose ranges the feeds show."""
    with tempfile.TemporaryDirectory() as folder:
        prepared, target = _prepared(graph, folder), Path(folder) / "static.onnx"
        quantize_static(
            prepared,
            target,
            _Reader(feeds),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,  # the pair that x86 and Arm multiply fastest
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
        )
        return _compared(prepared, target)


def half(graph: bytes) -> ReducedGraph:
    """Return the graph in float16, its inputs and outputs as they were."""
    path = list(sys.path)
    try:
        from onnxruntime.transformers.onnx_model import OnnxModel
    finally:
        sys.path[:] = path  # that package adds its own folder, full of modules with plain names
    whole = _without_shapes(graph)
    before = _float_elements(whole)
    model = OnnxModel(whole)
    model.convert_float_to_float16(use_symbolic_shape_infer=False, keep_io_types=True)
    model.topological_sort()
    after = _float_elements(model.model)
    return ReducedGraph(model.model.SerializeToString(), _share(before, after))


class HalfReference:
    """Runs a float16 graph as it is written, slowly.

    onnxruntime computes such a graph in float32 on a CPU, and so hides how it rounds and
    overflows on a GPU.
    """

    def __init__(self, graph: bytes, signature: Signature) -> None:
        self._evaluator = ReferenceEvaluator(onnx.load_from_string(graph))
        self._signature = signature

    def run(self, inputs: tuple[Nested, ...]) -> Nested:
        """Compute outputs, leaves `[B, ...]`."""
        tree = self._signature.input_tree
        feed = dict(zip(tree.paths, tree.batch(inputs)[0], strict=True))
        with np.errstate(all="ignore"):  # what overflows shows in the result
            outputs = self._evaluator.run(list(self._signature.output_tree.paths), feed)
        return self._signature.output_tree.build(outputs)


class _Reader:
    """Hands the calibration inputs to onnxruntime one after the other."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._feeds, None)


def _prepared(graph: bytes, folder: str) -> Path:
    """Optimise the graph and infer its shapes: without, onnxruntime cannot quantise it."""
    source, target = Path(folder) / "source.onnx", Path(folder) / "prepared.onnx"
    onnx.save(_without_shapes(graph), source)
    quant_pre_process(source, target, skip_symbolic_shape=True)
    return target


def _compared(source: Path, target: Path) -> ReducedGraph:
    graph = target.read_bytes()
    before, after = (_float_elements(model) for model in (onnx.load(source), onnx.load(target)))
    return ReducedGraph(graph, _share(before, after))


def _share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """Return how many of the floats before are no longer there; scales came instead."""
    total = sum(before.values())
    left = sum(size for name, size in after.items() if name in before)
    return 1 - left / total if total else 0.0


def _float_elements(model: Any) -> dict[str, int]:
    """Return name → number of elements, of constants that are floats."""
    held = [(tensor.name, tensor) for tensor in model.graph.initializer]
    for node in model.graph.node:
        if node.op_type == "Constant":
            held += [(node.output[0], each.t) for each in node.attribute if each.name == "value"]
    return {name: math.prod(tensor.dims) for name, tensor in held if tensor.data_type in _FLOATS}


def _without_shapes(graph: bytes) -> Any:
    """Parse it, without the shapes in between: torch's contradict those after a transposition."""
    model = onnx.load_from_string(graph)
    del model.graph.value_info[:]
    return model
