"""What the JSON of a request for inference says, checked against a model's signature.

A client that sends its numbers in binary sends the same few hundred bytes of JSON with each of its
requests: short ones are read once, and known by their bytes from then on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bray_core.errors import SpecError
from bray_core.nested import ArraySpec
from bray_model.serving.infer_message import (
    NO_PARAMETERS,
    InferMessageParameters,
    InputTensor,
    OutputTensor,
    SequenceStep,
    TensorParameters,
    is_null,
    read_id,
    read_message,
    read_timeout_s,
    sequence_step,
    short,
)
from bray_model.serving.json_tensors import text_bytes
from bray_model.serving.long_arrays import LongArrays
from bray_model.serving.model_description import datatype
from bray_model.signature import Signature
from bray_model.tree_spec import TreeSpec

_MAX_SHAPE_BYTES = 2048
_MAX_KNOWN_BYTES = 1024
"""JSON of more bytes is read each time."""
_MAX_KNOWN = 64
"""Heads that are known of one model: a client that sends another one each time gains nothing, and
takes no more memory than this many."""

_shape_decoder = msgspec.json.Decoder(list[int])


class InferHead(NamedTuple):
    """The JSON of a request, all of it checked but the numbers of its tensors."""

    id: str
    outputs: list[tuple[int, bool]]
    """Which outputs are asked for, and whether in binary."""
    timeout_s: float | None
    sequence: SequenceStep | None
    tree: TreeSpec
    """The inputs that it has to give."""
    inputs: list[tuple[InputTensor, ArraySpec, tuple[int, ...]]]
    """Each input as it came, with its spec and its shape."""
    cuts: LongArrays
    """Where long arrays of numbers in JSON are."""
    num_rows: int
    computed_bytes: int
    """What the model computes for it."""
    reply_bytes: int
    """The most that the outputs take in the reply."""
    places: list[tuple[int, tuple[int, ...], np.dtype[Any]]] | None
    """Where the numbers of each input of the tree lie behind the JSON, with shape and dtype; None:
    some are in JSON, or are told wrongly, or are bools, which are looked at."""
    places_bytes: int
    """What all of them take."""
    reply_heads: dict[tuple[str, int], bytes]
    """JSON of the replies by model and version, where all their numbers are in binary."""


def read_head(body: bytes, size: int, signature: Signature) -> InferHead:
    """Return what the JSON of a request says.

    Args:
        body: Body of the request.
        size: How many of its bytes are JSON.
        signature: Signature of the model.

    Raises:
        SpecError: It is malformed, or does not fit; names the tensor.
    """
    if size == len(body) or size > _MAX_KNOWN_BYTES:  # numbers in JSON differ each time
        return _read(body, size, signature)
    known, text = _known_heads(signature.output_tree), body[:size]
    head = known.get(text)
    if head is None:
        head = _read(text, size, signature)  # of a copy: what is kept must not hold the body
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[text] = head
    return head


@lru_cache(maxsize=64)
def _known_heads(outputs: TreeSpec) -> dict[bytes, InferHead]:
    """Return the heads that are known of the model with these outputs, which are its alone."""
    return {}


def _read(body: bytes, size: int, signature: Signature) -> InferHead:
    message, cuts = read_message(body, size, signature)
    parameters = message.parameters or InferMessageParameters()
    name = read_id(message.id)
    outputs = _wanted(message.outputs, parameters, signature)
    timeout_s = read_timeout_s(parameters.timeout)
    sequence = sequence_step(parameters)
    tree = signature.input_tree if sequence is None else signature.given_tree
    shapes = _shapes(message.inputs, tree)
    rows, facts, specs = shapes[tree.paths[0]][0], _facts(signature.output_tree), _facts(tree).specs
    inputs = [(tensor, specs[tensor.name], shapes[tensor.name]) for tensor in message.inputs]
    reply_bytes = rows * sum(
        facts.binary_bytes[index] if is_binary else facts.json_bytes[index]
        for index, is_binary in outputs
    )
    computed = rows * sum(facts.binary_bytes)
    places, places_bytes = _places(inputs, tree)
    return InferHead(
        name,
        outputs,
        timeout_s,
        sequence,
        tree,
        inputs,
        cuts,
        rows,
        computed,
        reply_bytes,
        places,
        places_bytes,
        {},
    )


def _places(
    inputs: Sequence[tuple[InputTensor, ArraySpec, tuple[int, ...]]], tree: TreeSpec
) -> tuple[list[tuple[int, tuple[int, ...], np.dtype[Any]]] | None, int]:
    """Return the places of inputs that lie in binary, one after the other, and their size."""
    found: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}
    start = 0
    for tensor, spec, shape in inputs:
        nbytes = math.prod(shape) * spec.dtype.itemsize
        told = (tensor.parameters or NO_PARAMETERS).binary_data_size
        if told != nbytes or spec.dtype.kind == "b" or not is_null(tensor.data):
            return None, 0
        found[tensor.name] = (start, (shape[0], *spec.shape), spec.dtype)
        start += nbytes
    return [found[path] for path in tree.paths], start


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


def _refuse_shared_memory(name: str, parameters: TensorParameters) -> None:
    if parameters.shared_memory_region is not None:
        raise SpecError(f"{name}: shared memory is not offered: send the tensor")


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
