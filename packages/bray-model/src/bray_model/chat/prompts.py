"""Prompts as token ids: rendered anew, or known ids and those of the new messages.

What was sampled is never tokenised again: a byte-pair tokenizer may cut the same text otherwise,
and a trainer would learn from tokens that nobody sampled. The chat template is asked for the text
after the last known answer, with a mark in the answer's place, and that text alone is tokenised.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from bray_core.errors import BrayError
from bray_model.chat.messages import TemplateMessage
from bray_model.chat.sample_tree import SampleNode
from bray_model.text.requests import PromptTooLongError

_MOST_TOKEN_CHARACTERS = 128
"""Characters of the longest tokens that models have: of blanks, in code."""
_MARK = f"answer-{secrets.token_hex(12)}"
"""Stands for an answer in the template. No message can hold it, for it is drawn at each start."""


class ChatTokenizer(Protocol):
    """What prompts are made with; `bray_model.text.text_model.TextModel` is one."""

    @property
    def context_length(self) -> int:
        """Largest number of tokens of prompt and completion together."""
        ...

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids; `special` keeps the names of special tokens in it."""
        ...

    def token_bytes(self, token: int) -> bytes | None:
        """Return the bytes of a token that is a part of a character; None where nothing tells."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Return the text that the chat template makes of messages."""
        ...


class Prompt(NamedTuple):
    """A prompt, and where it comes from."""

    ids: Sequence[int]
    """All token ids."""
    parent: SampleNode | None
    """The sample that it continues; None: it was rendered anew."""
    context_ids: Sequence[int]
    """Token ids after those of the parent."""
    digest: bytes = b""
    """Digest of the messages, by which the answer's history will be known."""
    text: str = ""
    """The prompt's text, where it came as text."""
    is_retokenised: bool = False
    """Whether it holds answers, and yet was rendered anew."""


def new_chat(
    model: ChatTokenizer,
    messages: Sequence[TemplateMessage],
    tools: Sequence[Mapping[str, Any]] | None,
    digest: bytes,
) -> Prompt:
    """Return the prompt of a conversation that is rendered anew.

    Raises:
        MissingChatTemplateError: The model has no chat template.
        PromptTooLongError: It is far too long for the model.
        SpecError: The template refuses the messages.
    """
    ids = _encoded(model, model.render_chat(messages, tools), special=False)
    has_answers = any(message["role"] == "assistant" for message in messages)
    return Prompt(ids, None, ids, digest, is_retokenised=has_answers)


def continued_chat(
    model: ChatTokenizer,
    sample: SampleNode,
    messages: Sequence[TemplateMessage],
    index: int,
    tools: Sequence[Mapping[str, Any]] | None,
    digest: bytes,
) -> Prompt | None:
    """Return the prompt that continues a sample; None: the template does not allow it.

    Args:
        model: The model.
        sample: The answer that is known.
        messages: The whole conversation.
        index: Place of that answer in it.
        tools: Tools that the template shows.
        digest: Digest of the conversation.
    """
    marked = {"role": "assistant", "content": _MARK}
    try:
        text = model.render_chat([*messages[:index], marked, *messages[index + 1 :]], tools)
    except BrayError:  # it wants to see a call before the result of a tool, for instance
        return None
    _, found, after = text.partition(_MARK)
    if not found or _MARK in after:
        return None
    context = _encoded(model, _without_sampled(model, sample, after), special=False)
    return Prompt([*sample.all_ids(), *context], sample, context, digest)


def new_text(model: ChatTokenizer, text: str) -> Prompt:
    """Return a plain prompt that continues nothing known. Raises PromptTooLongError."""
    ids = _encoded(model, text, special=True)
    return Prompt(ids, None, ids, text=text)


def continued_text(model: ChatTokenizer, sample: SampleNode, text: str, after: str) -> Prompt:
    """Return a plain prompt that continues a sample.

    Args:
        model: The model.
        sample: The completion that is known.
        text: The whole prompt.
        after: The end of it, after that completion.
    """
    context = _encoded(model, _without_sampled(model, sample, after), special=False)
    return Prompt([*sample.all_ids(), *context], sample, context, text=text)


def _encoded(model: ChatTokenizer, text: str, *, special: bool) -> tuple[int, ...]:
    """Return the token ids of a text, unless it is so long that they cannot fit.

    Tokenising a megabyte takes a second and a hundred megabytes of memory, which a request that is
    refused in the end should not cost.

    Raises:
        PromptTooLongError: They cannot fit.
    """
    most = model.context_length * _MOST_TOKEN_CHARACTERS
    if len(text) > most:
        raise PromptTooLongError(
            f"the prompt has {len(text)} characters, more than the context of "
            f"{model.context_length} tokens can hold: shorten it"
        )
    return model.encode(text, special=special)


def _without_sampled(model: ChatTokenizer, sample: SampleNode, after: str) -> str:
    """Return what follows an answer, without what was sampled of it: an end token, a stop string.

    An answer that was cut by its length lacks both: what closes it is then the environment's.
    """
    raw = model.decode(sample.ids.tolist(), special=True)
    unseen = raw[len(sample.text) :] if raw.startswith(sample.text) else raw
    for size in range(min(len(unseen), len(after)), 0, -1):
        if unseen.endswith(after[:size]):
            return after[size:]
    return after
