"""A request for inference by the Open Inference Protocol, checked against a model's signature.

Tensors are named by the leaf paths of the signature and have the batch dimension in front.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from bray_core.errors import SpecError
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_model.serving.infer_head import InferHead, read_head
from bray_model.serving.infer_message import (
    LARGE_BYTES,
    NO_PARAMETERS,
    NULL,
    InputTensor,
    is_null,
    message_bytes,
    short,
)
from bray_model.serving.json_tensors import read_tensor, write_tensor
from bray_model.serving.long_arrays import LongArrays
from bray_model.serving.model_description import datatype
from bray_model.signature import Signature
from bray_model.tree_spec import Leaf, Leaves

MAX_REPLY_BYTES = 64 * 1024 * 1024
MAX_ROWS = 16_384


class InferRequest:
    """A request for inference, checked against a signature.

    Args:
        body: Body of the HTTP request.
        json_bytes: Value of the header `HEADER`, if it came.
        signature: Signature of the model.
        max_rows: Largest number of rows of one request.
        max_reply_bytes: Largest size of its reply, and of what the model computes for it.

    Raises:
        SpecError: The request is malformed, does not fit, or asks for more than one may have; names
            the tensor.
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
        head = read_head(body, size, signature)
        self.id = head.id
        self._signature = signature
        self._head = head
        self.timeout_s = head.timeout_s
        """Time within which the client wants its answer; None: it does not say."""
        self.sequence = head.sequence
        """Step of a sequence whose state is kept here; None: the request is of no sequence."""
        self.num_rows: int = head.num_rows
        self.reply_bytes = head.reply_bytes
        """The most that the outputs take in the reply."""
        self._check_size(head, max_rows, max_reply_bytes)
        tree = head.tree
        leaves = _read_inputs(head, body, size)
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

    def _check_size(self, head: InferHead, max_rows: int, max_reply_bytes: int) -> None:
        if head.num_rows > max_rows:
            raise SpecError(
                f"{head.tree.paths[0]}: expected at most {max_rows} rows, got "
                f"{short(head.num_rows)}: send fewer at a time, or start the server with a larger "
                "--max-queue-rows"
            )
        most = max(head.computed_bytes, head.reply_bytes)
        if most > max_reply_bytes:
            raise SpecError(
                f"outputs: expected a reply of at most {max_reply_bytes} bytes, got a request for "
                f"up to {most}: ask for fewer rows or outputs, or in "
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
        known = self._head.reply_heads
        if text := known.get((name, version)):
            numbers = (leaves[index].tobytes() for index, _ in self._head.outputs)
            return b"".join([text, *numbers]), len(text)
        entries: list[dict[str, Any]] = []
        tail: list[bytes] = []
        for index, is_binary in self._head.outputs:
            path, leaf = self._signature.output_tree.paths[index], leaves[index]
            entry: dict[str, Any] = {
                "name": path,
                "datatype": datatype(leaf.dtype),
                "shape": leaf.shape,
            }
            if is_binary:
                tail.append(leaf.tobytes())
                entry["parameters"] = {"binary_data_size": len(tail[-1])}
            else:
                entry["data"] = _as_json(path, leaf)
            entries.append(entry)
        content = {"model_name": name, "model_version": str(version), "outputs": entries}
        if self.id:
            content["id"] = self.id
        text = msgspec.json.encode(content)
        if len(tail) == len(entries):
            known.clear()  # of versions before
            known[name, version] = text
        return (b"".join([text, *tail]), len(text)) if tail else (text, None)


def _only_row(path: str, leaf: Leaf) -> Leaf:
    if len(leaf) != 1:
        raise SpecError(f"{path}: expected one row of a sequence, got {len(leaf)}")
    row: Leaf = leaf[0, ...]
    return row


def _read_inputs(head: InferHead, body: bytes, start: int) -> Leaves:
    """Return the leaves `[B, ...]` in the tree's order; binary ones lie in that of `inputs`."""
    places = head.places
    if places is not None and len(body) == start + head.places_bytes:
        return [np.ndarray(shape, dtype, body, start + at) for at, shape, dtype in places]
    leaves: dict[str, Leaf] = {}
    for tensor, spec, shape in head.inputs:
        nbytes = (tensor.parameters or NO_PARAMETERS).binary_data_size
        if nbytes is None:
            leaf = _from_json(tensor, head.cuts, shape, spec.dtype)
        else:
            leaf = _from_binary(tensor, shape, spec.dtype, body, start, nbytes)
            start += nbytes
        leaves[tensor.name] = leaf.reshape(shape[0], *spec.shape)
    if start != len(body):
        raise SpecError(f"request: {len(body) - start} bytes follow that no input names as its own")
    return [leaves[path] for path in head.tree.paths]


def _from_binary(
    tensor: InputTensor,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    body: bytes,
    start: int,
    nbytes: int,
) -> Leaf:
    wanted = math.prod(shape) * dtype.itemsize
    if nbytes != wanted or not is_null(tensor.data):
        raise SpecError(
            f"{tensor.name}: expected binary_data_size {wanted} for {list(shape)} and no data, "
            f"got {short(nbytes)}"
        )
    if start + nbytes > len(body):
        raise SpecError(f"{tensor.name}: {start + nbytes - len(body)} of its bytes are missing")
    if dtype.kind == "b":
        flags: Leaf = np.frombuffer(body, np.uint8, nbytes, start) != 0
        return flags.reshape(shape)
    # Most often not aligned; it is copied into an aligned block before it is computed with.
    return np.ndarray(shape, dtype, body, start)


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


def _as_json(path: str, leaf: Leaf) -> msgspec.Raw | list[Any]:
    try:
        return write_tensor(leaf)
    except ValueError as error:
        raise SpecError(
            f"{path}: {error}: ask for it with the binary tensor extension (parameters: "
            '{"binary_data": true}), or name the other outputs in "outputs"'
        ) from None
