"""A language model made by settings: from a folder, or anew with a tokenizer of characters."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bray.text.config import LanguageModelConfig, SamplingConfig
from bray.text.lora_merge import LoraMerge
from bray_core.errors import BrayError, ConfigError
from bray_model.text.config import TextModelConfig
from bray_model.text.text_model import TextModel

END = "<end>"
"""Token that ends a turn, and fills rows, in tokenizers of characters."""


def make_text_model(
    config: LanguageModelConfig, sampling: SamplingConfig, *, seed: int, device: str = "cpu"
) -> TextModel:
    """Return the model that samples, with the weights that training begins with.

    Args:
        config: which model.
        sampling: how many answers are generated side by side.
        seed: seed of new weights, and of what is sampled.
        device: where it computes.

    Raises:
        ConfigError: the model cannot be made; names the setting.
    """
    settings = generation_settings(config, sampling, seed=seed, device=device)
    if config.path is not None:
        tokenizer = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
        made = TextModel.load(Path(config.path), settings, name="policy", tokenizer=tokenizer)
    else:
        made = _new_model(config, settings, seed)
    if config.chat_template is not None:
        made.tokenizer.chat_template = config.chat_template
    return made


def generation_settings(
    config: LanguageModelConfig, sampling: SamplingConfig, *, seed: int, device: str = "cpu"
) -> TextModelConfig:
    """Return how a model generates; see `make_text_model`."""
    return TextModelConfig(
        max_rows=sampling.slots,
        context_length=config.context,
        prefill_tokens=max(1024, 32 * sampling.slots),
        device=device,
        seed=seed,
    )


def _new_model(config: LanguageModelConfig, settings: TextModelConfig, seed: int) -> TextModel:
    from transformers import AutoConfig

    if config.tokenizer is not None:
        tokenizer = load_tokenizer(config.tokenizer)
    else:
        tokenizer = character_tokenizer(config.characters)
    values = dict(config.config)
    kind = values.pop("model_type", None)
    if not isinstance(kind, str):
        raise ConfigError("config: expected a `model_type`, such as llama, got none")
    known = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": config.context,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    try:
        architecture = AutoConfig.for_model(kind, **{**known, **values})
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"config: transformers cannot make {kind!r}: {error}") from error
    except Exception as error:  # its strict dataclasses raise errors of their own
        raise ConfigError(f"config: transformers refuses it: {error}") from error
    return TextModel.create(architecture, tokenizer, settings, seed=seed, name="policy")


def load_tokenizer(folder: str) -> Any:
    """Return the tokenizer of a folder; nothing is downloaded, and no code of it is run.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer

    if not Path(folder).is_dir():
        raise ConfigError(f"tokenizer: expected the folder of a tokenizer, got {folder!r}")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"tokenizer: cannot load {folder!r}: {error}") from error


def character_tokenizer(characters: str) -> Any:
    """Return a tokenizer of transformers in which each character is one token.

    Its end token, which also fills rows, has the last number.

    Args:
        characters: the characters, each once.

    Raises:
        ConfigError: there is none, or one comes twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not characters or len(set(characters)) != len(characters):
        raise ConfigError(f"characters: expected each once, got {characters!r}")
    vocabulary = {character: number for number, character in enumerate(characters)}
    vocabulary[END] = len(vocabulary)
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token=END))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, pad_token=END)


def architecture_of(module: Any, eos_ids: Sequence[int]) -> Any:
    """Return a copy of a module's configuration that names what ends an answer.

    Files of a model may name more such tokens than its configuration does.
    """
    made = copy.deepcopy(module.config)
    made.get_text_config().eos_token_id = list(eos_ids)
    return made


def adapted(module: Any, config: LanguageModelConfig) -> tuple[Any, LoraMerge]:
    """Return a module with the LoRA adapters of the settings, and how they are merged.

    Raises:
        ConfigError: peft is not installed, there are no such layers, or no adapters can be there.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError(
            "lora_rank: adapters need peft: install the extra `bray[llm]`, or set 0"
        ) from error
    linear = _linear_layers(module)
    settings = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(config.lora_targets or linear),
        fan_in_fan_out=any(linear.values()),
        task_type="CAUSAL_LM",
    )
    try:
        made = get_peft_model(module, settings)
    except ValueError as error:
        raise ConfigError(f"lora_targets: {error}") from error
    return made, LoraMerge.of(made, config.lora_alpha / config.lora_rank)


def _linear_layers(module: Any) -> dict[str, bool]:
    """Return the names of the linear layers but the last one, and whether it is GPT-2's kind.

    The weight of that kind is `[inputs, outputs]`. What decides between the experts of a mixture,
    and they, are parameters without a layer, and stay as they are.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = module.get_output_embeddings()
    return {
        name: isinstance(layer, Conv1D)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | Conv1D) and layer is not head
    }


def check_fits(tokenizer: Any, model: TextModel) -> None:
    """Refuse a tokenizer with more tokens than the model has, or without an end token.

    Raises:
        ConfigError: it is such.
    """
    if len(tokenizer) > model.vocab_size:
        raise ConfigError(
            f"tokenizer: has {len(tokenizer)} tokens, more than the model's {model.vocab_size}: "
            "take the tokenizer that the model was made with"
        )
    if tokenizer.eos_token_id is None:
        raise BrayError("tokenizer: has no end token: answers would never end")
