"""A request for inference by the Open Inference Protocol, checked against a model's signature.

Tensors are named by the leaf paths of the signature and have the batch dimension in front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bray_core.errors import CapacityError, SpecError
from bray_core.nested import ArraySpec, Nested
from bray_core.protocols import Answer
from bray_model.serving.infer_message import (
    LARGE_BYTES,
    NO_PARAMETERS,
    NULL,
    InferMessageParameters,
    InputTensor,
    OutputTensor,
    TensorParameters,
    message_bytes,
    read_id,
    read_message,
    read_timeout_s,
    sequence_step,
    short,
)
from bray_model.serving.json_tensors import read_tensor, text_bytes, write_tensor
from bray_model.serving.long_arrays import LongArrays
from bray_model.serving.model_description import datatype
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, Leaves, TreeSpec

MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_ROWS = 16_384
_MAX_SHAPE_BYTES = 2048

_shape_decoder = msgspec.json.Decoder(list[int])


class InferRequest:
    """A request for inference, checked against a signature.

    Args:
        body: Body of the HTTP request.
        json_bytes: Value of the header `HEADER`, if it came.
        signature: Signature of the model.
        max_rows: Largest number of rows of one request.
        max_reply_bytes: Largest size of its reply, and of what the model computes for it.

    Raises:
        SpecError: The request is malformed, or does not fit; names the tensor.
        CapacityError: The request asks for more than one may have.
    """

    def __init__(
        self,
        body: bytes,
        json_bytes: bytes | None,
        signature: Signature,
        *,
        max_rows: int = MAX_ROWS,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        size = message_bytes(body, json_bytes)
        message, cuts = read_message(body, size, signature)
        parameters = message.parameters or InferMessageParameters()
        self.id = read_id(message.id)
        self._signature = signature
        self._outputs = _wanted(message.outputs, parameters, signature)
        self.timeout_s = read_timeout_s(parameters.timeout)
        """Time within which the client wants its answer; None: it does not say."""
        self.sequence = sequence_step(parameters)
        """Step of a sequence whose state is kept here; None: the request is of no sequence."""
        tree = signature.input_tree if self.sequence is None else signature.given_tree
        shapes = _shapes(message.inputs, tree)
        self.num_rows: int = shapes[tree.paths[0]][0]
        self._check_size(tree.paths[0], max_rows, max_reply_bytes)
        leaves = _read_inputs(message.inputs, cuts, shapes, body, size, tree)
        if self.sequence is not None:
            leaves = [_only_row(path, leaf) for path, leaf in zip(tree.paths, leaves, strict=True)]
        self.leaves = leaves
        """Leaves of the model's inputs, `[B, ...]`, of a sequence `[...]` without its state."""
        self._tree = tree

    @property
    def inputs(self) -> tuple[Nested, ...]:
        """Inputs of the model, made of the leaves."""
        inputs: tuple[Nested, ...] = self._tree.build(self.leaves)
        return inputs

    def _check_size(self, path: str, max_rows: int, max_reply_bytes: int) -> None:
        rows, tree = self.num_rows, self._signature.output_tree
        if rows > max_rows:
            raise CapacityError(
                f"{path}: expected at most {max_rows} rows, got {short(rows)}: send fewer at a "
                "time, or start the server with a larger --max-queue-rows"
            )
        facts = _facts(tree)
        computed = rows * sum(facts.binary_bytes)
        self.reply_bytes = rows * sum(
            facts.binary_bytes[index] if is_binary else facts.json_bytes[index]
            for index, is_binary in self._outputs
        )
        """The most that the outputs take in the reply."""
        if max(computed, self.reply_bytes) > max_reply_bytes:
            raise CapacityError(
                f"outputs: expected a reply of at most {max_reply_bytes} bytes, got a request for "
                f"up to {max(computed, self.reply_bytes)}: ask for fewer rows or outputs, or in "
                "binary, or start the server with a larger --max-reply-bytes"
            )

    @property
    def is_large(self) -> bool:
        """Whether its reply takes long enough to write that others should not wait for it."""
        return self.reply_bytes > LARGE_BYTES

    @property
    def is_plain(self) -> bool:
        """Whether it may be computed, and answered, together with others of its model."""
        return self.sequence is None and self.timeout_s is None and not self.is_large

    def reply(self, name: str, answer: Answer) -> tuple[bytes, int | None]:
        """Return the body of the reply, and how much of it is JSON; None: all.

        Raises:
            SpecError: an output that is wanted in JSON holds what JSON cannot say; names it.
        """
        leaves = self._signature.output_tree.leaves(answer.outputs)
        assert leaves is not None
        if self.sequence is not None:
            leaves = [leaf[None, ...] for leaf in leaves]
        return self.reply_of(name, leaves, answer.version)

    def reply_of(self, name: str, leaves: Leaves, version: int) -> tuple[bytes, int | None]:
        """Return the body of the reply as `reply` does, for output leaves `[B, ...]`.

        Args:
            name: Name of the model.
            leaves: Leaves of the model's outputs.
            version: Version that has answered.

        Raises:
            SpecError: An output that is wanted in JSON holds what JSON cannot say; names it.
        """
        entries: list[dict[str, Any]] = []
        tail: list[bytes] = []
        for index, is_binary in self._outputs:
            path, leaf = self._signature.output_tree.paths[index], leaves[index]
            entry: dict[str, Any] = {
                "name": path,
                "datatype": datatype(leaf.dtype),
                "shape": leaf.shape,
            }
            if is_binary:
                tail.append(np.ascontiguousarray(leaf).tobytes())
                entry["parameters"] = {"binary_data_size": len(tail[-1])}
            else:
                entry["data"] = _as_json(path, leaf)
            entries.append(entry)
        content = {"model_name": name, "model_version": str(version), "outputs": entries}
        if self.id:
            content["id"] = self.id
        head = msgspec.json.encode(content)
        return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def _only_row(path: str, leaf: Leaf) -> Leaf:
    if len(leaf) != 1:
        raise SpecError(f"{path}: expected one row of a sequence, got {len(leaf)}")
    row: Leaf = leaf[0, ...]
    return row


