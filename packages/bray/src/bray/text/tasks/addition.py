"""Sums of whole numbers, written least digit first, each character one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bray.text.task import Demonstration, Preference, TextPrompt, TextTask
from bray.text.tasks.small_models import small_llama
from bray_core.errors import ConfigError

CHARACTERS = "0123456789+="
"""Characters of a tokenizer for this task."""
_HELD_OUT_SEED = 20_260_101


class Addition(TextTask):
    """Asks `321+654=` for 123 + 456; the right answer is `975`.

    Digits are written from the least to the greatest, as one adds by hand. Demonstrations have
    numbers of one digit up to all digits; prompts have numbers of all digits. A sum is held out,
    and then neither asked nor demonstrated, by a fixed draw.

    Args:
        digits: digits of each number.
        num_held_out: sums that are held out.
    """

    small_model: ClassVar[Mapping[str, Any]] = {
        "model.config": small_llama(96, 256),
        "model.characters": CHARACTERS,
        "model.context": 16,
        "agent.max_tokens": 5,
        "trainer.learning_rate": 5e-4,
    }
    """Settings of a model that learns it within minutes on one core, by dotted name."""

    def __init__(self, digits: int = 3, num_held_out: int = 500) -> None:
        if digits < 1:
            raise ConfigError(f"digits: expected 1 or more, got {digits}")
        if not 1 <= num_held_out <= 10 ** (2 * digits) // 20:
            most = 10 ** (2 * digits) // 20
            raise ConfigError(f"num_held_out: expected 1 to {most}, got {num_held_out}")
        self._digits = digits
        drawn = np.random.default_rng(_HELD_OUT_SEED).integers(
            10 ** (digits - 1), 10**digits, size=(2 * num_held_out, 2)
        )
        pairs = dict.fromkeys((int(a), int(b)) for a, b in drawn)
        self._held_out = list(pairs)[:num_held_out]
        self._is_held_out = set(self._held_out)

    def prompts(self, count: int, rng: np.random.Generator) -> Sequence[TextPrompt]:
        """Return sums of numbers with all digits."""
        found: list[TextPrompt] = []
        while len(found) < count:
            drawn = rng.integers(10 ** (self._digits - 1), 10**self._digits, size=(count, 2))
            found += [_prompt(a, b) for a, b in drawn.tolist() if (a, b) not in self._is_held_out]
        return found[:count]

    def held_out(self, count: int) -> Sequence[TextPrompt]:
        """Return sums that training never sees."""
        return [_prompt(a, b) for a, b in self._held_out[:count]]

    def reward(self, prompts: Sequence[TextPrompt], completions: Sequence[str]) -> Sequence[float]:
        """Return 1 for the right digits and 0 for all else."""
        return [
            float(text == prompt.columns["answer"])
            for prompt, text in zip(prompts, completions, strict=True)
        ]

    def demonstrations(self, count: int, rng: np.random.Generator) -> Sequence[Demonstration]:
        """Return sums with their answers, of numbers of one digit up to all."""
        found: list[Demonstration] = []
        while len(found) < count:
            digits = rng.integers(1, self._digits + 1, size=(count, 2))
            low = np.where(digits == 1, 0, 10 ** (digits - 1))
            drawn = rng.integers(low, 10**digits)
            for a, b in drawn.tolist():
                if (a, b) not in self._is_held_out:
                    prompt = _prompt(a, b)
                    answer = prompt.columns["answer"]
                    found.append(Demonstration(content=prompt.content, completion=answer))
        return found[:count]

    def preferences(self, count: int, rng: np.random.Generator) -> Sequence[Preference]:
        """Return sums with the right answer, and one with a wrong digit."""
        found = []
        for prompt in self.prompts(count, rng):
            answer = prompt.columns["answer"]
            place, other = int(rng.integers(len(answer))), int(rng.integers(1, 10))
            digit = str((int(answer[place]) + other) % 10)
            wrong = answer[:place] + digit + answer[place + 1 :]
            found.append(Preference(content=prompt.content, chosen=answer, rejected=wrong))
        return found


def _prompt(a: int, b: int) -> TextPrompt:
    """Return the prompt of a sum, with its answer as a column."""
    return TextPrompt(content=f"{_turned(a)}+{_turned(b)}=", columns={"answer": _turned(a + b)})


def _turned(number: int) -> str:
    return str(number)[::-1]
