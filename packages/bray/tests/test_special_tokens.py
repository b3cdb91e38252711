"""What begins and ends a text: the same tokens in training and demonstrations as in serving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.text.config import LanguageModelConfig, SamplingConfig
from bray.text.conversations import ConversationRounds
from bray.text.demonstrations import demonstration_row, demonstration_rows
from bray.text.language_model import make_text_model
from bray.text.sampling import AnswerSampler
from bray.text.task import Demonstration
from bray_model.text.text_model import TextModel

ASKED = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "yo"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def saved_tokenizer(folder: Path, characters: str) -> Path:
    """Write a tokenizer that begins texts with `<s>`, as its template does, and ends with `<e>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["<pad>", "<s>", "<e>", *characters])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    plain.decoder = decoders.Fuse()
    plain.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=plain,
        bos_token="<s>",
        eos_token="<e>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that names two end tokens, as Qwen's do."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    made = saved_tokenizer(tmp_path_factory.mktemp("model"), "hiyoua")
    module = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=9,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            eos_token_id=2,
            bos_token_id=1,
            pad_token_id=0,
        )
    )
    module.generation_config.eos_token_id = [2, 0]
    module.save_pretrained(made)
    return made


def model_of(folder: Path, **settings: Any) -> TextModel:
    config = LanguageModelConfig(path=str(folder), context=64, **settings)
    return make_text_model(config, SamplingConfig(max_tokens=3), seed=0)


class Asks:
    def reset(self, seed: int) -> list[dict[str, str]]:
        return [ASKED]

    def step(self, message: Mapping[str, Any]) -> tuple[list[Any], float, bool]:
        return [], 1.0, True


def test_a_conversation_begins_with_one_token_wherever_it_is_read(folder: Path) -> None:
    model = model_of(folder)
    served = model.apply_chat_template([ASKED])
    assert served.count(1) == 1
    rounds = ConversationRounds(Asks, AnswerSampler(model, SamplingConfig(max_tokens=3)))
    (sample,) = rounds.play(1, 1, np.random.default_rng(0))
    learnt = demonstration_row(model, Demonstration(content=(ASKED, SAID)))
    for row in (sample.rows[0], learnt):
        assert tuple(row.tokens.tolist())[: len(served)] == served


def test_an_answer_ends_with_the_tokenizers_end_token_wherever_it_is_learnt(folder: Path) -> None:
    model = model_of(folder)
    assert sorted(model.eos_ids) == [0, 2]
    rows = [
        demonstration_row(model, Demonstration(content=(ASKED, SAID))),
        demonstration_row(model, Demonstration(content=(ASKED,), completion="yo")),
        demonstration_row(model, Demonstration(content="hi", completion="yo")),
        *demonstration_rows(model, [Demonstration(content="hi", completion="yo")]),
    ]
    assert [int(row.tokens[-1]) for row in rows] == [2] * 4
    assert all(row.mask[-1] for row in rows)


def test_a_tokenizer_that_is_named_takes_the_place_of_the_folders(
    folder: Path, tmp_path: Path
) -> None:
    other = saved_tokenizer(tmp_path / "other", "auoyih")
    model = model_of(folder, tokenizer=str(other), chat_template="{{ messages[0].content }}")
    assert model.encode("hi", special=False) == (8, 7)
    assert model.decode([8, 7]) == "hi"
    assert model.render_chat([ASKED]) == "hi"
    model.save(tmp_path / "saved")
    assert TextModel.load(tmp_path / "saved").encode("hi", special=False) == (8, 7)
