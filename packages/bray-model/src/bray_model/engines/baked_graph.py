"""The graph of `exchange.onnx` with weights put in. Needs onnx."""

from __future__ import annotations

import onnx

from bray_core.protocols import Weights
from bray_model.engines.onnx_engine import WEIGHT_PREFIX


def bake(exchange: bytes, weights: Weights) -> bytes:
    """Return the graph that takes its weights as inputs with these weights as constants."""
    model = onnx.load_from_string(exchange)
    inputs = list(model.graph.input)
    del model.graph.input[:]
    for tensor in inputs:
        if tensor.name.startswith(WEIGHT_PREFIX):
            array = weights[tensor.name.removeprefix(WEIGHT_PREFIX)]
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, tensor.name))
        else:
            model.graph.input.append(tensor)
    baked: bytes = model.SerializeToString()
    return baked
