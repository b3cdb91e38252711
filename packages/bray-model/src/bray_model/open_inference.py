"""Messages of the Open Inference Protocol v2 over HTTP: JSON, and the binary tensor extension.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`, and
Triton's `protocol/extension_binary_data.md`. A message is JSON; tensors that are not in it follow
it, raw, little-endian, in its order. Tensors are named by the leaf paths of the model's signature
and have the batch dimension in front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bray_core.errors import SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.protocols import Answer
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, Leaves

HEADER = b"inference-header-content-length"
"""How many bytes of a body are JSON; without it all are."""

_DATATYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}
_SHARED_MEMORY = "shared_memory_region"


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Message(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


_decoder = msgspec.json.Decoder(_Message)


class InferRequest:
    """A request for inference, checked against a signature.

    Args:
        body: as it came.
        json_bytes: the value of `HEADER`, if it came.
        signature: of the model.

    Raises:
        SpecError: it is malformed, or does not fit; names the tensor.
    """

    def __init__(self, body: bytes, json_bytes: bytes | None, signature: Signature) -> None:
        size = _json_size(json_bytes, len(body))
        try:
            message = _decoder.decode(memoryview(body)[:size])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SpecError(
                f"request: expected a message of the protocol in JSON: {error}"
            ) from None
        self.id = message.id
        self.parameters = message.parameters
        self._signature = signature
        self._outputs = _wanted(message, signature)
        tree = signature.input_tree
        leaves = _read_inputs(message.inputs, body, size, tree.paths, tree.specs)
        self.inputs: tuple[Nested, ...] = tree.build(leaves)
        """The model's, leaves `[B, ...]`."""

    def reply(self, name: str, answer: Answer) -> tuple[bytes, int | None]:
        """Return the body of the reply, and how much of it is JSON; None: all."""
        leaves = self._signature.output_tree.leaves(answer.outputs)
        assert leaves is not None
        entries: list[dict[str, Any]] = []
        tail: list[bytes] = []
        for index, is_binary in self._outputs:
            path, leaf = self._signature.output_tree.paths[index], leaves[index]
            entry: dict[str, Any] = {
                "name": path,
                "datatype": _datatype(leaf.dtype),
                "shape": leaf.shape,
            }
            if is_binary:
                tail.append(np.ascontiguousarray(leaf).tobytes())
                entry["parameters"] = {"binary_data_size": len(tail[-1])}
            else:
                entry["data"] = leaf.ravel().tolist()
            entries.append(entry)
        content = {"model_name": name, "model_version": str(answer.version), "outputs": entries}
        if self.id:
            content["id"] = self.id
        head = msgspec.json.encode(content)
        return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def _json_size(given: bytes | None, total: int) -> int:
    if given is None:
        return total
    size = int(given) if given.isdigit() and len(given) < 20 else -1
    if not 0 <= size <= total:
        raise SpecError(
            f"Inference-Header-Content-Length: expected 0 to {total}, the size of the body, "
            f"got {given[:20].decode(errors='replace')!r}"
        )
    return size


def _wanted(message: _Message, signature: Signature) -> list[tuple[int, bool]]:
    """Return which outputs are asked for, and whether in binary."""
    paths = signature.output_tree.paths
    all_binary = message.parameters.get("binary_data_output") is True
    if not message.outputs:
        return [(index, all_binary) for index in range(len(paths))]
    wanted = []
    for output in message.outputs:
        if output.name not in paths:
            raise SpecError(f"outputs: expected some of {list(paths)}, got {output.name!r}")
        if output.parameters.get("classification"):
            raise SpecError(f"{output.name}: classification is not offered: ask for the tensor")
        _refuse_shared_memory(output)
        is_binary = output.parameters.get("binary_data", all_binary) is True
        wanted.append((paths.index(output.name), is_binary))
    return wanted


def _read_inputs(
    inputs: Sequence[_Input],
    body: bytes,
    start: int,
    paths: Sequence[str],
    specs: Sequence[ArraySpec],
) -> Leaves:
    """Return the leaves `[B, ...]` in the order of `paths`."""
    specs_by_name = dict(zip(paths, specs, strict=True))
    leaves: dict[str, Leaf] = {}
    for tensor in inputs:
        spec = specs_by_name.get(tensor.name)
        if spec is None or tensor.name in leaves:
            raise SpecError(f"inputs: expected each of {list(paths)} once, got {tensor.name!r}")
        _check(tensor, spec)
        nbytes = tensor.parameters.get("binary_data_size")
        if nbytes is None:
            leaves[tensor.name] = _from_json(tensor, spec)
        else:
            leaves[tensor.name] = _from_binary(tensor, spec, body, start, nbytes)
            start += nbytes
    if start != len(body):
        raise SpecError(f"request: {len(body) - start} bytes follow that no input names as its own")
    for path in paths:
        if path not in leaves:
            raise SpecError(f"{path}: missing; got {sorted(leaves)}")
    return [leaves[path] for path in paths]


