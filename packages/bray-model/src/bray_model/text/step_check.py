"""Whether a module computes the same in rows of a batch as alone: tried before it is used.

transformers has hundreds of architectures. Some cannot be decoded in rows of different lengths:
those with a recurrent state, and those whose forward makes its own mask or positions. A list of
names would always be out of date; a try is not.
"""

from __future__ import annotations

from typing import Any

import torch

from bray_model.text.step_module import PromptPart, StepModule

_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference of a logit, relative to the spread of the logits."""


@torch.inference_mode()
def difference(module: Any, step_module: StepModule, vocab_size: int, window: int | None) -> float:
    """Return the largest difference of logits between rows of a batch and a forward alone.

    Three sequences of different lengths are begun, one of them on a beginning copied from
    another where rows lend theirs, and decoded for two steps. The result is relative to the
    standard deviation of the logits.
    """
    length = 9 if window is None or window > 64 else window + 5
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocab_size, (3, length), generator=generator)
    ids[2, : length - 4] = ids[0, : length - 4]
    sequences = [ids[0].tolist(), ids[1, : length - 3].tolist(), ids[2, : length - 1].tolist()]
    cache = step_module.cache
    cache.resize(4, length, 0, 0)
    try:
        batched = _in_rows(step_module, sequences)
    finally:
        cache.free()
    worst = 0.0
    for sequence, logits in zip(sequences, batched, strict=True):
        alone = module(input_ids=torch.tensor([sequence], device=module.device)).logits[0, -3:]
        spread = alone.float().std().clamp_min(1e-6)
        worst = max(worst, float((alone.float() - logits.float()).abs().max() / spread))
    return worst if worst == worst else float("inf")


def _in_rows(step_module: StepModule, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Return the logits of the last three positions of each sequence, `[3, V]`."""
    cache = step_module.cache
    first = step_module.prefill([PromptPart(row, sequences[row][:-2], 0) for row in range(2)])
    shared = 0
    if cache.lends:
        shared = min(len(sequences[2]) - 3, len(sequences[0]) - 4)
        cache.copy([0], [2], shared)
    second = step_module.prefill([PromptPart(2, sequences[2][shared:-2], shared)])
    logits = [[*first, *second]]
    for back in (2, 1):
        ids = torch.tensor([sequence[-back] for sequence in sequences], device=cache.device)
        lengths = torch.tensor([len(sequence) - back for sequence in sequences])
        logits.append(list(step_module.decode(ids, lengths.to(cache.device), int(lengths.max()))))
    return [torch.stack([step[row] for step in logits]) for row in range(3)]


def is_same(value: float, dtype: torch.dtype) -> bool:
    """Return whether a difference is no more than rounding."""
    return value <= _TOLERANCE[dtype]
