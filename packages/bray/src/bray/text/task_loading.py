"""What a source's settings name: a file of prompts, a task, or an environment of messages."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bray.text.config import TextSourceConfig
from bray.text.conversations import ConversationRounds
from bray.text.demonstrations import TurnTexts, demonstration_rows
from bray.text.prompt_files import SUFFIXES, FileTask, demonstrations_in
from bray.text.rounds import PromptRounds, Rounds
from bray.text.samples import TokenRow
from bray.text.sampling import AnswerSampler
from bray.text.task import Demonstration, TextTask
from bray.text.text_source import Demonstrate
from bray_core.errors import ConfigError
from bray_core.process.user_modules import check_code_name, find_named_code
from bray_model.text.text_model import TextModel

_WANTED = "a file of prompts (.jsonl, .parquet), module:Class or file.py:Class"


def load_task(source: TextSourceConfig) -> Any:
    """Return the task of a source, or the class of its environment.

    Raises:
        ConfigError: it names neither.
    """
    name = source.environment
    if Path(name).suffix in SUFFIXES and ":" not in name:
        return FileTask(
            name,
            source.reward,
            held_out=source.held_out,
            share=source.held_out_share,
            demonstrations=source.demonstrations,
        )
    check_code_name("environment", name, _WANTED)
    found = find_named_code("environment", name, _WANTED)
    if not inspect.isclass(found):
        raise ConfigError(f"environment: expected a class, got {found!r}")
    try:
        inspect.signature(found).bind(**source.settings)
    except TypeError as error:
        raise ConfigError(f"settings: {name}: {error}") from error
    if issubclass(found, TextTask):
        return found(**source.settings)
    if missing := [method for method in ("reset", "step") if not hasattr(found, method)]:
        raise ConfigError(
            f"environment: {name}: expected a subclass of bray.text.task.TextTask, or a class with "
            f"reset and step, got {found.__name__} without {' and '.join(missing)}"
        )
    return found


def make_rounds(source: TextSourceConfig, task: Any, sampler: AnswerSampler) -> Rounds:
    """Return what plays a task, or an environment.

    Args:
        source: settings.
        task: what `load_task` returned.
        sampler: what answers.
    """
    if isinstance(task, TextTask):
        return PromptRounds(task, sampler, source.reward_timeout_s)
    return ConversationRounds(partial(task, **source.settings), sampler)


def demonstrations_of(source: TextSourceConfig, task: Any, model: TextModel) -> Demonstrate | None:
    """Return what draws rows of demonstrations; None where there are none.

    Raises:
        ConfigError: a file of demonstrations cannot be read.
    """
    if source.demonstrations is not None:
        rows = demonstration_rows(model, demonstrations_in(source.demonstrations))
        return partial(_drawn_rows, rows)
    draw = getattr(task, "demonstrations", None)
    if draw is None:
        return None
    if not isinstance(task, TextTask):
        draw = task(**source.settings).demonstrations
    if not draw(1, np.random.default_rng(0)):
        return None
    return partial(_made_rows, draw, model, TurnTexts(model))


def _drawn_rows(rows: Sequence[TokenRow], count: int, rng: np.random.Generator) -> list[TokenRow]:
    return [rows[number] for number in rng.integers(len(rows), size=count)]


def _made_rows(
    draw: Any, model: TextModel, turns: TurnTexts, count: int, rng: np.random.Generator
) -> list[TokenRow]:
    made: Sequence[Demonstration] = draw(count, rng)
    return demonstration_rows(model, made, turns)
