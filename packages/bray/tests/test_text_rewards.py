"""Rewards that raise, say NaN, take too long, or return nonsense; prompts and files of them."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.text.prompt_files import FileTask
from bray.text.reward_function import GuardedReward
from bray.text.task import TextPrompt
from bray_core.errors import BrayError, ConfigError

PROMPTS = [TextPrompt(content=str(number), columns={"n": number}) for number in range(4)]


def asked(function: Any, timeout_s: float = 5.0, count: int = 4) -> list[float | None]:
    reward = GuardedReward(function, timeout_s)
    found = reward(PROMPTS[:count], ["a"] * count)
    assert reward.failed == sum(one is None for one in found)
    return found


def test_one_bad_answer_costs_itself_alone() -> None:
    def reward(prompts: Sequence[TextPrompt], completions: Sequence[str]) -> list[float]:
        return [1 / prompt.columns["n"] for prompt in prompts]

    assert asked(reward) == [None, 1.0, 0.5, 1 / 3]


def test_nan_fails_its_sample_and_async_rewards_are_awaited() -> None:
    async def reward(prompts: Sequence[TextPrompt], completions: Sequence[str]) -> list[float]:
        await asyncio.sleep(0)
        return [math.nan, 2.0, math.inf, 3]

    assert asked(reward) == [None, 2.0, None, 3.0]


def test_a_reward_that_hangs_fails_its_samples_in_time() -> None:
    calls, held = [], threading.Event()

    def reward(prompts: Sequence[TextPrompt], completions: Sequence[str]) -> list[float]:
        calls.append(len(prompts))
        if len(calls) > 1:
            held.wait(20)
        return [0.5] * len(prompts)

    guarded = GuardedReward(reward, 0.05)
    assert guarded(PROMPTS, [""] * 4) == [0.5] * 4
    assert guarded(PROMPTS, [""] * 4) == [None] * 4
    held.set()


def test_a_reward_that_never_worked_ends_the_run_with_its_error() -> None:
    def reward(prompts: Sequence[TextPrompt], completions: Sequence[str]) -> list[float]:
        raise KeyError("answr")

    where = r"\(test_text_rewards\.py, line \d+, in reward\)"
    with pytest.raises(BrayError, match=rf"the first 4 answers: KeyError: 'answr' {where}"):
        asked(reward)


@pytest.mark.parametrize("found", [[1.0], 3.0, ["a"] * 4, None])
def test_what_is_no_list_of_numbers_is_told(found: Any) -> None:
    with pytest.raises(BrayError, match="expected a list of 4 numbers"):
        asked(lambda prompts, completions: found)


REWARD = """
async def length(prompts, completions, answer):
    return [float(len(c) + a) for c, a in zip(completions, answer)]
"""


def rows(path: Path, listed: Sequence[Any]) -> str:
    path.write_text("\n".join(map(json.dumps, listed)))
    return str(path)


def test_prompts_of_a_file_are_drawn_and_some_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "length_reward.py").write_text(REWARD)
    path = rows(tmp_path / "p.jsonl", [{"prompt": f"p{n}", "answer": n} for n in range(40)])
    task = FileTask(path, "length_reward.py:length", share=0.1)
    held = {one.content for one in task.held_out(100)}
    drawn = [one.content for one in task.prompts(36, np.random.default_rng(0))]
    assert len(held) == 4
    assert set(drawn) == {f"p{n}" for n in range(40)} - held
    guarded = GuardedReward(task.reward, 5.0)
    prompts = [TextPrompt(content="x", columns={"answer": 2}), TextPrompt(content="y")]
    assert guarded(prompts, ["ab", "c"]) == [4.0, None]


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"prompt": ["a", "b"], "answer": [1, 2]})
    parquet.write_table(table, tmp_path / "p.parquet")
    task = FileTask(str(tmp_path / "p.parquet"), None, held_out=str(tmp_path / "p.parquet"))
    assert [(one.content, one.columns) for one in task.held_out(9)] == [
        ("a", {"answer": 1}),
        ("b", {"answer": 2}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row"),
        ("[1]", r"p.jsonl:1: expected an object, got \[1\]"),
        ('{"prompt": "a"}\n{', "p.jsonl:2: not JSON"),
        ('{"question": "a"}', "expected a column `prompt`, got question"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt": [{"content": "a"}]}', "expected messages with `role` and `content`"),
    ],
)
def test_files_that_are_none_are_refused_with_their_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        FileTask(str(path), None)


@pytest.mark.parametrize(("share", "rows"), [(0.8, 2), (0.99, 10), (0.05, 1), (0.5, 3)])
def test_a_prompt_is_left_to_train_on_whatever_share_is_kept_back(
    share: float, rows: int, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{number}="}) + "\n" for number in range(rows)))
    task = FileTask(str(path), None, share=share)
    trained = {one.content for one in task.prompts(5, np.random.default_rng(0))}
    kept = {one.content for one in task.held_out(100)}
    assert trained
    assert kept
    assert rows == 1 or not trained & kept


def test_line_breaks_of_other_kinds_are_parts_of_a_text(tmp_path: Path) -> None:
    path, text = tmp_path / "p.jsonl", "a\u2028b\u2029c\x85d"
    row = json.dumps({"prompt": text}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + row.encode() + b"\r\n" + row.encode())
    task = FileTask(str(path), None, held_out=str(path))
    assert [one.content for one in task.held_out(5)] == [text, text]


def test_a_file_that_is_not_in_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a\xff"}\n')
    with pytest.raises(ConfigError, match=r"p\.jsonl: not UTF-8"):
        FileTask(str(path), None)
