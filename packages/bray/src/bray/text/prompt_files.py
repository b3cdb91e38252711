"""Prompts and demonstrations in files: JSON lines or Parquet, one row each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bray.text.task import Demonstration, Message, TextPrompt, TextTask
from bray_core.errors import ConfigError
from bray_core.process.user_modules import find_named_code

SUFFIXES = (".jsonl", ".parquet")
"""Files that prompts are read from."""


def read_rows(where: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file by column.

    Args:
        where: name of the setting, for messages.
        path: a `.jsonl` or `.parquet` file.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it has no row.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{where}: expected a .jsonl or .parquet file, got {str(path)!r}")
    if not path.is_file():
        raise ConfigError(f"{where}: no file {str(path)!r}")
    rows = _parquet_rows(where, path) if path.suffix == ".parquet" else _json_rows(where, path)
    if not rows:
        raise ConfigError(f"{where}: {path} has no row")
    return rows


def _json_rows(where: str, path: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {path}: not UTF-8: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):  # other line breaks may be in a text
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: {path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: {path}:{number}: expected an object, got {line:.80}")
        rows.append(row)
    return rows


def _parquet_rows(where: str, path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ConfigError(
            f"{where}: Parquet needs pyarrow: install the extra `bray-buffer[parquet]`"
        ) from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{where}: {path}: not a Parquet file: {error}") from error
    return rows


def as_messages(where: str, value: Any) -> tuple[Message, ...]:
    """Return a conversation, checked.

    Raises:
        ConfigError: it is no list of messages with a role and a content.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ConfigError(f"{where}: expected a list of messages, got {value!r:.100}")
    for one in value:
        if not isinstance(one, Mapping) or not isinstance(one.get("role"), str):
            raise ConfigError(
                f"{where}: expected messages with `role` and `content`, got {one!r:.100}"
            )
    return tuple(value)


def prompt_of(where: str, row: Mapping[str, Any]) -> TextPrompt:
    """Return the prompt of a row: its column `prompt`, a text or messages.

    Raises:
        ConfigError: there is none, or it is empty.
    """
    found = row.get("prompt", row.get("messages"))
    if found is None:
        raise ConfigError(f"{where}: expected a column `prompt`, got {', '.join(row)}")
    if isinstance(found, str) and not found:
        raise ConfigError(f"{where}: the prompt is empty: expected at least one character")
    content = found if isinstance(found, str) else as_messages(where, found)
    columns = {name: value for name, value in row.items() if name not in ("prompt", "messages")}
    return TextPrompt(content=content, columns=columns)


def demonstration_of(where: str, row: Mapping[str, Any]) -> Demonstration:
    """Return the demonstration of a row: `prompt` and `completion`, or `messages`.

    Raises:
        ConfigError: it has neither.
    """
    if "messages" in row:
        return Demonstration(content=as_messages(where, row["messages"]))
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, Sequence) and isinstance(completion, str) and prompt:
        content = prompt if isinstance(prompt, str) else as_messages(where, prompt)
        return Demonstration(content=content, completion=completion)
    raise ConfigError(
        f"{where}: expected `prompt` and `completion`, or `messages`, got {', '.join(row)}"
    )


class FileTask(TextTask):
    """Prompts of a file, and a function of yours that rewards answers to them.

    Args:
        path: file of the prompts.
        reward: `module:function`; None where there are only demonstrations.
        held_out: file of the prompts that evaluations ask; None keeps back a share.
        share: share of the prompts that is kept back for evaluations.
        demonstrations: file of demonstrations.
    """

    def __init__(
        self,
        path: str | None,
        reward: str | None,
        *,
        held_out: str | None = None,
        share: float = 0.05,
        demonstrations: str | None = None,
    ) -> None:
        rows = read_rows("environment", Path(path)) if path else []
        self._prompts = [prompt_of(f"environment: {path}", row) for row in rows]
        if held_out is not None:
            asked = [
                prompt_of(f"held_out: {held_out}", r) for r in read_rows("held_out", Path(held_out))
            ]
        else:
            most = max(0, len(self._prompts) - 1)  # one is left to train on
            kept = min(most, max(1, round(share * len(self._prompts))))
            every = max(1, len(self._prompts) // kept) if kept else 0
            asked = self._prompts[every - 1 :: every][:kept] if kept else self._prompts
            taken = set(map(id, asked)) if kept else set()
            self._prompts = [one for one in self._prompts if id(one) not in taken]
        self._held_out = asked
        self._demonstrations = demonstrations_in(demonstrations)
        self._reward = None if reward is None else _function(reward)

    def prompts(self, count: int, rng: np.random.Generator) -> Sequence[TextPrompt]:
        """Return prompts of the file, drawn without repeating one while there are others."""
        numbers: list[int] = []
        while len(numbers) < count:
            numbers.extend(rng.permutation(len(self._prompts)).tolist())
        return [self._prompts[number] for number in numbers[:count]]

    def held_out(self, count: int) -> Sequence[TextPrompt]:
        """Return prompts that training never asks."""
        return self._held_out[:count]

    def reward(self, prompts: Sequence[TextPrompt], completions: Sequence[str]) -> Any:
        """Call the function with prompts, completions and the columns, as lists."""
        if self._reward is None:
            raise ConfigError("reward: missing: expected `module:function` for a file of prompts")
        names = {name for prompt in prompts for name in prompt.columns}
        columns = {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
        contents = [p.content if isinstance(p.content, str) else list(p.content) for p in prompts]
        return self._reward(prompts=contents, completions=list(completions), **columns)

    def demonstrations(self, count: int, rng: np.random.Generator) -> Sequence[Demonstration]:
        """Return demonstrations of the file, drawn at random."""
        if not self._demonstrations:
            return ()
        drawn = rng.integers(len(self._demonstrations), size=count)
        return [self._demonstrations[number] for number in drawn]


def demonstrations_in(path: str | None) -> list[Demonstration]:
    """Return the demonstrations of a file; none without one."""
    if path is None:
        return []
    where = f"demonstrations: {path}"
    return [demonstration_of(where, row) for row in read_rows("demonstrations", Path(path))]


def _function(name: str) -> Any:
    found = find_named_code("reward", name, "module:function or file.py:function")
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"reward: expected a function, got {found!r}")
    return found