def _check(tensor: _Input, spec: ArraySpec) -> None:
    datatype, shape = _datatype(spec.dtype), tensor.shape
    if (
        tensor.datatype != datatype
        or len(shape) != len(spec.shape) + 1
        or (tuple(shape[1:]) != spec.shape or shape[0] < 1)
    ):
        raise SpecError(
            f"{tensor.name}: expected {datatype} {['B', *spec.shape]} of B ≥ 1 rows, "
            f"got {tensor.datatype} {shape}"
        )
    _refuse_shared_memory(tensor)


def _refuse_shared_memory(tensor: _Input | _Output) -> None:
    if _SHARED_MEMORY in tensor.parameters:
        raise SpecError(f"{tensor.name}: shared memory is not offered: send the tensor")


def _from_binary(tensor: _Input, spec: ArraySpec, body: bytes, start: int, nbytes: object) -> Leaf:
    wanted = math.prod(tensor.shape) * spec.dtype.itemsize
    if type(nbytes) is not int or nbytes != wanted or tensor.data is not None:
        raise SpecError(
            f"{tensor.name}: expected binary_data_size {wanted} for {tensor.shape} and no data, "
            f"got {nbytes!r}"
        )
    if start + nbytes > len(body):
        raise SpecError(f"{tensor.name}: {start + nbytes - len(body)} of its bytes are missing")
    raw = np.frombuffer(body, np.uint8, nbytes, start)
    if spec.dtype.kind == "b":
        values: Leaf = raw != 0
    else:  # most often not aligned; it is copied into an aligned block before it is computed with
        values = raw.view(spec.dtype)
    return values.reshape(tensor.shape)


def _from_json(tensor: _Input, spec: ArraySpec) -> Leaf:
    if tensor.data is None:
        raise SpecError(f"{tensor.name}: expected data, or binary_data_size and the bytes")
    try:
        given = np.asarray(tensor.data)
        kinds = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[spec.dtype.kind]
        if given.size != math.prod(tensor.shape) or given.dtype.kind not in kinds:
            raise ValueError(f"got {given.size} values of {given.dtype}")
        leaf: npt.NDArray[Any] = given.astype(spec.dtype)
        if spec.dtype.kind in "iu" and not np.array_equal(leaf, given):
            raise ValueError(f"got one out of the range of {spec.dtype}")
    except ValueError as error:  # also ragged lists
        wanted = f"{math.prod(tensor.shape)} {tensor.datatype} values"
        raise SpecError(f"{tensor.name}: data: expected {wanted}: {error}") from None
    return leaf.reshape(tensor.shape)


def model_metadata(
    name: str, versions: Sequence[int], signature: Signature
) -> Mapping[str, object]:
    """Return what `GET /v2/models/NAME` answers."""
    return {
        "name": name,
        "versions": [str(version) for version in versions],
        "platform": "onnxruntime_onnx",
        "inputs": _tensors(signature.input_tree.paths, signature.input_tree.specs),
        "outputs": _tensors(signature.output_tree.paths, signature.output_tree.specs),
    }


def model_config(name: str, max_batch_size: int, signature: Signature) -> Mapping[str, object]:
    """Return what `GET /v2/models/NAME/config` answers, an extension of Triton."""

    def tensors(paths: Sequence[str], specs: Sequence[ArraySpec]) -> list[Mapping[str, object]]:
        return [
            {"name": path, "data_type": f"TYPE_{_datatype(spec.dtype)}", "dims": spec.shape}
            for path, spec in zip(paths, specs, strict=True)
        ]

    return {
        "name": name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": max_batch_size,
        "dynamic_batching": {},
        "input": tensors(signature.input_tree.paths, signature.input_tree.specs),
        "output": tensors(signature.output_tree.paths, signature.output_tree.specs),
    }


def _tensors(paths: Sequence[str], specs: Sequence[ArraySpec]) -> list[Mapping[str, object]]:
    return [
        {"name": path, "datatype": _datatype(spec.dtype), "shape": [-1, *spec.shape]}
        for path, spec in zip(paths, specs, strict=True)
    ]


def _datatype(dtype: np.dtype[Any]) -> str:
    return _DATATYPES[dtype.name]
