"""Conversations of several turns: ids as they were sampled, masks, new segments, failures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bray.text.conversations import ConversationRounds
from bray.text.demonstrations import TurnTexts, demonstration_row
from bray.text.samples import TokenRow
from bray.text.sampling import SampledAnswer
from bray.text.task import Demonstration
from bray.text.tasks.calculator import Calculator
from bray.text.tasks.guess import GuessNumber
from bray_core.errors import BrayError, ConfigError, SpecError

WORDS = ["a", "b", "ab", "u:", "p:", ";", "c"]
"""`ab` is one token when text is tokenised, but `a` and `b` may be sampled one after the other."""


class Model:
    """A tokenizer with a merge, and a chat template that may forget the first answer."""

    eos_ids = (5,)

    def __init__(self, context_length: int = 100, *, forgets: bool = False) -> None:
        self.context_length = context_length
        self.forgets = forgets

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        found = []
        while text:
            word = max((w for w in WORDS if text.startswith(w)), key=len)
            found.append(WORDS.index(word))
            text = text[len(word) :]
        return tuple(found)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return "".join(WORDS[one] for one in ids if special or one not in self.eos_ids)

    def token_bytes(self, token: int) -> bytes | None:
        return None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        if self.forgets and len(messages) > 2:
            messages = messages[2:]
        said = "".join(
            f"{'p:' if m['role'] == 'assistant' else 'u:'}{m['content']};" for m in messages
        )
        return said + ("p:" if add_generation_prompt else "")


class Sampler:
    """Says `a`, `b`, end in each turn, each by itself."""

    def __init__(self, model: Model, said: Sequence[int] = (0, 1, 5)) -> None:
        self.model = model
        self.said = said

    def sample(
        self, prompts: Sequence[Sequence[int]], count: int = 1, *, rng: Any
    ) -> list[list[SampledAnswer]]:
        return [[self._answer(ids)] for ids in prompts]

    def _answer(self, ids: Sequence[int]) -> SampledAnswer:
        row = TokenRow.of_answer(ids, self.said, [-0.5] * len(self.said), 7)
        is_cut = self.said[-1] != 5
        return SampledAnswer(row=row, text=self.model.decode(self.said), is_cut=is_cut)


class Echo:
    """Answers `c` and rewards 1 a turn, for as many turns as the seed says."""

    def reset(self, seed: int) -> list[dict[str, Any]]:
        self.left = 2
        return [{"role": "user", "content": "c"}]

    def step(self, message: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float, bool]:
        assert message["content"] == "ab"
        self.left -= 1
        return [{"role": "user", "content": "c"}], 1.0, self.left == 0


def played(model: Model, make: Any = Echo, said: Sequence[int] = (0, 1, 5)) -> Any:
    rounds: Any = ConversationRounds(make, Sampler(model, said))  # type: ignore[arg-type]
    return rounds.play(1, 2, np.random.default_rng(0))


def test_a_turn_extends_the_ids_as_they_were_sampled() -> None:
    first, second = played(Model())
    assert (first.reward, first.group, second.group) == (2.0, 0, 0)
    (row,) = first.rows
    words = [WORDS[one] for one in row.tokens]
    assert words == ["u:", "c", ";", "p:", "a", "b", ";", "u:", "c", ";", "p:", "a", "b", ";"]
    own = [word for word, is_own in zip(words, row.mask, strict=True) if is_own]
    assert own == ["a", "b", ";", "a", "b", ";"]
    assert row.log_prob[row.mask].tolist() == [-0.5] * 6
    assert row.version[row.mask].tolist() == [7] * 6


def test_what_ends_a_turn_that_was_cut_is_not_the_policys() -> None:
    first, _ = played(Model(), said=(0, 1))
    (row,) = first.rows
    assert [WORDS[one] for one in row.tokens[row.mask]] == ["a", "b", "a", "b"]
    assert WORDS[row.tokens[6]] == ";"
    assert first.is_cut


def test_a_history_that_does_not_extend_begins_a_segment() -> None:
    first, _ = played(Model(forgets=True))
    assert [len(row) for row in first.rows] == [7, 7]
    assert all(row.mask.sum() == 3 for row in first.rows)


def test_a_conversation_ends_where_the_context_is_full() -> None:
    first, _ = played(Model(context_length=11))
    assert (first.reward, first.is_cut) == (1.0, True)
    assert first.rows[0].mask.sum() == 3


def test_an_environment_that_raises_fails_its_sample() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(SimpleNamespace(reset=lambda seed: 1 / 0) if made else Echo())
        return made[-1]

    assert len(played(Model(), make)) == 1

    def broken() -> Any:
        return SimpleNamespace(reset=lambda seed: 1 / 0)

    where = r"at last reset: ZeroDiv.* \(test_text_conversations\.py, line \d+, in <lambda>\)"
    with pytest.raises(BrayError, match=f"every conversation failed: the log says why, {where}"):
        played(Model(), broken)


@pytest.mark.parametrize("turn", [None, ([], 1.0), ([], 1.0, None), ([], 1.0, "no")])
def test_a_turn_is_messages_a_reward_and_whether_it_is_over(turn: Any) -> None:
    class Odd(Echo):
        def step(self, message: Mapping[str, Any]) -> Any:
            return turn

    with pytest.raises(BrayError, match=r"step: SpecError: expected `messages, reward, is_over`"):
        played(Model(), Odd)


def test_guessing_tells_the_direction_and_counts_turns() -> None:
    game = GuessNumber()

    def said(text: str) -> Any:
        return game.step({"role": "assistant", "content": text})

    assert game.reset(9)[0]["content"] == "?"  # thinks of 10
    assert said("08") == ([{"role": "user", "content": ">"}], 0.0, False)
    assert said("12") == ([{"role": "user", "content": "<"}], 0.0, False)
    assert said("10") == ([], -3 / 6, True)
    game.reset(0)
    assert said("x") == ([], -7 / 6 - 1, True)
    (one,) = game.demonstrations(1, np.random.default_rng(0))
    assert [m["role"] for m in one.content][:2] == ["user", "assistant"]  # type: ignore[index]


def test_a_calculator_answers_calls_and_its_answers_are_not_learnt() -> None:
    game = Calculator(digits=1)
    asked = game.reset(3)[0]["content"]
    a, b = map(int, asked.split("*"))
    call = {"name": "calc", "arguments": json.dumps({"x": asked})}
    said, reward, is_over = game.step({"content": "", "tool_calls": [{"function": call}]})
    assert (list(said), reward, is_over) == (
        [{"role": "tool", "content": f"{a * b:02d}"}],
        0.0,
        False,
    )
    assert game.step({"content": f"{a * b:02d}"}) == ([], 1.0, True)
    game.reset(3)
    assert game.step({"content": f"{a * b + 1:02d}"}) == ([], 0.1, True)
    game.reset(3)
    broken = {"name": "calc", "arguments": '{"x": "1**9**9**9"}'}
    said, _, _ = game.step({"content": "", "tool_calls": [{"function": broken}]})
    assert said[0]["content"] == "error"


def test_a_sampled_call_reaches_the_environment_parsed_and_the_history_as_it_was() -> None:
    heard: list[Any] = []

    class Tool:
        def reset(self, seed: int) -> list[dict[str, Any]]:
            return [{"role": "user", "content": "c"}]

        def step(self, message: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float, bool]:
            heard.append(message.get("tool_calls", message["content"]))
            return [{"role": "tool", "content": "c"}], 1.0, len(heard) >= 3

    WORDS.append('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    try:
        (first, _) = played(Model(), Tool, said=(7, 5))
    finally:
        WORDS.pop()
    assert heard[0][0]["function"] == {"name": "f", "arguments": "{}"}
    (row,) = first.rows
    assert row.tokens[row.mask].tolist() == [7, 5, 7, 5]


def test_demonstrations_are_learnt_where_the_assistant_speaks() -> None:
    model: Any = Model()
    messages = (
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "ab"},
        {"role": "tool", "content": "c"},
        {"role": "assistant", "content": "b"},
    )
    row = demonstration_row(model, Demonstration(content=messages))
    words = [WORDS[one] for one in row.tokens]
    assert words == ["u:", "c", ";", "p:", "ab", ";", "u:", "c", ";", "p:", "b", ";"]
    assert [w for w, own in zip(words, row.mask, strict=True) if own] == ["ab", ";", "b", ";"]
    again = demonstration_row(model, Demonstration(content=messages), TurnTexts(model))
    assert again.tokens.tolist() == row.tokens.tolist()
    model.forgets = True
    with pytest.raises(ConfigError, match="as the beginning of the longer one"):
        demonstration_row(model, Demonstration(content=messages))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("wrong", "step: ConfigError: messages: expected a list of messages, got 'wrong'"),
        ({"role": "user", "content": "c"}, "step: ConfigError: messages: expected a list of mess"),
        (["wrong"], "step: ConfigError: messages: expected messages with `role` and `content`"),
        (7, "step: TypeError"),
    ],
)
def test_what_is_no_message_fails_its_sample_alone(
    said: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = []

    class Odd(Echo):
        def __init__(self) -> None:
            made.append(self)
            self.is_odd = len(made) == 1

        def step(self, message: Mapping[str, Any]) -> tuple[Any, float, bool]:
            added, reward, is_over = super().step(message)
            return (said if self.is_odd else added), reward, is_over

    (sample,) = played(Model(), Odd)
    assert sample.reward == 2.0
    assert words in caplog.text


def test_nothing_said_may_be_none() -> None:
    class Silent(Echo):
        def step(self, message: Mapping[str, Any]) -> tuple[Any, float, bool]:
            return None, 1.0, True

    assert [one.reward for one in played(Model(), Silent)] == [1.0, 1.0]


def test_messages_that_a_template_refuses_fail_their_sample(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(Model):
        def render_chat(self, messages: Any, tools: None = None, **asked: Any) -> str:
            if any(one["role"] == "system" for one in messages):
                raise SpecError("messages: the template refuses them: no system role")
            return super().render_chat(messages, tools, **asked)

    class Begins(Echo):
        def reset(self, seed: int) -> list[dict[str, Any]]:
            self.left = 2
            return [{"role": "system", "content": "c"}]

    with pytest.raises(BrayError, match="every conversation failed: the log says why"):
        played(Strict(), Begins)
    assert "messages: SpecError: messages: the template refuses them: no system role" in caplog.text


def test_first_prompts_beyond_the_context_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(BrayError, match="every conversation failed: the log says why"):
        played(Model(4))
    words = "its first prompt has 4 tokens, which leave no room in the context of 4: shorten it"
    assert words in caplog.text
