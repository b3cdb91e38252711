"""Conversations of several turns with environments in this process, all of them side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bray.text.prompt_files import as_messages
from bray.text.samples import TextSample, TokenRow
from bray.text.sampling import AnswerSampler, SampledAnswer
from bray.text.task import FIRST_HELD_OUT_SEED, Message, TextEnvironment
from bray_core import metrics
from bray_core.errors import BrayError, SpecError
from bray_core.process.raised_words import raised_words
from bray_model.chat.tool_calls import scan
from bray_model.text.text_model import TextModel

logger = logging.getLogger(__name__)

_MOST_TURNS = 1000
"""Turns after which a conversation ends in any case."""


@dataclass(slots=True)
class _Conversation:
    environment: TextEnvironment
    group: int
    messages: list[Message]
    rows: list[TokenRow] = field(default_factory=list)
    """Segments that a later history did not extend."""
    row: TokenRow | None = None
    """Tokens so far as the engine saw them; None before the first turn."""
    rendered: str = ""
    """Text of these tokens."""
    reward: float = 0.0
    is_over: bool = False
    is_cut: bool = False
    has_failed: bool = False

    def sample(self) -> TextSample:
        last = [] if self.row is None else [self.row]
        return TextSample(
            rows=(*self.rows, *last),
            reward=self.reward,
            group=self.group,
            is_cut=self.is_cut,
        )


class ConversationRounds:
    """Plays environments with `reset` and `step`; see `Rounds`.

    The prompt of a turn is the tokens of the turns before, as they were sampled, and the tokens of
    the new messages. Only where the chat template renders the history otherwise a new segment
    begins, which is counted.

    Args:
        make: makes an environment.
        sampler: what answers.
    """

    def __init__(self, make: Callable[[], TextEnvironment], sampler: AnswerSampler) -> None:
        self._make = make
        self._sampler = sampler
        self._free: list[TextEnvironment] = []
        self._has_worked = False
        self._why = ""

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        """Return conversations: those of one group begin with the same seed."""
        seeds = rng.integers(FIRST_HELD_OUT_SEED, size=groups).tolist()
        return self._converse([(seed, group) for group, seed in enumerate(seeds)], size, rng)

    def evaluate(self, count: int, rng: np.random.Generator | None) -> list[float]:
        """Return the rewards of conversations whose seeds training never draws."""
        seeds = [FIRST_HELD_OUT_SEED + number for number in range(count)]
        samples = self._converse([(seed, number) for number, seed in enumerate(seeds)], 1, rng)
        return [one.reward for one in samples]

    def _converse(
        self, seeds: Sequence[tuple[int, int]], size: int, rng: np.random.Generator | None
    ) -> list[TextSample]:
        begun = [self._begin(seed, group) for seed, group in seeds for _ in range(size)]
        for _ in range(_MOST_TURNS):
            open_ones = [one for one in begun if not one.is_over]
            if not open_ones:
                break
            asked = [(one, self._prompt(one)) for one in open_ones]
            ready = [(one, ids) for one, ids in asked if ids is not None]
            if not ready:
                continue
            answers = self._sampler.sample([ids for _, ids in ready], rng=rng)
            for (one, ids), (answer,) in zip(ready, answers, strict=True):
                self._step(one, len(ids), answer)
        return self._finished(begun)

    def _finished(self, begun: Sequence[_Conversation]) -> list[TextSample]:
        failed = sum(one.has_failed for one in begun)
        if failed:
            metrics.record("text/failed_conversations", failed, kind="count")
        self._has_worked |= failed < len(begun)
        if not self._has_worked:
            raise BrayError(
                f"environment: every conversation failed: the log says why, at last {self._why}"
            )
        for one in begun:
            if not one.has_failed:
                self._free.append(one.environment)
        return [one.sample() for one in begun if not one.has_failed and (one.row or one.rows)]

    def _begin(self, seed: int, group: int) -> _Conversation:
        environment = self._free.pop() if self._free else self._make()
        made = _Conversation(environment, group, [])
        try:
            made.messages = _messages(environment.reset(seed))
        except Exception as error:  # noqa: BLE001 - a user's environment: it fails its sample
            self._fail(made, "reset", error)
        return made

    def _prompt(self, one: _Conversation) -> tuple[int, ...] | None:
        """Return the token ids of the next turn's prompt; None where there is none to ask."""
        model = self._sampler.model
        try:
            text = model.render_chat(one.messages, add_generation_prompt=True)
        except SpecError as error:  # of messages of the user's environment
            self._fail(one, "messages", error)
            return None
        if one.row is None:
            ids = model.encode(text, special=False)  # the template writes what begins a text
        elif text.startswith(one.rendered):
            added = _without_end(text[len(one.rendered) :], one.row, model)
            ids = (*one.row.tokens.tolist(), *model.encode(added, special=False))
        else:
            metrics.record("text/new_segments", 1, kind="count")
            one.rows.append(one.row)
            one.row = None
            ids = model.encode(text, special=False)
        if len(ids) + 1 > model.context_length:
            one.is_over = one.is_cut = True
            if one.row is None and not one.rows:
                found = f"its first prompt has {len(ids)} tokens, which leave no room in the "
                cure = f"context of {model.context_length}: shorten it, or raise model.context"
                self._fail(one, "reset", BrayError(found + cure))
            return None
        one.rendered = text
        return ids

    def _step(self, one: _Conversation, asked: int, answer: SampledAnswer) -> None:
        before, row = one.row, answer.row
        if before is not None:  # what was sampled in earlier turns stays what it was
            known = len(before)
            row.mask[:known] = before.mask
            row.log_prob[:known] = before.log_prob
            row.version[:known] = before.version
        one.row, one.rendered, one.is_cut = row, one.rendered + answer.text, answer.is_cut
        content, calls, unparsed = scan(answer.text)
        if unparsed:
            metrics.record("text/unparsed_calls", unparsed, kind="count")
        # The history keeps the text as it was sampled: the next prompt begins with it.
        message = {"role": "assistant", "content": answer.text}
        given = {"role": "assistant", "content": content, "tool_calls": calls} if calls else message
        try:
            said, reward, one.is_over = _turn(one.environment.step(given))
            added = _messages(said)
            one.reward += float(reward)
        except Exception as error:  # noqa: BLE001 - a user's environment: it fails its sample
            self._fail(one, "step", error)
            return
        one.messages += [message, *added]
        if not np.isfinite(one.reward):
            self._fail(one, "step", BrayError("its reward is not finite"))

    def _fail(self, one: _Conversation, method: str, error: Exception) -> None:
        if not one.has_failed:
            self._why = f"{method}: {raised_words(error)}"
            logger.warning("environment: %s", self._why)
        one.has_failed = one.is_over = True

    def close(self) -> None:
        """Close the environments that can be closed."""
        for environment in self._free:
            close = getattr(environment, "close", None)
            if close is not None:
                close()


def _turn(found: Any) -> tuple[Any, Any, bool]:
    """Return what `step` of an environment returned, checked.

    Raises:
        SpecError: these are no messages, reward and flag.
    """
    if not isinstance(found, tuple | list) or len(found) != 3 or found[2] not in (True, False):
        raise SpecError(f"expected `messages, reward, is_over`, got {found!r:.100}")
    return found[0], found[1], bool(found[2])


def _messages(said: Any) -> list[Message]:
    """Return what an environment says, checked; nothing may be None.

    Raises:
        ConfigError: these are no messages.
    """
    if said is None:
        return []
    listed = said if isinstance(said, str | Mapping) else list(said)
    return list(as_messages("messages", listed)) if listed else []


def _without_end(added: str, row: TokenRow, model: TextModel) -> str:
    """Return what follows an answer, without the end token that the answer has as its last own."""
    last = int(row.tokens[-1])
    if last not in model.eos_ids:
        return added  # it was cut: what ends the turn was not sampled
    return added.removeprefix(model.decode([last], special=True))
