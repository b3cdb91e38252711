"""Whether a folder gives the same with transformers alone as with `TextModel`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bray_core.errors import ExportError
from bray_model.text.config import TextModelConfig
from bray_model.text.opening import open_folder
from bray_model.text.requests import Completion, Sampling, TextRequest
from bray_model.text.text_model import TextModel

_TOLERANCE = 1e-4
"""Largest difference of a log-probability in fp32."""
_TOKENS = 12


def validate_text(folder: Path) -> Iterator[str]:
    """Compare a folder opened by transformers with the same opened by bray, in fp32.

    Yields:
        What was found, a line each.

    Raises:
        ConfigError: The folder cannot be opened.
        ExportError: Tokens or log-probabilities differ.
    """
    config = TextModelConfig(max_rows=4, context_length=None)
    with TextModel.load(folder, config) as model:
        yield (
            f"{folder.name}: context of {model.context_length} tokens, vocabulary of "
            f"{model.vocab_size}, ends with {list(model.eos_ids)}"
        )
        has_template = bool(model.tokenizer.chat_template)
        yield f"chat template: {'yes' if has_template else 'none, so no chat completions'}"
        requests = _requests(model)
        ours = model.generate(requests)
    module, _ = open_folder(folder, config)
    module.eval()
    worst = 0.0
    for completion in ours:
        _check_greedy(module, completion)
        worst = max(worst, _difference(module, completion))
    if not worst <= _TOLERANCE:
        raise ExportError(
            f"{folder}: log-probabilities differ from those of transformers by {worst:.2g}, more "
            f"than {_TOLERANCE:g}"
        )
    count = sum(len(one.ids) for one in ours)
    yield f"greedy tokens of {len(ours)} prompts are those of transformers' generate"
    yield f"{count} log-probabilities differ from a forward of transformers by at most {worst:.2g}"


def _requests(model: TextModel) -> list[TextRequest]:
    """Return prompts of several lengths; one group shares its beginning."""
    rng = np.random.default_rng(0)
    room = max(2, min(24, model.context_length - _TOKENS - 1))
    sampling = Sampling(max_tokens=_TOKENS, temperature=0.0)
    prompts = [rng.integers(0, model.vocab_size, n).tolist() for n in (1, room // 2, room, room)]
    prompts[3][: room // 2] = prompts[2][: room // 2]
    return [TextRequest(tuple(prompt), sampling, group="validate") for prompt in prompts]


@torch.inference_mode()
def _check_greedy(module: torch.nn.Module, completion: Completion) -> None:
    prompt = torch.tensor([completion.prompt_ids])
    given = module.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=_TOKENS
    )
    expected = given[0, prompt.shape[1] :].tolist()[: len(completion.ids)]
    if expected != completion.ids.tolist():
        raise ExportError(
            f"greedy tokens differ from those of transformers' generate after a prompt of "
            f"{prompt.shape[1]} tokens: {completion.ids.tolist()}, expected {expected}"
        )


@torch.inference_mode()
def _difference(module: torch.nn.Module, completion: Completion) -> float:
    ids = torch.tensor([[*completion.prompt_ids, *completion.ids.tolist()]])
    logits = module(ids).logits[0, len(completion.prompt_ids) - 1 : -1]
    expected = logits.float().log_softmax(-1).gather(-1, torch.tensor(completion.ids)[:, None])
    return float(np.abs(expected[:, 0].numpy() - completion.raw_logprobs).max())
