"""Tiny models for the tasks in this folder; each task says its own settings, as `small_model`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_HERE = __name__.rpartition(".")[0]


def small_llama(hidden_size: int, intermediate_size: int) -> dict[str, Any]:
    """Return the configuration of a Llama of two layers with four heads.

    Args:
        hidden_size: features between the layers, a multiple of 4.
        intermediate_size: features within a layer's perceptron.
    """
    return {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
    }


def small_model(task: str) -> Mapping[str, Any]:
    """Return settings of a model that learns a task within minutes on one core, by dotted name.

    They are the attribute `small_model` of a class in this folder. Other tasks have none here: a
    template is checked without importing its user's code.

    Args:
        task: the source's `environment`, such as `bray.text.tasks.addition:Addition`.
    """
    module, _, name = task.partition(":")
    if module.rpartition(".")[0] != _HERE:
        return {}
    try:
        found: Mapping[str, Any] = getattr(import_module(module), name).small_model
    except (ImportError, AttributeError):
        return {}  # loading the task says what is wrong
    return found
