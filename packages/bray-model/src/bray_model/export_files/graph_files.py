"""The files that a serialised ONNX graph names, found without the onnx package.

A tensor may keep its data in another file (`location`). onnxruntime looks for it beside the graph,
or in the working directory where it is given the graph's bytes: so a graph is read here first. Of
Protocol Buffers that takes little: a message is a series of fields, each a number, a type, and a
value whose length is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from bray_core.errors import ExportError

_ELSEWHERE = (b"location", b"EPContext")
"""A graph without these words names no file."""
_ORT_FORMAT = b"ORTM"
"""The mark of onnxruntime's own format, in bytes 4 to 7."""
_MAX_FIELDS = 5_000_000
"""Some seconds. Graphs of a thousand nodes have some twenty thousand."""

# Message → field → message, of all that lies between a model and its tensors (onnx.proto).
_CHILDREN = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_DATA_LOCATION = 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_KEY = 2**32 - 1


def external_files(graph: bytes, name: str) -> list[str]:
    """Return the names of the files that hold data of a graph, as they stand in it, sorted.

    Args:
        graph: Serialised `ModelProto`.
        name: Name of its file, for messages.

    Raises:
        ExportError: The bytes are no such message, or in a form that names files in another way.
    """
    if graph[4:8] == _ORT_FORMAT:
        raise ExportError(f"{name}: expected an ONNX graph, got one in onnxruntime's own format")
    if not any(word in graph for word in _ELSEWHERE):
        return []
    try:
        return sorted(_found(memoryview(graph), name))
    except (ValueError, IndexError) as error:
        raise ExportError(f"{name}: not an ONNX graph ({error})") from None


def _found(graph: memoryview, name: str) -> set[str]:
    found: set[str] = set()
    stack = [("model", graph)]
    budget = _MAX_FIELDS
    while stack:
        kind, message = stack.pop()
        children = _CHILDREN[kind]
        is_elsewhere, locations = False, set()
        for number, value in _fields(message):
            budget -= 1
            if budget < 0:
                raise ValueError(f"more than {_MAX_FIELDS:,} fields")
            child = children.get(number)
            if kind == "tensor" and number == _DATA_LOCATION:
                is_elsewhere = value == 1 or is_elsewhere
            elif child is None:
                continue
            elif not isinstance(value, memoryview):
                raise ValueError(f"field {number} of a {kind} is no message")
            elif child == "entry":
                locations |= _location(value)
            elif child == "operator":
                if bytes(value) == b"EPContext":
                    raise ExportError(f"{name}: EPContext: an operator that names files of its own")
            else:
                stack.append((child, value))
        if is_elsewhere or locations:
            found |= locations or {""}
    return found


def _location(entry: memoryview) -> set[str]:
    """Return the value of a key-value pair if its key is `location`; whichever of several."""
    pairs = [(number, bytes(v)) for number, v in _fields(entry) if isinstance(v, memoryview)]
    if not any(number == 1 and value == b"location" for number, value in pairs):
        return set()
    return {value.decode(errors="replace") for number, value in pairs if number == 2}


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the fields of a message: numbers as they are, of fixed width as 0."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        if key > _MAX_KEY:
            raise ValueError("a field's number is too large")
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
        elif kind == _BYTES:
            size, position = _varint(message, position)
            if size > end - position:
                raise ValueError("it ends in the middle of a field")
            yield number, message[position : position + size]
            position += size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
            yield number, 0
        else:
            raise ValueError(f"a field of type {kind}")
    if position != end:
        raise ValueError("it ends in the middle of a field")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number of more than ten bytes")
