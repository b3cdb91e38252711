"""Tiny models and settings for the tasks that ship with bray; other tasks have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bray.text.tasks import addition, calculator, guess

_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
}
_ADDITION: dict[str, Any] = {
    "model.config": {**_LLAMA, "hidden_size": 96, "intermediate_size": 256},
    "model.characters": addition.CHARACTERS,
    "model.context": 16,
    "agent.max_tokens": 5,
    "trainer.learning_rate": 5e-4,
}
_GUESS: dict[str, Any] = {
    "model.config": {**_LLAMA, "hidden_size": 64, "intermediate_size": 192},
    "model.characters": guess.CHARACTERS,
    "model.chat_template": guess.CHAT_TEMPLATE,
    "model.context": 64,
    "agent.max_tokens": 3,
    "trainer.learning_rate": 1e-3,
}
_CALCULATOR: dict[str, Any] = {
    "model.config": {**_LLAMA, "hidden_size": 96, "intermediate_size": 256},
    "model.characters": calculator.CHARACTERS,
    "model.chat_template": calculator.CHAT_TEMPLATE,
    "model.context": 160,
    "agent.max_tokens": 80,
    "trainer.learning_rate": 5e-4,
}
_MODELS = {
    "bray.text.tasks.addition:Addition": _ADDITION,
    "bray.text.tasks.calculator:Calculator": _CALCULATOR,
    "bray.text.tasks.guess:GuessNumber": _GUESS,
}


def small_model(task: str) -> Mapping[str, Any]:
    """Return settings of a model that learns a task within minutes on one core, by dotted name.

    Args:
        task: the source's `environment`.
    """
    return _MODELS.get(task, {})
