"""Demonstrations as token rows: what is to be learnt is marked, the rest is context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from bray.text.samples import TokenRow
from bray.text.task import Demonstration, Message
from bray_core.errors import ConfigError
from bray_model.text.text_model import TextModel

_REMEMBERED = 65_536
LEARNT = "assistant"
"""Role of the messages that are learnt."""


class TurnTexts:
    """Texts and tokens of conversations, remembered: those that begin alike are rendered once.

    Args:
        model: has the tokenizer and the chat template.
    """

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.encode = lru_cache(_REMEMBERED)(self._encode)
        self._plain = lru_cache(_REMEMBERED)(self._render_plain)

    def render(self, messages: Sequence[Message], *, asks: bool) -> str:
        """Return the text of messages.

        Args:
            messages: the beginning of a conversation.
            asks: whether the text ends where the policy is to answer.
        """
        if any(message.keys() != {"role", "content"} for message in messages):
            return self.model.render_chat(messages, add_generation_prompt=asks)
        said = tuple((message["role"], message["content"]) for message in messages)
        if not all(isinstance(content, str) for _, content in said):
            return self.model.render_chat(messages, add_generation_prompt=asks)
        return self._plain(said, asks)

    def _render_plain(self, said: tuple[tuple[str, str], ...], asks: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in said]
        return self.model.render_chat(messages, add_generation_prompt=asks)

    def _encode(self, text: str) -> tuple[int, ...]:
        return self.model.encode(text, special=False)  # the template writes what begins a text


def demonstration_row(
    model: TextModel, one: Demonstration, texts: TurnTexts | None = None
) -> TokenRow:
    """Return the row of a demonstration.

    Args:
        model: has the tokenizer and the chat template.
        one: a prompt with its completion, or a conversation, of which the messages of the
            assistant and what ends them are learnt.
        texts: texts of earlier calls; None remembers nothing.

    Raises:
        ConfigError: it is longer than the context, nothing in it is to be learnt, or the chat
            template renders a conversation in another way once it goes on.
    """
    if one.completion is not None:
        ids, mask = _completed(model, one.content, one.completion)
    else:
        assert not isinstance(one.content, str), "a text has a completion"
        ids, mask = _conversation(texts or TurnTexts(model), one.content)
    return _checked_row(model, ids, mask)


def demonstration_rows(
    model: TextModel, listed: Sequence[Demonstration], turns: TurnTexts | None = None
) -> list[TokenRow]:
    """Return the rows of demonstrations; those of texts are tokenised in one call.

    Args:
        model: has the tokenizer and the chat template.
        listed: the demonstrations.
        turns: texts of conversations of earlier calls; None remembers nothing.

    Raises:
        ConfigError: one of them is such as `demonstration_row` refuses.
    """
    texts = [one for one in listed if isinstance(one.content, str) and one.completion is not None]
    if len(texts) < len(listed) or not texts:
        return [demonstration_row(model, one, turns) for one in listed]
    tokenizer = model.tokenizer
    before = tokenizer([one.content for one in texts])["input_ids"]
    after = tokenizer([one.completion for one in texts], add_special_tokens=False)["input_ids"]
    end = model.eos_ids[0]
    return [
        _checked_row(model, [*asked, *said, end], [False] * len(asked) + [True] * (len(said) + 1))
        for asked, said in zip(before, after, strict=True)
    ]


def _checked_row(model: TextModel, ids: list[int], mask: list[bool]) -> TokenRow:
    """Return a row that fits into the context and has something to learn."""
    if len(ids) > model.context_length:
        raise ConfigError(
            f"demonstrations: one has {len(ids)} tokens, longer than the context of "
            f"{model.context_length}: shorten it, or raise model.context"
        )
    if not any(mask):
        raise ConfigError("demonstrations: one has no turn of the assistant to learn")
    return TokenRow.of_demonstration(ids, mask)


def _completed(
    model: TextModel, content: str | tuple[Message, ...], completion: str
) -> tuple[list[int], list[bool]]:
    if isinstance(content, str):
        before = model.encode(content)
    else:
        before = model.apply_chat_template(content)
    own = [*model.encode(completion, special=False), model.eos_ids[0]]
    return [*before, *own], [False] * len(before) + [True] * len(own)


def _conversation(texts: TurnTexts, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """Return ids and mask of a conversation, rendered turn by turn.

    Each turn is tokenised by itself: so ids never reach across the border of what is learnt.
    """
    ids: list[int] = []
    mask: list[bool] = []
    rendered = ""
    for number, message in enumerate(messages):
        if message["role"] != LEARNT:
            continue
        asked = texts.render(messages[:number], asks=True)
        said = texts.render(messages[: number + 1], asks=False)
        for text, is_learnt in ((asked, False), (said, True)):
            if not text.startswith(rendered):
                raise ConfigError(
                    "chat_template: expected it to render a conversation as the beginning of the "
                    f"longer one, got {text!r:.120} after {rendered!r:.120}"
                )
            more = texts.encode(text[len(rendered) :])
            ids.extend(more)
            mask.extend(_until_end(more, texts.model.eos_ids) if is_learnt else [False] * len(more))
            rendered = text
    return ids, mask


def _until_end(ids: Sequence[int], ends: Sequence[int]) -> list[bool]:
    """Return which tokens of a turn are learnt: those up to its end token, and it.

    A template may write a line feed behind it, which the policy never samples.
    """
    last = max((at for at, token in enumerate(ids) if token in ends), default=len(ids) - 1)
    return [at <= last for at in range(len(ids))]
