"""Samplers apart from where they run: what they are made of, the weights that they follow."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bray.templates.loading import load
from bray.text.config import LanguageModelConfig, SamplingConfig, TextSourceConfig
from bray.text.language_model import architecture_of, generation_settings, make_text_model
from bray.text.samplers.sampler_worker import SamplerRecipe, SamplerWorker
from bray.text.samplers.shared_weights import WeightsCarrier, as_carried, as_published
from bray.text.task_loading import load_task
from bray_core.errors import ConfigError, DeadlineError
from bray_model import Model
from bray_model.text.text_model import TextModel

CONFIG = LanguageModelConfig(
    config={
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "tie_word_embeddings": True,
    },
    characters="0123456789+=",
    context=16,
)
AGENT = SamplingConfig(max_tokens=4)
SOURCE = TextSourceConfig(environment="bray.text.tasks.addition:Addition")


@pytest.fixture
def trained() -> Iterator[TextModel]:
    """The model that is trained, at version 3."""
    with make_text_model(CONFIG, AGENT, seed=1) as model:
        model.publish(model.weights(), 3)
        yield model


def recipe_of(model: TextModel, logs: Path) -> SamplerRecipe:
    made = SamplerRecipe(
        architecture=architecture_of(model.new_module(), (11, 12)),
        tokenizer=model.tokenizer,
        generation=generation_settings(CONFIG, AGENT, seed=1),
        agent=AGENT,
        source=SOURCE,
        logs=logs,
        seed=1,
        threads=1,
        num_workers=1,
    )
    copied: SamplerRecipe = pickle.loads(pickle.dumps(made))
    return copied


def test_weights_travel_with_their_version_and_tied_ones_once(trained: TextModel) -> None:
    carried = as_carried(trained.weights(), 3)
    version, weights = as_published(carried)
    assert version == 3
    assert set(trained.weights()) - set(weights) == {"lm_head.weight"}
    with make_text_model(CONFIG, AGENT, seed=2) as other:
        other.engine.publish(weights, version)
        for name, tensor in trained.weights().items():
            assert (other.weights()[name] == tensor).all(), name


def test_a_sampler_plays_with_the_weights_that_were_published(
    trained: TextModel, tmp_path: Path
) -> None:
    store = Model(WeightsCarrier(trained.weights(), trained.version), np.zeros((1, 1), np.float32))
    sampler = SamplerWorker(recipe_of(trained, tmp_path), load_task(SOURCE), store)
    try:
        first = sampler.play(2, 3, 5, 3)
        assert {one.group for one in first} == {0, 1}
        assert {int(v) for one in first for v in one.rows[0].version[one.rows[0].mask]} == {3}
        trained.publish(trained.weights())
        store.publish(as_carried(trained.weights(), trained.version))
        again = sampler.play(2, 3, 5, 4)
        assert [one.rows[0].oldest_version for one in again] == [4] * 6
        assert [one.rows[0].tokens.tolist() for one in again] == [
            one.rows[0].tokens.tolist() for one in first
        ], "the same seed and weights"
        assert len(sampler.evaluate(4, None, 4)) == 4
        assert sampler.figures()["version"] == 4
        with pytest.raises(DeadlineError, match="version 9 did not arrive within 0"):
            sampler._weights.wait(9, 0.01)
    finally:
        sampler.close()
        store.close()


def test_all_tokens_that_end_an_answer_reach_a_sampler(trained: TextModel, tmp_path: Path) -> None:
    recipe = recipe_of(trained, tmp_path)
    made = TextModel.create(recipe.architecture, recipe.tokenizer, recipe.generation)
    with made:
        assert made.eos_ids == (12, 11), "the tokenizer's own first"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["source.external=true"], "expected 1 for external programs"),
        (["source.program=python play.py", "source.port=7381"], "expected 1 for external programs"),
        (["source.program=python play.py", "source.count=3"], "divisor of source.count=3, got 2"),
    ],
)
def test_programs_that_samplers_cannot_share_are_refused(settings: list[str], wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"actor.num_workers: .*{wanted}"):
        load("arithmetic", [*settings, "source.environment=", "num_workers=2"]).make()
