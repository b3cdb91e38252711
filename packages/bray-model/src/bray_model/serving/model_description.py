"""What the Open Inference Protocol tells of a model: its metadata, and Triton's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bray_core.nested import ArraySpec
from bray_model.signature import Signature
from bray_model.tree_spec import TreeSpec

_DATATYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}
_BY_DTYPE = {np.dtype(name): text for name, text in _DATATYPES.items()}
"""The same by dtype: numpy makes its name anew each time."""


def datatype(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a dtype."""
    return _BY_DTYPE.get(dtype) or _DATATYPES[dtype.name]


def model_metadata(
    name: str, versions: Sequence[int], signature: Signature
) -> Mapping[str, object]:
    """Return what `GET /v2/models/NAME` answers.

    An input of one number a row has the shape `[-1, 1]`, as clients that make their tensors by the
    metadata send none without dimensions; `[B]` is accepted too.
    """
    inputs, outputs = signature.input_tree, signature.output_tree
    return {
        "name": name,
        "versions": [str(version) for version in versions],
        "platform": "onnxruntime_onnx",
        "inputs": [
            _tensor(path, spec, spec.shape or (1,))
            for path, spec in zip(inputs.paths, inputs.specs, strict=True)
        ],
        "outputs": [
            _tensor(path, spec, spec.shape)
            for path, spec in zip(outputs.paths, outputs.specs, strict=True)
        ],
    }


def _tensor(path: str, spec: ArraySpec, shape: Sequence[int]) -> Mapping[str, object]:
    return {"name": path, "datatype": datatype(spec.dtype), "shape": [-1, *shape]}


def model_config(name: str, max_batch_size: int, signature: Signature) -> Mapping[str, object]:
    """Return what `GET /v2/models/NAME/config` answers, an extension of Triton.

    There each tensor has dimensions besides the batch's: one number a row has the dimensions
    `[1]`, reshaped to none.
    """
    return {
        "name": name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": max_batch_size,
        "dynamic_batching": {},
        "input": _configured(signature.input_tree),
        "output": _configured(signature.output_tree),
    }


def _configured(tree: TreeSpec) -> list[Mapping[str, object]]:
    tensors: list[Mapping[str, object]] = []
    for path, spec in zip(tree.paths, tree.specs, strict=True):
        tensor = {"name": path, "data_type": f"TYPE_{datatype(spec.dtype)}", "dims": spec.shape}
        tensors.append(tensor if spec.shape else {**tensor, "dims": (1,), "reshape": {"shape": ()}})
    return tensors
