"""From a folder, or from an architecture and a tokenizer, to an engine that generates."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as shown

from bray_core.errors import ConfigError
from bray_model.text.cached_module import (
    FULL,
    SLIDING,
    CachedModule,
    layer_shapes,
    mask_types,
    window_of,
)
from bray_model.text.config import TextModelConfig
from bray_model.text.fused.fused_module import FusedModule
from bray_model.text.fused.llama_shape import has_llama_shape
from bray_model.text.module_weights import ModuleWeights
from bray_model.text.row_cache import RowCache
from bray_model.text.rows_alone import RowsAlone
from bray_model.text.step_check import difference, is_same
from bray_model.text.step_module import StepModule
from bray_model.text.torch_text_engine import TorchTextEngine

_logger = logging.getLogger(__name__)
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def open_folder(folder: Path, config: TextModelConfig, tokenizer: Any = None) -> tuple[Any, Any]:
    """Return the module and the tokenizer of a folder; nothing is downloaded, no code is run.

    A tokenizer that is given takes the place of the folder's.

    Raises:
        ConfigError: A file is missing, broken, or does not fit the others.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: expected the folder of a language model, found no folder")
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder}: no config.json: expected a folder as save_pretrained of transformers "
            "writes it"
        )
    if not any(folder.glob("*.safetensors")):
        others = sorted(path.name for path in folder.glob("*.bin"))
        found = f", but {', '.join(others[:3])}" if others else ""
        raise ConfigError(
            f"{folder}: no weights: expected model.safetensors{found}: save the model anew with "
            "transformers (weights in pickles are not read: they could run code)"
        )
    if tokenizer is None:
        with _in_words(folder, "tokenizer"):
            tokenizer = _tokenizer_class(folder).from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    with _in_words(folder, "model"), _without_bars():
        architecture = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=architecture,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=_DTYPES[config.precision],
            output_loading_info=True,
        )
    for what in ("missing_keys", "mismatched_keys"):
        if report[what]:
            some = ", ".join(str(one) for one in sorted(report[what], key=str)[:3])
            raise ConfigError(
                f"{folder}: {what.replace('_', ' ')} in the weights: {some}: the weights belong "
                "to another architecture than config.json"
            )
    return module, tokenizer


def _tokenizer_class(folder: Path) -> Any:
    """Return what opens a folder's tokenizer.

    `AutoTokenizer` takes the class of some architectures (Qwen 2) whatever the folder says, and
    that class adds tokens of its own, which the model does not know.
    """
    about = folder / "tokenizer_config.json"
    written = json.loads(about.read_bytes()) if about.is_file() else {}
    is_whole = written.get("tokenizer_class") == "TokenizersBackend"
    return PreTrainedTokenizerFast if is_whole else AutoTokenizer


def make_module(architecture: Any, config: TextModelConfig, seed: int) -> Any:
    """Return a module with random weights; torch's own random state is left as it was."""
    with torch.random.fork_rng(devices=[]), _in_words(type(architecture).__name__, "model"):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(architecture, dtype=_DTYPES[config.precision])


def copy_module(module: Any) -> Any:
    """Return a separate module of the same weights, whose parameters can be trained."""
    return copy.deepcopy(module).requires_grad_(True)


