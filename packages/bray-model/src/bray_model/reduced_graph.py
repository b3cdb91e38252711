"""ONNX graphs in fewer bits, made by onnxruntime's own tools. Needs onnx."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def dynamic_int8(graph: bytes) -> bytes:
    """Return the graph with int8 weights; its activations are quantised while it runs."""
    with tempfile.TemporaryDirectory() as folder:
        prepared, target = _prepared(graph, folder), Path(folder) / "dynamic.onnx"
        quantize_dynamic(
            prepared,
            target,
            op_types_to_quantize=_DYNAMIC_OPERATORS,
            reduce_range=True,
        )
        return target.read_bytes()


def static_int8(graph: bytes, feeds: Sequence[Feed]) -> bytes:
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
        return target.read_bytes()


def half(graph: bytes) -> bytes:
    """Return the graph in float16, its inputs and outputs as they were."""
    path = list(sys.path)
    try:
        from onnxruntime.transformers.onnx_model import OnnxModel
    finally:
        sys.path[:] = path  # that package adds its own folder, full of modules with plain names
    model = OnnxModel(_without_shapes(graph))
    model.convert_float_to_float16(use_symbolic_shape_infer=False, keep_io_types=True)
    model.topological_sort()
    converted: bytes = model.model.SerializeToString()
    return converted


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


def _without_shapes(graph: bytes) -> Any:
    """Parse it, without the shapes in between: torch's contradict those after a transposition."""
    model = onnx.load_from_string(graph)
    del model.graph.value_info[:]
    return model
