"""Whole runs of language models, a few steps long: from files, with adapters, over the endpoint."""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_projects import SMALL, TEMPLATE, make_project

from bray.cli.launch import Launch
from bray.composition.whole_run import completed_goal, run_template
from bray.goal import Outcome
from bray.templates.loading import compose
from bray.text.config import LanguageModelConfig, SamplingConfig, TextSourceConfig
from bray.text.endpoint_rounds import EndpointRounds
from bray.text.language_model import make_text_model
from bray_core.metrics.json_lines import curve
from bray_model.text.text_model import TextModel

pytestmark = pytest.mark.long


def trained(folder: Path, task: str, *settings: str, algorithm: str = "grpo") -> Outcome:
    template = compose(algorithm, task, [*settings])
    launch = Launch(project=folder, trial="one")
    outcome, report = run_template(template, launch.open, completed_goal(template))
    assert report is None
    return outcome


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of prompts, a reward for a letter, and a program that plays."""
    make_project(tmp_path, monkeypatch)
    return tmp_path


def test_prompts_of_a_file_are_learnt_and_the_export_answers(files: Path) -> None:
    outcome = trained(
        files, "prompts.jsonl", *SMALL, "reward=letter_reward.py:vowels", "goal.max_frames=640"
    )
    assert outcome.frames == 640
    assert outcome.evaluation_return > 2, "of four tokens chance has one"
    with TextModel.load(files / "one" / "models" / "policy" / "huggingface") as model:
        assert model.decode(model.encode("ab?")) == "ab?"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_are_trained_and_merged_into_what_is_published(files: Path) -> None:
    outcome = trained(
        files,
        "prompts.jsonl",
        *SMALL,
        "reward=letter_reward.py:vowels",
        "lora_rank=4",
        "goal.max_frames=320",
        "kl_coefficient=0.01",
        "old_log_prob=trainer",
    )
    assert outcome.version >= 40
    # Sampler and trainer compute the same: what was merged is what is trained.
    _, gap = curve(files / "one", "trainer/sampler_gap_max")
    assert max(gap) < 1e-4
    with TextModel.load(files / "one" / "models" / "policy" / "huggingface") as model:
        assert not any("lora" in name for name in model.weights())


def test_ppo_learns_values_that_no_export_has(files: Path) -> None:
    settings = [*SMALL, "reward=letter_reward.py:vowels", "trainer.variant=ppo", "group_size=1"]
    settings += ["prompts_per_step=16", "goal.max_frames=320"]
    trained(files, "prompts.jsonl", *settings)
    # The same command goes on from the checkpoint, values included.
    assert trained(files, "prompts.jsonl", *settings, "goal.max_frames=960").frames == 960
    _, explained = curve(files / "one", "trainer/explained_variance")
    assert max(explained) > 0
    with TextModel.load(files / "one" / "models" / "policy" / "huggingface") as model:
        assert not any("value" in name for name in model.weights())


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_sessions_at_the_endpoint_become_samples_of_their_groups(tmp_path: Path) -> None:
    config = LanguageModelConfig(
        config={
            "model_type": "llama",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        characters="abc?",
        chat_template=TEMPLATE,
        context=32,
    )
    model = make_text_model(config, SamplingConfig(max_tokens=4), seed=1)
    source = TextSourceConfig(external=True)
    rounds = EndpointRounds(model, source, held_out=None, logs=tmp_path, seed=1)
    said: dict[str, list[str]] = {}
    try:
        for number, name in enumerate(["x.1", "y.1", "x.2"]):
            base = f"{rounds.base_url}/sessions/{name}/v1"
            messages = [{"role": "user", "content": "?"}]
            for _ in range(2):
                body = {"model": "policy", "messages": messages, "max_tokens": 2}
                answer = post(f"{base}/chat/completions", body)["choices"][0]["message"]
                said.setdefault(name, []).append(answer["content"] or "")
                messages.append({"role": "assistant", "content": said[name][-1]})
                messages.append({"role": "user", "content": "b"})
            post(f"{base}/end", {"reward": float(number)})
        samples = rounds.play(1, 3, np.random.default_rng(0))
    finally:
        rounds.close()
        model.close()
    assert [(one.group, one.reward) for one in samples] == [(0, 0.0), (0, 2.0), (1, 1.0)]
    for one, name in zip(samples, ["x.1", "x.2", "y.1"], strict=True):
        (row,) = one.rows
        assert model.decode(row.tokens[row.mask].tolist()) == "".join(said[name])
        assert (row.log_prob[row.mask] < 0).all()
        assert not row.mask[0]


def test_a_program_plays_at_the_endpoint(files: Path) -> None:
    settings: list[Any] = [*SMALL, f"model.chat_template={TEMPLATE}", "max_lag=2"]
    program = f"source.program={sys.executable} play.py"
    try:
        outcome = trained(files, "", *settings, program, "goal.max_frames=48")
    except BaseException:
        print((files / "one" / "programs" / "training-0.log").read_text())
        raise
    assert outcome.frames == 48
    assert len(outcome.episode_returns) > 0