def _wanted(
    outputs: list[OutputTensor] | None, parameters: InferMessageParameters, signature: Signature
) -> list[tuple[int, bool]]:
    """Return which outputs are asked for, and whether in binary."""
    paths = signature.output_tree.paths
    all_binary = parameters.binary_data_output is True
    if not outputs:
        return [(index, all_binary) for index in range(len(paths))]
    wanted: dict[int, bool] = {}
    for output in outputs:
        asked = output.parameters or NO_PARAMETERS
        if output.name not in paths:
            raise SpecError(f"outputs: expected some of {list(paths)}, got {short(output.name)}")
        index = paths.index(output.name)
        if index in wanted:
            raise SpecError(f"outputs: expected each once, got {output.name!r} again")
        if asked.classification:
            raise SpecError(f"{output.name}: classification is not offered: ask for the tensor")
        _refuse_shared_memory(output.name, asked)
        wanted[index] = all_binary if asked.binary_data is None else asked.binary_data
    return list(wanted.items())


def _shapes(inputs: Sequence[InputTensor], tree: TreeSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input by its name, all checked but for their values."""
    specs, paths = _facts(tree).specs, tree.paths
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in inputs:
        spec = specs.get(tensor.name)
        if spec is None or tensor.name in shapes:
            raise SpecError(
                f"inputs: expected each of {list(paths)} once, got {short(tensor.name)}"
            )
        shapes[tensor.name] = _shape(tensor, spec)
    for path in paths:
        if path not in shapes:
            raise SpecError(f"{path}: missing; got {sorted(shapes)}")
        rows, wanted = shapes[path][0], shapes[paths[0]][0]
        if rows != wanted:
            raise SpecError(
                f"{path}: expected {short(wanted)} rows as in {paths[0]}, got {short(rows)}"
            )
    return shapes


def _shape(tensor: InputTensor, spec: ArraySpec) -> tuple[int, ...]:
    """Check datatype and shape. One number a row may come as `[B]` or `[B, 1]`."""
    text = bytes(memoryview(tensor.shape)[: _MAX_SHAPE_BYTES + 1])
    try:
        shape = _shape_decoder.decode(text) if len(text) <= _MAX_SHAPE_BYTES else []
    except (msgspec.DecodeError, RecursionError):
        shape = []
    rows, row = shape[:1], shape[1:]
    fits = row == list(spec.shape) or (row == [1] and not spec.shape)
    if tensor.datatype != datatype(spec.dtype) or not rows or rows[0] < 1 or not fits:
        raise SpecError(
            f"{tensor.name}: expected {datatype(spec.dtype)} {['B', *spec.shape]} of B ≥ 1 rows, "
            f"got {tensor.datatype[:100]} {short(text)}"
        )
    _refuse_shared_memory(tensor.name, tensor.parameters or NO_PARAMETERS)
    return tuple(shape)


def _read_inputs(
    inputs: Sequence[InputTensor],
    cuts: LongArrays,
    shapes: Mapping[str, tuple[int, ...]],
    body: bytes,
    start: int,
    tree: TreeSpec,
) -> Leaves:
    """Return the leaves `[B, ...]` in the tree's order; binary ones lie in that of `inputs`."""
    specs = _facts(tree).specs
    leaves: dict[str, Leaf] = {}
    for tensor in inputs:
        spec, shape = specs[tensor.name], shapes[tensor.name]
        nbytes = (tensor.parameters or NO_PARAMETERS).binary_data_size
        if nbytes is None:
            leaf = _from_json(tensor, cuts, shape, spec.dtype)
        else:
            leaf = _from_binary(tensor, shape, spec.dtype, body, start, nbytes)
            start += nbytes
        leaves[tensor.name] = leaf.reshape(shape[0], *spec.shape)
    if start != len(body):
        raise SpecError(f"request: {len(body) - start} bytes follow that no input names as its own")
    return [leaves[path] for path in tree.paths]


def _refuse_shared_memory(name: str, parameters: TensorParameters) -> None:
    if parameters.shared_memory_region is not None:
        raise SpecError(f"{name}: shared memory is not offered: send the tensor")


def _from_binary(
    tensor: InputTensor,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    body: bytes,
    start: int,
    nbytes: int,
) -> Leaf:
    wanted = math.prod(shape) * dtype.itemsize
    if nbytes != wanted or bytes(memoryview(tensor.data)[:5]) not in NULL:
        raise SpecError(
            f"{tensor.name}: expected binary_data_size {wanted} for {list(shape)} and no data, "
            f"got {short(nbytes)}"
        )
    if start + nbytes > len(body):
        raise SpecError(f"{tensor.name}: {start + nbytes - len(body)} of its bytes are missing")
    raw = np.frombuffer(body, np.uint8, nbytes, start)
    if dtype.kind == "b":
        values: Leaf = raw != 0
    else:  # most often not aligned; it is copied into an aligned block before it is computed with
        values = raw.view(dtype)
    return values.reshape(shape)


def _from_json(
    tensor: InputTensor, cuts: LongArrays, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Leaf:
    text = cuts.restored(bytes(tensor.data))
    if text in NULL:
        raise SpecError(f"{tensor.name}: expected data, or binary_data_size and the bytes")
    try:
        return read_tensor(text, shape, dtype)
    except ValueError as error:
        wanted = f"{math.prod(shape)} {tensor.datatype} values"
        raise SpecError(f"{tensor.name}: data: expected {wanted}: {error}") from None


class _Facts(NamedTuple):
    """What each request asks of a tree of tensors."""

    specs: dict[str, ArraySpec]
    """Specs by path."""
    binary_bytes: tuple[int, ...]
    """Bytes of a row of each tensor in binary."""
    json_bytes: tuple[int, ...]
    """Largest number of bytes of a row of each tensor in JSON."""


@lru_cache(maxsize=64)
def _facts(tree: TreeSpec) -> _Facts:
    counts = [math.prod(spec.shape) for spec in tree.specs]
    specs = dict(zip(tree.paths, tree.specs, strict=True))
    rows = list(zip(counts, tree.specs, strict=True))
    binary = tuple(count * spec.dtype.itemsize for count, spec in rows)
    return _Facts(specs, binary, tuple(text_bytes(spec.dtype, count) for count, spec in rows))


def _as_json(path: str, leaf: Leaf) -> msgspec.Raw | list[Any]:
    try:
        return write_tensor(leaf)
    except ValueError as error:
        raise SpecError(
            f"{path}: {error}: ask for it with the binary tensor extension (parameters: "
            '{"binary_data": true}), or name the other outputs in "outputs"'
        ) from None
