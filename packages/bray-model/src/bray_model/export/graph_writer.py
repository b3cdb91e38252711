"""Writes a graph of torch's exporter to a file, its weights one by one. Needs onnx.

Protocol Buffers would hold all weights twice over before the first byte is written.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

MAX_BYTES = 2**31 - 2**24
"""Weights in one file; Protocol Buffers end at 2 GB."""
_LARGE_BYTES = 64 * 1024
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Fields of ModelProto, GraphProto and TensorProto."""
_BFLOAT16, _FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
_DTYPE_ATTRIBUTES = ("to", "dtype")


def total_bytes(model: Any) -> int:
    """Return how many bytes the weights of a model have in float32 and other types."""
    return sum(_nbytes(value.const_value) for value in model.graph.initializers.values())


def skeleton(model: Any, without: Collection[str]) -> Any:
    """Return a graph as a `ModelProto` without some of its weights, bfloat16 made float32.

    Args:
        model: An `onnx_ir.Model`; it is left as it was.
        without: names of weights.
    """
    import onnx_ir

    initializers = model.graph.initializers
    order = list(initializers.items())
    for name in without:
        del initializers[name]
    try:
        proto = onnx_ir.serde.serialize_model(model)
    finally:
        initializers.clear()
        for name, value in order:
            initializers[name] = value
    _widen(proto.graph)
    for function in proto.functions:
        _widen_nodes(function.node)
    return proto


def write_graph(path: Path, model: Any) -> None:
    """Write a model as one ONNX file; bfloat16 becomes float32.

    Args:
        path: File to write.
        model: An `onnx_ir.Model`.
    """
    values = model.graph.initializers.items()
    large = {n: v.const_value for n, v in values if v.const_value.nbytes >= _LARGE_BYTES}
    proto = skeleton(model, tuple(large))
    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = {name: _head(name, tensor) for name, tensor in large.items()}
    size = len(graph) + sum(len(head) + _nbytes(large[name]) for name, head in heads.items())
    with path.open("wb") as file:
        file.write(proto.SerializeToString())
        file.write(_tag(_GRAPH) + _varint(size))
        file.write(graph)
        for name, head in heads.items():
            file.write(head)
            file.write(_bytes(large[name]))


def _is_bf16(tensor: Any) -> bool:
    return bool(tensor.dtype.value == _BFLOAT16)


def _nbytes(tensor: Any) -> int:
    return int(tensor.nbytes) * (2 if _is_bf16(tensor) else 1)


def _bytes(tensor: Any) -> bytes:
    if _is_bf16(tensor):
        return bytes(np.asarray(tensor.numpy(), "<f4").tobytes())
    return bytes(tensor.tobytes())


def _head(name: str, tensor: Any) -> bytes:
    """Return what stands before the data of a tensor: its field, length, name, type and shape."""
    kind = _FLOAT if _is_bf16(tensor) else tensor.dtype.value
    size = _nbytes(tensor)
    dims = [int(size) for size in tensor.shape]
    proto = onnx.TensorProto(name=name, data_type=kind, dims=dims)
    described: bytes = proto.SerializeToString()
    described += _tag(_RAW_DATA) + _varint(size)
    return _tag(_INITIALIZER) + _varint(len(described) + size) + described


def _tag(field: int) -> bytes:
    """Return the key of a field whose length is told."""
    return _varint(field << 3 | 2)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _widen(graph: Any) -> None:
    """Turn bfloat16 into float32, in place."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == _BFLOAT16:
            value.type.tensor_type.elem_type = _FLOAT
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Any) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i == _BFLOAT16:
                attribute.i = _FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)
            for inner in attribute.graphs:
                _widen(inner)


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type == _BFLOAT16:
        array = np.asarray(onnx.numpy_helper.to_array(tensor), np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
