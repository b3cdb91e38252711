"""Messages between a process and an inference worker: the codec's dicts over TCP."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from bray_core import errors
from bray_core.codec import decode, encode
from bray_core.errors import CodecError, ServiceError, SpecError
from bray_core.nested import Nested
from bray_core.protocols import Answer
from bray_model.batching.executor import BatchRequest, NonFiniteError
from bray_model.signature import Signature

MAX_BYTES = 1 << 29
"""Largest request or reply."""

_RAISED = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)} | {
    "NonFiniteError": NonFiniteError
}


def encode_request(request: BatchRequest, clone: str | None, sequence: int) -> bytes:
    """Encode rows to be answered.

    Args:
        request: Rows, already checked.
        clone: name of a clone; None: the model itself.
        sequence: Sequence of the oldest weights that may answer.
    """
    return encode(
        {
            "inputs": list(request.leaves),
            "batch": request.batch,
            "clone": clone,
            "sequence": sequence,
        }
    )


def encode_turn(
    session: str, inputs: tuple[Nested, ...], clone: str | None, sequence: int
) -> bytes:
    """Encode one row of a session; the worker, which has its state, checks it."""
    content = {"turn": list(inputs), "session": session, "clone": clone, "sequence": sequence}
    return encode(content)


def encode_order(**order: Any) -> bytes:
    """Encode what is no request for rows: `wait=version, timeout_s=...`, `drop=clone`, or
    `end=session, clone=...`."""
    return encode(order)


def decode_body(body: bytes) -> dict[str, Any]:
    """Decode what one of the `encode` functions made. Raises CodecError."""
    content = decode(body, max_bytes=MAX_BYTES, trusted=True)
    if not isinstance(content, dict):
        raise CodecError(f"body: expected a dict, got {type(content).__name__}")
    return content


def encode_answer(answer: Answer, signature: Signature, sequence: int) -> bytes:
    """Encode an answer; `sequence` is that of the weights that gave it."""
    leaves = signature.output_tree.leaves(answer.outputs)
    return encode({"outputs": leaves, "version": answer.version, "sequence": sequence})


def encode_error(error: Exception) -> bytes:
    """Encode what a request failed with."""
    return encode({"error": type(error).__name__, "message": _message(error)})


def decode_reply(body: bytes) -> dict[str, Any]:
    """Decode a reply.

    Raises:
        Exception: The request failed: an error of bray or of Python as it was, any other as a
            ServiceError that names it.
        CodecError: The bytes are no reply.
    """
    reply = decode_body(body)
    if "error" in reply:
        raise _rebuilt(str(reply["error"]), str(reply.get("message", "")))
    if not isinstance(reply.get("version"), int) or not isinstance(reply.get("sequence"), int):
        raise CodecError(f"reply: expected version and sequence, got the keys {sorted(reply)}")
    return reply


def output_leaves(reply: dict[str, Any], signature: Signature) -> list[np.ndarray[Any, Any]]:
    """Return a reply's output leaves as arrays of their own, checked against the signature.

    Raises:
        SpecError: The outputs do not fit.
    """
    leaves = reply.get("outputs")
    tree = signature.output_tree
    if not isinstance(leaves, list) or len(leaves) != len(tree.paths):
        raise SpecError(f"outputs: expected the leaves {tree.paths}, got something else")
    # Copies: what the codec gives is read-only, and not always aligned.
    return [np.array(leaf, spec.dtype) for leaf, spec in zip(leaves, tree.specs, strict=True)]


def _message(error: Exception) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1:  # its text is quoted once more
        return str(error.args[0])
    return str(error)


def _rebuilt(name: str, message: str) -> Exception:
    kind = _RAISED.get(name) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # it takes other arguments
            pass
    return ServiceError("service_error", f"{name}: {message}")
