"""What requests are made of: messages, calls of tools and tools, as JSON has them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
"""Who says a message."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON object without any other fields."""


class CalledFunction(Strict):
    """Name and arguments of a call of a tool."""

    name: str
    arguments: str = "{}"
    """JSON text, or what the model wrote instead."""


class SentToolCall(Strict):
    """A call of a tool in a message of the assistant."""

    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"
    index: int | None = None


class TextPart(Strict):
    """A part of a message; only text is served."""

    text: str
    type: Literal["text"]


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[SentToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


class FunctionTool(Strict):
    """What a tool is called and what it takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    function: FunctionTool
    type: Literal["function"] = "function"


class StreamOptions(Strict):
    """What a streamed answer holds beside its text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