def save_module(module: Any, folder: Path) -> None:
    """Write a module's config and weights into a folder."""
    with _without_bars():
        module.save_pretrained(folder)


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Let transformers draw no progress bars meanwhile."""
    was_shown = shown.is_progress_bar_enabled()
    shown.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            shown.enable_progress_bar()


@contextlib.contextmanager
def _in_words(place: object, what: str) -> Iterator[None]:
    """Say which file of whose is to blame for whatever transformers raises."""
    try:
        yield
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(
            f"{place}: the {what} cannot be opened: {type(error).__name__}: {error}"
        ) from error


def open_engine(module: Any, config: TextModelConfig, eos_ids: tuple[int, ...]) -> TorchTextEngine:
    """Return an engine that generates with a module; the module belongs to it from now on.

    Raises:
        ConfigError: The architecture cannot be decoded token by token, or the device is not
            there.
    """
    device = _device(config.device)
    module = module.to(device=device, dtype=_DTYPES[config.precision]).eval().requires_grad_(False)
    step_module = _step_module(module, config, device)
    return TorchTextEngine(
        step_module,
        ModuleWeights(module),
        config,
        eos_ids=eos_ids,
        context_length=_context_length(module, config),
        vocab_size=module.config.get_text_config().vocab_size,
    )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device: {name!r} is not there: {error}") from error
    return device


def _context_length(module: Any, config: TextModelConfig) -> int:
    text = module.config.get_text_config()
    most = getattr(text, "max_position_embeddings", None) or 2**20
    if config.context_length is None:
        return int(most)
    if config.context_length > most:
        raise ConfigError(
            f"context_length={config.context_length} exceeds the {most} tokens that the model was "
            "made for"
        )
    return config.context_length


def _step_module(module: Any, config: TextModelConfig, device: torch.device) -> StepModule:
    """Return the first way of computing steps that gives what the module gives alone."""
    reasons = []
    for way in (_batched_module, _rows_alone):
        for implementation in ("sdpa", "eager"):
            try:
                module.set_attn_implementation(implementation)
                step_module, worst = way(module, config, device)
            except Exception as error:  # noqa: BLE001  many architectures, many ways to fail
                reasons.append(f"{implementation}: {type(error).__name__}: {error}")
                continue
            if is_same(worst, module.dtype):
                if way is _rows_alone:
                    _logger.info("%s is decoded row by row", type(module).__name__)
                return step_module
            reasons.append(f"{implementation}: logits differ by {worst:.2g} deviations")
    raise ConfigError(
        f"{type(module).__name__} cannot generate: token by token it computes other logits than at "
        f"once, in a batch ({'; '.join(reasons[:2])}) as row by row ({'; '.join(reasons[2:])})"
    )


def _batched_module(
    module: Any, config: TextModelConfig, device: torch.device
) -> tuple[StepModule, float]:
    """Return a module that computes all rows at once, and how far it is off.

    Raises:
        ConfigError: a layer keeps more than keys and values.
    """
    text = module.config.get_text_config()
    kinds = set(mask_types(text))
    if getattr(module, "_is_stateful", False) or not kinds <= {FULL, SLIDING}:
        others = ", ".join(sorted(kinds - {FULL, SLIDING})) or "a recurrent state"
        raise ConfigError(f"it has layers with {others}")
    with torch.inference_mode():
        shapes = layer_shapes(module)
    cache = RowCache(shapes, module.dtype, device, config.cache_bytes)
    fused = _fused_module(module, cache)
    if fused is not None:
        return fused, 0.0
    batched = CachedModule(module, cache)
    return batched, difference(module, batched, text.vocab_size, window_of(text))


@torch.inference_mode()
def _rows_alone(
    module: Any, config: TextModelConfig, device: torch.device
) -> tuple[StepModule, float]:
    """Return a module that computes one row after another, and how far it is off."""
    text = module.config.get_text_config()
    alone = RowsAlone(module, device, config.cache_bytes)
    worst = difference(module, alone, text.vocab_size, window_of(text))
    return alone, worst


def _fused_module(module: Any, cache: RowCache) -> StepModule | None:
    """Return the quick way of computing steps, where the module is built for it."""
    text = module.config.get_text_config()
    if not has_llama_shape(module):
        return None
    window = window_of(text)
    kinds = getattr(text, "layer_types", None) or [mask_types(text)[0]] * len(cache.shapes)
    windows = [window if kind == SLIDING else None for kind in kinds]
    fused = FusedModule(module, cache, windows)
    worst = difference(module, fused, text.vocab_size, window)
    if is_same(worst, module.dtype):
        return fused
    _logger.debug("%s is not computed as Llama is: %g", type(module).__name__, worst)
    return None


def eos_ids_of(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that the model's files name as an end of text, the tokenizer's first.

    That one ends a turn in chat templates; others, such as Qwen's `<|endoftext|>`, a whole text.
    """
    found: list[int] = []
    for owner in (tokenizer, module.generation_config, module.config.get_text_config()):
        ids = getattr(owner, "eos_token_id", None)
        if ids is not None:
            found += ids if isinstance(ids, list | tuple) else [ids]
    return tuple(dict.fromkeys(found))
