"""Number guessing in several turns: the policy asks, and hears whether to go higher or lower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bray.text.task import Demonstration, Message
from bray.text.tasks.small_models import small_llama
from bray_core.errors import ConfigError

CHARACTERS = "0123456789?<>ua"
"""Characters of a tokenizer for this task."""
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ 'a' if m.role == 'assistant' else 'u' }}{{ m.content }}<end>"
    "{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
"""One letter for the role, the content, and the end token."""


class GuessNumber:
    """Thinks of a number from 1 to `most`; each guess of two digits is a turn.

    The first message is `?`; a wrong guess is answered by `>` (the number is higher) or `<`. The
    reward of a game is −turns / max_turns; a number that is not found costs one turn more, and what
    is no guess ends the game and costs one besides. The best play halves what is possible.

    Args:
        most: greatest number.
        max_turns: guesses after which the game is over.
    """

    small_model: ClassVar[Mapping[str, Any]] = {
        "model.config": small_llama(64, 192),
        "model.characters": CHARACTERS,
        "model.chat_template": CHAT_TEMPLATE,
        "model.context": 64,
        "agent.max_tokens": 3,
        "trainer.learning_rate": 1e-3,
    }
    """Settings of a model that learns it within minutes on one core, by dotted name."""

    def __init__(self, most: int = 15, max_turns: int = 6) -> None:
        if not 2 <= most <= 99 or max_turns < 1:
            raise ConfigError(f"most: expected 2 to 99, and max_turns 1 or more, got {most}")
        self._most = most
        self._max_turns = max_turns
        self._secret = 0
        self._turns = 0

    def reset(self, seed: int) -> Sequence[Message]:
        """Think of the number that a seed says."""
        self._secret, self._turns = 1 + seed % self._most, 0
        return [{"role": "user", "content": "?"}]

    def step(self, message: Message) -> tuple[Sequence[Message], float, bool]:
        """Answer a guess."""
        said = message["content"]
        self._turns += 1
        if len(said) != 2 or not said.isdecimal():
            return [], -(self._max_turns + 1) / self._max_turns - 1.0, True
        guess = int(said)
        if guess == self._secret:
            return [], -self._turns / self._max_turns, True
        if self._turns == self._max_turns:
            return [], -(self._max_turns + 1) / self._max_turns, True
        return [{"role": "user", "content": ">" if self._secret > guess else "<"}], 0.0, False

    def demonstrations(self, count: int, rng: np.random.Generator) -> Sequence[Demonstration]:
        """Return games of a player who guesses any number that is still possible."""
        return [Demonstration(content=tuple(self._random_game(rng))) for _ in range(count)]

    def _random_game(self, rng: np.random.Generator) -> list[dict[str, Any]]:
        low, high, secret = 1, self._most, int(rng.integers(1, self._most + 1))
        said = [{"role": "user", "content": "?"}]
        for turn in range(1, self._max_turns + 1):
            guess = int(rng.integers(low, high + 1))
            said.append({"role": "assistant", "content": f"{guess:02d}"})
            if guess == secret or turn == self._max_turns:
                break
            is_higher = secret > guess
            low, high = (guess + 1, high) if is_higher else (low, guess - 1)
            said.append({"role": "user", "content": ">" if is_higher else "<"})
        return said
