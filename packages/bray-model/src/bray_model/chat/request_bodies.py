"""What clients send: the fields that are served, and those that are refused in words.

A field that changes the answer is served or refused, never ignored. Fields that only describe the
request, such as `store` and `prompt_cache_key`, are taken and mean nothing here.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_args

import msgspec

from bray_core.errors import ConfigError
from bray_model.chat.errors import ApiError, invalid
from bray_model.chat.message_bodies import ChatMessage, Role, StreamOptions, Strict, Tool
from bray_model.text.requests import ResponseFormat, Sampling


class Body(Strict):
    """Fields that both kinds of requests have."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    # As vLLM has them.
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    # They describe the request and change no answer.
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    # Served for the values of `_NEUTRAL` only.
    repetition_penalty: Any = None
    service_tier: Any = None

    @property
    def wants_usage(self) -> bool:
        """Whether the last chunk of a stream says how many tokens there were."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def num_logprobs(self) -> int | None:
        """Return the number of likely tokens to report at each position; None: nothing at all."""
        raise NotImplementedError

    def wanted_format(self) -> ResponseFormat:
        """Return what an answer is to be."""
        return "text"

    def most_tokens(self) -> int | None:
        """Return the largest number of tokens of an answer; None: what the context allows."""
        return self.max_tokens

    def sampling(self, most_tokens: int, index: int) -> Sampling:
        """Return how one answer is sampled.

        Args:
            most_tokens: Largest number of tokens where the request does not say less.
            index: Number of the answer among the `n` of its prompt.

        Raises:
            ApiError: A value is out of range.
        """
        asked = self.most_tokens()
        if asked is not None and asked < 1:
            raise invalid("max_tokens", f"expected 1 or more, got {asked}")
        stop = self.stop
        try:
            return Sampling(
                max_tokens=max(1, most_tokens if asked is None else min(asked, most_tokens)),
                temperature=1.0 if self.temperature is None else self.temperature,
                top_k=max(0, self.top_k or 0),  # vLLM's -1 keeps all, too
                top_p=1.0 if self.top_p is None else self.top_p,
                min_p=self.min_p or 0.0,
                seed=None if self.seed is None else self.seed + index,
                stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
                stop_ids=tuple(self.stop_token_ids or ()),
                ignore_eos=bool(self.ignore_eos),
                frequency_penalty=self.frequency_penalty or 0.0,
                presence_penalty=self.presence_penalty or 0.0,
                logit_bias=tuple((self.logit_bias or {}).items()),
                response_format=self.wanted_format(),
                logprobs=self.num_logprobs() or 0,
            )
        except ConfigError as error:
            text = str(error).replace("stop_ids", "stop_token_ids")
            raise invalid(text.partition(":")[0], text) from None


_JSON_OBJECT = {"type": "json_object"}


class ChatBody(Body):
    """The body of a request for `/v1/chat/completions`."""

    messages: list[ChatMessage] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    def wanted_format(self) -> ResponseFormat:
        """Return `response_format`, which is one of those that are served."""
        return "json_object" if self.response_format == _JSON_OBJECT else "text"

    def most_tokens(self) -> int | None:
        """Return `max_completion_tokens`, or its older name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def num_logprobs(self) -> int | None:
        """Return `top_logprobs`, where `logprobs` asks for any."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Body):
    """The body of a request for `/v1/completions`."""

    prompt: str | list[Any] | None = None
    logprobs: int | None = None
    echo: Any = None
    best_of: Any = None
    suffix: Any = None

    def most_tokens(self) -> int | None:
        """Return `max_tokens`, which is 16 here where nobody says otherwise, as in OpenAI's API."""
        return 16 if self.max_tokens is None else self.max_tokens

    def num_logprobs(self) -> int | None:
        """Return `logprobs`."""
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as it came: text or token ids.

        Raises:
            ApiError: They are of neither kind.
        """
        prompt = self.prompt
        if prompt is None:
            raise invalid("prompt", "expected one, got none")
        if isinstance(prompt, str):
            return [prompt]
        one = prompt if prompt and not isinstance(prompt[0], str | list) else None
        found: list[str | list[int]] = prompt if one is None else [one]
        for each in found:
            if not isinstance(each, str) and not _are_ids(each):
                wanted = "expected text, token ids, or a list of either"
                raise invalid("prompt", f"{wanted}, got {str(each)[:100]!r}")
        return found


def _are_ids(prompt: object) -> bool:
    return isinstance(prompt, list) and all(type(one) is int for one in prompt)


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1,),
    "service_tier": ("auto", "default"),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"}, _JSON_OBJECT),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
    "echo": (False,),
    "best_of": (1,),
    "suffix": ("",),
}
"""Fields that are not served, and the values that are: most ask for nothing. Null is taken."""
_EMPTY_IN_MESSAGES = ("refusal", "annotations", "audio", "function_call")
_MOST_LOGPROBS = 20
_MOST_STOP_CHARACTERS = 1024
"""Characters of all stop strings: each new token is compared with all of them."""
_PLACE = re.compile(r" - at `(?:key` in `)?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_NO_CHOICE = "Invalid enum value "

B = TypeVar("B", bound=Body)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (ChatBody, CompletionBody)
}


def read_body(kind: type[B], body: bytes, max_choices: int) -> B:
    """Return what a client asks for.

    Args:
        kind: `ChatBody` or `CompletionBody`.
        body: JSON text.
        max_choices: Largest number of answers to one request.

    Raises:
        ApiError: The body is not of this form, or asks for what is not served.
    """
    try:
        asked: B = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(None, f"body: expected a JSON object: {error}") from None
    for name, neutral in _NEUTRAL.items():
        value = getattr(asked, name, None)
        if value is not None and value not in neutral:
            raise _not_served(name, neutral)
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if sum(map(len, stops)) > _MOST_STOP_CHARACTERS:
        got = sum(map(len, stops))
        text = f"expected at most {_MOST_STOP_CHARACTERS} characters in all strings, got {got}"
        raise invalid("stop", text)
    _check_range("n", asked.n, 1, max_choices)
    _check_range("seed", asked.seed, -(2**63), 2**63 - 1 - max_choices)
    if isinstance(asked, ChatBody):
        _check_chat(asked)
    elif isinstance(asked, CompletionBody):
        _check_range("logprobs", asked.logprobs, 0, _MOST_LOGPROBS)
        num_choices = len(asked.prompts()) * (asked.n or 1)
        if not 1 <= num_choices <= max_choices:
            text = f"expected prompts times n to be 1 to {max_choices}, got {num_choices}"
            raise invalid("prompt", text)
    return asked


def _check_chat(asked: ChatBody) -> None:
    if not asked.messages:
        raise invalid("messages", "expected at least one message, got none")
    _check_range("top_logprobs", asked.top_logprobs, 0, _MOST_LOGPROBS)
    if asked.top_logprobs and not asked.logprobs:
        raise invalid("top_logprobs", "expected logprobs: true beside it")
    if asked.tools and asked.tool_choice != "none" and asked.response_format == _JSON_OBJECT:
        raise invalid("response_format", "expected no tools beside json_object: a call is no JSON")
    for tool in asked.tools or ():
        if tool.function.strict:
            raise _not_served("strict", (False,), "tools")
    for index, message in enumerate(asked.messages):
        for name in _EMPTY_IN_MESSAGES:
            if getattr(message, name):
                raise _not_served(name, (), f"messages[{index}].{name}")
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"messages[{index}].tool_calls", "only the assistant calls tools")


def _check_range(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(name, f"expected {least} to {most}, got {value}")


def _not_served(name: str, neutral: tuple[Any, ...], param: str | None = None) -> ApiError:
    allowed = [msgspec.json.encode(value).decode() for value in neutral]
    others = f", or give {' or '.join(allowed)}" if allowed else ""
    text = f"{name}: this server does not serve it: leave it out{others}"
    return ApiError("unsupported_value", text, param=param or name)


def _refused(text: str) -> ApiError:
    """Return the error for a body that does not fit, by what msgspec says of it."""
    place = _PLACE.search(text)
    param = place[1] if place else None
    what = text[: place.start()] if place else text
    unknown = _UNKNOWN.search(what)
    if unknown:
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        message = f"{name}: this server does not know this field, and ignores none: leave it out"
        return ApiError("unknown_parameter", message, param=name)
    if param and what.startswith(_NO_CHOICE):
        got = what.removeprefix(_NO_CHOICE)
        return invalid(param, f"expected {' or '.join(_choices(param))}, got {got}")
    return invalid(param or None, what[:1].lower() + what[1:] if param else f"body: {what}")


def _choices(param: str) -> tuple[str, ...]:
    """Return the values that a field of a message or a tool may have."""
    if param.endswith(".role"):
        return get_args(Role)
    return ("text",) if ".content[" in param else ("function",)
