"""A project of a tiny language model: settings, a reward for a letter, and a program that plays."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SMALL = [
    'model.config={"model_type":"llama","hidden_size":16,"intermediate_size":32,'
    '"num_hidden_layers":1,"num_attention_heads":2}',
    "model.characters=abc?",
    "model.context=32",
    "agent.max_tokens=4",
    "least_informative=0",
    "prompts_per_step=2",
    "group_size=4",
    "learning_rate=1e-2",
    "goal.evaluation_episodes=4",
]
REWARD = """
def vowels(prompts, completions, wanted):
    return [float(text.count(letter)) for text, letter in zip(completions, wanted)]
"""
PLAY = """
import json, os, urllib.request
base = os.environ["OPENAI_BASE_URL"]

def post(path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))

while True:
    messages, score = [{"role": "user", "content": "?"}], 0
    for turn in range(2):
        answer = post("/chat/completions", {"model": "policy", "messages": messages,
                                            "max_tokens": 3, "temperature": 1.0})
        said = answer["choices"][0]["message"]["content"] or ""
        score += said.count("a")
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "b"}]
    post("/end", {"reward": score})
"""
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}?{% endif %}"
)


def make_project(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a folder the working directory, with a file of prompts, a reward and a program."""
    patch.chdir(folder)
    rows = [{"prompt": f"{one}?", "wanted": "a"} for one in "abc" * 7]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "letter_reward.py").write_text(REWARD)
    (folder / "play.py").write_text(PLAY)
    patch.delitem(sys.modules, "letter_reward", raising=False)
