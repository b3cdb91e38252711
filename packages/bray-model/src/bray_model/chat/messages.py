"""Messages as chat templates take them, and digests that tell whether one history extends another.

The digest of a history is that of its last message and of the digest before it. So a request's
digests are one each for its messages, and looking up which part of a conversation is known costs
what the request's size justifies, however many conversations there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from bray_model.chat.message_bodies import ChatMessage, Tool

TemplateMessage: TypeAlias = dict[str, Any]
_ENCODER = msgspec.json.Encoder(order="sorted")
_DIGEST_BYTES = 16


def template_messages(messages: Iterable[ChatMessage]) -> list[TemplateMessage]:
    """Return messages as chat templates of Hugging Face take them.

    Text in parts is joined, arguments of tools are objects instead of text, and the role
    `developer` is `system`, for templates know no other.
    """
    return [_template_message(message) for message in messages]


def template_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Return tools as chat templates take them; None where there are none."""
    if not tools:
        return None
    found = []
    for tool in tools:
        function = tool.function
        about: dict[str, Any] = {"name": function.name}
        if function.description is not None:
            about["description"] = function.description
        about["parameters"] = function.parameters or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": about})
    return found


def assistant_message(content: str, calls: Sequence[Mapping[str, Any]]) -> TemplateMessage:
    """Return an answer as it comes back in the next request of its conversation.

    Args:
        content: Text that was sent.
        calls: Calls of tools that were sent, as the API has them.
    """
    message: TemplateMessage = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            _template_call(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in calls
        ]
    return message


def first_digest(tools: Sequence[Mapping[str, Any]] | None) -> bytes:
    """Return the digest of an empty history with these tools."""
    return blake2b(_ENCODER.encode(tools), digest_size=_DIGEST_BYTES).digest()


def next_digest(before: bytes, message: TemplateMessage) -> bytes:
    """Return the digest of a history and one message more."""
    return blake2b(before + _ENCODER.encode(message), digest_size=_DIGEST_BYTES).digest()


def digests(
    tools: Sequence[Mapping[str, Any]] | None, messages: Iterable[TemplateMessage]
) -> list[bytes]:
    """Return the digest of each beginning of a conversation, the empty one first."""
    found = [first_digest(tools)]
    for message in messages:
        found.append(next_digest(found[-1], message))
    return found


def _template_message(message: ChatMessage) -> TemplateMessage:
    content = message.content
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    made: TemplateMessage = {"role": role, "content": content}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            _template_call(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls
        ]
    return made


def _template_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    read: Any = arguments
    try:
        found = msgspec.json.decode(arguments)
        if isinstance(found, dict):
            read = found
    except (msgspec.DecodeError, RecursionError):
        pass  # the model wrote no JSON: it is shown what it wrote
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": read}}
