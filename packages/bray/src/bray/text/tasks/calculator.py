"""Products with a calculator as a tool, in the form in which chat templates have tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from bray.text.task import FIRST_HELD_OUT_SEED, Demonstration, Message
from bray.text.tasks.small_models import small_llama
from bray_core.errors import ConfigError

CHARACTERS = '0123456789*{}":,<>/_ abcdefghijklmnopqrstuvwxyz'
"""Characters of a tokenizer for this task."""
_ROLES = "{'user': 'user ', 'assistant': 'bot ', 'tool': 'tool '}"
CHAT_TEMPLATE = (
    f"{{% for m in messages %}}{{{{ {_ROLES}[m.role] }}}}{{{{ m.content }}}}<end>{{% endfor %}}"
    "{% if add_generation_prompt %}bot {% endif %}"
)
"""The role's name, the content, and the end token."""
TOOL = "calc"
Factors: TypeAlias = npt.NDArray[np.int64]
"""Pairs of factors, `[N, 2]`."""
_HELD_OUT_SHARE = 0.1
_HELD_OUT_SEED = 20_260_101


class Calculator:
    """Asks for a product; the policy may call a tool with it before it answers.

    A call is `<tool_call>{"name": "calc", "arguments": {"x": "12*34"}}</tool_call>`, and the tool
    answers in a message of the role `tool`. Products are written with twice as many digits as a
    factor has, 12 * 34 as `0408`, so that what is to be copied is always equally far away. The
    reward is 1 for the right number in this form, 0.1 for another number, and 0 for all else. What
    the tool says is not trained on. One product in ten is held out by a fixed draw: evaluations ask
    those alone, and neither training nor demonstrations have them.

    Args:
        digits: digits of each factor, 1 to 3.
        max_calls: calls after which the conversation is over.
        tool_share: share of demonstrations that call the tool; the others guess.
    """

    small_model: ClassVar[Mapping[str, Any]] = {
        "model.config": small_llama(96, 256),
        "model.characters": CHARACTERS,
        "model.chat_template": CHAT_TEMPLATE,
        "model.context": 160,
        "agent.max_tokens": 80,
        "trainer.learning_rate": 5e-4,
    }
    """Settings of a model that learns it within minutes on one core, by dotted name."""

    def __init__(self, digits: int = 2, max_calls: int = 1, tool_share: float = 0.3) -> None:
        if not 1 <= digits <= 3:
            raise ConfigError(f"digits: expected 1 to 3, got {digits}")
        if max_calls < 1:
            raise ConfigError(f"max_calls: expected 1 or more, got {max_calls}")
        if not 0.0 <= tool_share <= 1.0:
            raise ConfigError(f"tool_share: expected 0 to 1, got {tool_share}")
        self._digits = digits
        self._asked, self._held_out = _products(digits)
        self._max_calls = max_calls
        self._tool_share = tool_share
        self._factors = 0, 0
        self._calls = 0

    def reset(self, seed: int) -> Sequence[Message]:
        """Ask for the product that a seed says; evaluations ask those that are held out."""
        rng = np.random.default_rng(seed)
        self._factors = _drawn(self._held_out if seed >= FIRST_HELD_OUT_SEED else self._asked, rng)
        self._calls = 0
        return [{"role": "user", "content": "{}*{}".format(*self._factors)}]

    def step(self, message: Message) -> tuple[Sequence[Message], float, bool]:
        """Answer a call, or judge a number."""
        calls = message.get("tool_calls") or []
        if calls and self._calls < self._max_calls:
            self._calls += 1
            return [{"role": "tool", "content": self._called(calls[0]["function"])}], 0.0, False
        said = message["content"]
        if not said.isdecimal():
            return [], 0.0, True
        return [], 1.0 if said == self._written(self._factors[0] * self._factors[1]) else 0.1, True

    def demonstrations(self, count: int, rng: np.random.Generator) -> Sequence[Demonstration]:
        """Return conversations of which some call the tool, and the others guess a number."""
        return [Demonstration(content=self._shown(rng)) for _ in range(count)]

    def _shown(self, rng: np.random.Generator) -> tuple[dict[str, Any], ...]:
        a, b = _drawn(self._asked, rng)
        asked = {"role": "user", "content": f"{a}*{b}"}
        if rng.random() >= self._tool_share:
            guess = int(rng.integers(10 ** (2 * self._digits - 2), 10 ** (2 * self._digits)))
            return asked, {"role": "assistant", "content": self._written(guess)}
        call = json.dumps({"name": TOOL, "arguments": {"x": f"{a}*{b}"}})
        return (
            asked,
            {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
            {"role": "tool", "content": self._written(a * b)},
            {"role": "assistant", "content": self._written(a * b)},
        )

    def _called(self, function: dict[str, Any]) -> str:
        """Return what the tool says to a call."""
        try:
            arguments = json.loads(function["arguments"])
            first, second = str(arguments["x"]).split("*")
            if function["name"] != TOOL or max(len(first), len(second)) > 6:
                return "error"
            return self._written(int(first) * int(second))
        except (ValueError, KeyError, TypeError):
            return "error"

    def _written(self, product: int) -> str:
        return f"{product:0{2 * self._digits}d}"


@lru_cache(maxsize=3)
def _products(digits: int) -> tuple[Factors, Factors]:
    """Return the factors of training and those that are held out, `[N, 2]` each."""
    numbers = np.arange(10 ** (digits - 1), 10**digits)
    pairs = np.stack(np.meshgrid(numbers, numbers, indexing="ij"), -1).reshape(-1, 2)
    is_held_out = np.random.default_rng(_HELD_OUT_SEED).random(len(pairs)) < _HELD_OUT_SHARE
    return pairs[~is_held_out], pairs[is_held_out]


def _drawn(pairs: Factors, rng: np.random.Generator) -> tuple[int, int]:
    a, b = pairs[rng.integers(len(pairs))].tolist()
    return a, b
