import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from bray_core.cli import main
from bray_core.errors import AlreadyExistsError, ConfigError, ExportError
from bray_model.text import validate_text
from bray_model.text.requests import Sampling, TextRequest
from bray_model.text.text_folder import copy_language_model, find_language_model
from bray_model.text.text_model import TextModel


@pytest.fixture
def folder(make, tmp_path):
    model = make()
    model.publish({name: tensor + 0.01 for name, tensor in model.weights().items()})
    return model.save(tmp_path / "saved")


def test_a_saved_folder_is_opened_by_transformers_and_by_bray(folder):
    module = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("1+2=")
    expected = module.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)
    with TextModel.load(folder) as model:
        assert model.name == "saved"
        assert model.render_chat([{"role": "user", "content": "hi"}]) == "u hi. a "
        request = TextRequest(model.encode("1+2="), Sampling(max_tokens=12, temperature=0.0))
        [one] = model.generate([request])
    assert one.ids.tolist() == expected[0, len(ids) :].tolist()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["saved"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "who reads one reads all"


def test_a_saved_tokenizer_is_opened_as_it_was_where_transformers_has_a_class_for_the_model(
    make, llama, character_tokenizer, tmp_path
):
    about = llama().to_dict()
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "eos_token_id", "pad_token_id")
    sizes = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    rust = character_tokenizer().backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="<e>")  # no token to pad
    model = make(Qwen2Config(**{name: about[name] for name in same}, **sizes), tokenizer)
    with TextModel.load(model.save(tmp_path / "saved")) as opened:
        assert opened.tokenizer.get_vocab() == model.tokenizer.get_vocab()
        assert opened.encode("1+2=") == model.encode("1+2=")


def test_saving_anew_replaces_the_folder(folder, make):
    other = make(seed=4)
    (folder / "left over").touch()
    other.save(folder)
    assert not (folder / "left over").exists()
    with TextModel.load(folder) as model:
        for name, tensor in other.weights().items():
            assert torch.equal(model.weights()[name], tensor)


def test_the_commands_export_and_validate_a_language_model(folder, tmp_path, capsys):
    trial = tmp_path / "trial"
    inside = trial / "models" / "policy" / "huggingface"
    copy_language_model(folder, inside)
    assert find_language_model(trial) == inside
    assert find_language_model(tmp_path) is None
    target = tmp_path / "copy"
    assert main(["export", str(trial), "--output", str(target)]) == 0
    assert main(["validate", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "greedy tokens of 4 prompts are those of transformers' generate" in printed
    assert printed.endswith("valid\n")
    with pytest.raises(AlreadyExistsError):
        copy_language_model(folder, target)


def test_validating_notices_what_differs(folder, monkeypatch):
    opened = validate_text.open_folder

    def other(*arguments):
        module, tokenizer = opened(*arguments)
        module.lm_head.weight.data += 0.1 * torch.randn(module.lm_head.weight.shape)
        return module, tokenizer

    monkeypatch.setattr(validate_text, "open_folder", other)
    with pytest.raises(ExportError, match="differ"):
        list(validate_text.validate_text(folder))


def no_folder(folder):
    return folder / "nothing"


def no_config(folder):
    (folder / "config.json").unlink()


def no_weights(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def broken_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def broken_config(folder):
    (folder / "config.json").write_text("{")


def unknown_architecture(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "abacus"}))


def other_weights(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))


def no_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_folder, "found no folder"),
        (no_config, "no config.json"),
        (no_weights, r"no weights: expected model.safetensors, but pytorch_model.bin"),
        (broken_weights, "the model cannot be opened"),
        (broken_config, "cannot be opened"),
        (unknown_architecture, "cannot be opened: .*abacus"),
        (other_weights, "missing keys in the weights: model.layers.2"),
        (no_tokenizer, "the tokenizer cannot be opened"),
    ],
)
def test_folders_that_cannot_be_opened_are_refused_in_words(folder, spoil, words):
    path = spoil(folder) or folder
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        TextModel.load(path)


def test_a_tokenizer_that_knows_more_than_the_model_is_refused(make, llama):
    with pytest.raises(ConfigError, match=r"token '.' has id 47, but the model knows 40 ids"):
        make(llama(vocab_size=40))


def test_settings_that_do_not_fit_the_model(make):
    with pytest.raises(ConfigError, match="context_length=97 exceeds the 96 tokens"):
        make(context_length=97)
    with pytest.raises(ConfigError, match="device: 'abacus' is not there"):
        make(device="abacus")


def test_bf16_generates_with_log_probabilities_that_are_its_own(make):
    model = make(precision="bf16")
    [one] = model.generate([TextRequest((5, 6, 7), Sampling(max_tokens=20, ignore_eos=True))])
    module = model.new_module()
    ids = torch.tensor([[*one.prompt_ids, *one.ids.tolist()]])
    logits = module(ids).logits[0, 2:-1].float().log_softmax(-1)
    expected = logits.gather(-1, torch.from_numpy(one.ids)[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(one.logprobs, expected, atol=0.5)
