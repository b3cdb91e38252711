"""Messages of the Open Inference Protocol v2 over HTTP: JSON, read within bounds.

https://github.com/kserve/open-inference-protocol, `specification/protocol/inference_rest.md`, and
Triton's `protocol/extension_binary_data.md`, `extension_sequence.md` and
`extension_schedule_policy.md`. A message is JSON; tensors that are not in it follow it, raw,
little-endian, in its order. An optional field that is `null` is as one that is absent.

What a request costs is bounded before it is paid: nothing of a size that a client chose becomes a
Python object, or an array, before its type and number are known to fit the model.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bray_core.errors import SpecError
from bray_model.serving.long_arrays import LongArrays
from bray_model.signature import Signature

HEADER = b"inference-header-content-length"
"""How many bytes of a body are JSON; without it all are."""
LARGE_BYTES = 64 * 1024
"""JSON of more bytes is read, or written, in a thread."""
_MAX_ID_BYTES = 4096
_MAX_SEQUENCE_BYTES = 256
NULL = (b"", b"null")


class TensorParameters(msgspec.Struct, gc=False):
    """Parameters of one tensor; what is not named here is passed over."""

    binary_data_size: int | None = None
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class InputTensor(msgspec.Struct, gc=False):
    """An input as it came, its shape and numbers still text."""

    name: str
    datatype: str
    shape: msgspec.Raw
    parameters: TensorParameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class OutputTensor(msgspec.Struct, gc=False):
    """An output that is asked for."""

    name: str
    parameters: TensorParameters | None = None


class InferMessageParameters(msgspec.Struct, gc=False):
    """Parameters of the whole request, those of Triton's extensions among them."""

    binary_data_output: bool | None = None
    sequence_id: int | str | None = None
    sequence_start: bool | None = None
    sequence_end: bool | None = None
    timeout: int | None = None


class InferMessage(msgspec.Struct, gc=False):
    """The JSON of one request."""

    inputs: list[InputTensor]
    id: msgspec.Raw = msgspec.Raw()
    parameters: InferMessageParameters | None = None
    outputs: list[OutputTensor] | None = None


_decoder = msgspec.json.Decoder(InferMessage)
NO_PARAMETERS = TensorParameters()


class SequenceStep(NamedTuple):
    """Where a request stands among those of its sequence."""

    name: str
    """The sequence's id as JSON: the number 7 and the text "7" are two sequences."""
    is_first: bool
    is_last: bool


def is_null(text: msgspec.Raw) -> bool:
    """Return whether a field is absent, or `null`."""
    return bytes(memoryview(text)[:5]) in NULL


def is_large(body: bytes, json_bytes: bytes | None) -> bool:
    """Return whether a request takes long enough to read that others should not wait for it.

    Raises:
        SpecError: `json_bytes` is no size within the body.
    """
    return message_bytes(body, json_bytes) > LARGE_BYTES


def message_bytes(body: bytes, json_bytes: bytes | None) -> int:
    """Return how much of a body is JSON. Raises SpecError: that is said wrongly."""
    if json_bytes is None:
        return len(body)
    size = int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 20 else -1
    if not 0 <= size <= len(body):
        raise SpecError(
            f"Inference-Header-Content-Length: expected 0 to {len(body)}, the size of the body, "
            f"got {json_bytes[:20].decode(errors='replace')!r}"
        )
    return size


def read_message(body: bytes, size: int, signature: Signature) -> tuple[InferMessage, LongArrays]:
    """Read all but the tensors' numbers, which stay text: in the message, or cut out of it.

    Keys are all that could make many objects of few bytes here, so their quotation marks are
    counted first: tensors of text are not offered, so a proper message has few.
    """
    tensors = len(signature.input_tree.paths) + len(signature.output_tree.paths)
    most, quotes = 1000 + 100 * tensors, body.count(b'"', 0, size)
    if quotes > most:
        raise SpecError(
            f"request: expected at most {most} quotation marks in the JSON of a message about "
            f"{tensors} tensors, none of which is of text, got {quotes}"
        )
    cuts = LongArrays(body, size)
    try:
        return _decoder.decode(cuts.rest), cuts
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        cure = ""
        if any(body.find(word, 0, size) >= 0 for word in (b"NaN", b"Infinity")):
            cure = "; JSON has no NaN or Infinity: send them with the binary tensor extension"
        raise SpecError(
            f"request: expected a message of the protocol in JSON: {error}{cure}"
        ) from None


def read_id(text: msgspec.Raw) -> str:
    """Return the id of a request, which its reply repeats; empty: it has none."""
    given = bytes(memoryview(text)[: _MAX_ID_BYTES + 1])
    if given in NULL:
        return ""
    try:
        if len(given) <= _MAX_ID_BYTES:
            return msgspec.json.decode(given, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise SpecError(f"id: expected text of at most {_MAX_ID_BYTES} bytes, got {short(given)}")


def read_timeout_s(timeout_us: int | None) -> float | None:
    """Return the deadline by Triton's parameter, whose 0 means none."""
    if not timeout_us:
        return None
    if timeout_us < 0:
        raise SpecError(f"timeout: expected microseconds of 0 or more, got {short(timeout_us)}")
    return min(timeout_us, 10**15) * 1e-6


def sequence_step(parameters: InferMessageParameters) -> SequenceStep | None:
    """Return the sequence by Triton's parameters; its number 0 and the empty name mean none."""
    name = parameters.sequence_id
    if name in (None, 0, ""):
        return None
    text = msgspec.json.encode(name) if isinstance(name, str) else b"%d" % name
    if len(text) > _MAX_SEQUENCE_BYTES:
        raise SpecError(
            f"sequence_id: expected at most {_MAX_SEQUENCE_BYTES} bytes of JSON, got {len(text)}"
        )
    is_first, is_last = parameters.sequence_start is True, parameters.sequence_end is True
    return SequenceStep(text.decode(), is_first, is_last)


def short(value: object) -> str:
    """Return what came, for a message, cut to a length that can be read."""
    if isinstance(value, bytes):
        value = value[:100].decode(errors="replace")
        return f"{value}" if len(value) < 100 else f"{value}…"
    if isinstance(value, str):
        return repr(value[:100])
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    return repr(value)
