"""Pairs of answers of which one was preferred: read from a file, drawn in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from bray.text.config import TextSourceConfig
from bray.text.demonstrations import demonstration_row
from bray.text.prompt_files import SUFFIXES, prompt_of, read_rows
from bray.text.row_queue import pack_samples
from bray.text.samples import TextSample, TokenRow
from bray.text.task import Demonstration, Message, TextTask
from bray.text.task_loading import load_task
from bray_core.errors import ConfigError
from bray_core.layout import Packed
from bray_model.text.text_model import TextModel

Pair: TypeAlias = tuple[TokenRow, TokenRow]
"""The rows of the chosen and of the rejected answer."""


DrawPairs: TypeAlias = Callable[[int, np.random.Generator], Sequence[Pair]]
"""Number of pairs, and what they are drawn from → the pairs."""


def pairs_of(source: TextSourceConfig, model: TextModel) -> DrawPairs:
    """Return what draws pairs: from a file, or from a task that has preferences.

    Args:
        source: settings.
        model: has the tokenizer and the chat template.

    Raises:
        ConfigError: there are no pairs.
    """
    if source.environment.endswith(SUFFIXES):
        return partial(_drawn, read_pairs(model, Path(source.environment)))
    task = load_task(source)
    if not isinstance(task, TextTask) or not task.preferences(1, np.random.default_rng(0)):
        raise ConfigError(
            "source.environment: expected a file with `prompt`, `chosen` and `rejected`, or a task "
            f"that has preferences, got {source.environment!r}"
        )
    return partial(_made, task, model)


def _drawn(pairs: Sequence[Pair], count: int, rng: np.random.Generator) -> list[Pair]:
    return [pairs[number] for number in rng.integers(len(pairs), size=count)]


def _made(task: TextTask, model: TextModel, count: int, rng: np.random.Generator) -> list[Pair]:
    return [
        pair_rows(model, one.content, one.chosen, one.rejected)
        for one in task.preferences(count, rng)
    ]


def pair_rows(
    model: TextModel, content: str | tuple[Message, ...], chosen: str, rejected: str
) -> Pair:
    """Return the rows of both answers to a prompt.

    Args:
        model: has the tokenizer and the chat template.
        content: the prompt.
        chosen: the better answer.
        rejected: the worse answer.
    """
    good, bad = (
        demonstration_row(model, Demonstration(content=content, completion=text))
        for text in (chosen, rejected)
    )
    return good, bad


def read_pairs(model: TextModel, path: Path) -> list[Pair]:
    """Return the pairs of a file with the columns `prompt`, `chosen` and `rejected`.

    Args:
        model: has the tokenizer and the chat template.
        path: a `.jsonl` or `.parquet` file.

    Raises:
        ConfigError: it cannot be read, or a row lacks one of them.
    """
    pairs = []
    for number, row in enumerate(read_rows("environment", path), 1):
        content = prompt_of(f"environment: {path}", row).content
        answers = [row.get("chosen"), row.get("rejected")]
        if not all(isinstance(one, str) and one for one in answers):
            raise ConfigError(
                f"environment: {path}: row {number}: expected texts `chosen` and `rejected`, got "
                f"{', '.join(row)}"
            )
        pairs.append(pair_rows(model, content, str(answers[0]), str(answers[1])))
    return pairs


def pack_pairs(pairs: Sequence[Pair]) -> Packed:
    """Return pairs as one replay, the rows of a pair one after the other."""
    rows = [row for pair in pairs for row in pair]
    return pack_samples([TextSample(rows=(row,), reward=0.0, group=0) for row in rows])
