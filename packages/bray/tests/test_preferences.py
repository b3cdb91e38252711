"""DPO: pairs of a file, the loss written out, and parts that keep pairs together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import token_models
import torch
from torch.nn.functional import logsigmoid

from bray.text.drawn_source import DrawnSource
from bray.text.preference_pairs import _drawn, pack_pairs, read_pairs
from bray.text.row_queue import RowQueue
from bray.text.trainers.preference_trainer import DPOConfig, PreferenceTrainer
from bray_core.errors import ConfigError


def tokenizer() -> Any:
    def encode(text: str, *, special: bool = True) -> Sequence[int]:
        return [int(one) for one in text]

    return SimpleNamespace(encode=encode, eos_ids=(6,), context_length=20)


def pairs(tmp_path: Path) -> Any:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "12", "chosen": "34", "rejected": "5"}\n'
        '{"prompt": "2", "chosen": "1", "rejected": "5432"}\n'
        '{"prompt": "023", "chosen": "31", "rejected": "00"}\n'
    )
    return read_pairs(tokenizer(), path)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_the_gradient_is_that_of_the_paper(tmp_path: Path, microbatches: int) -> None:
    read = pairs(tmp_path)
    module, queue = token_models.SumOfTokens(), RowQueue(1)
    part = DPOConfig(
        learning_rate=1.0, beta=0.3, batch_size=5, microbatches=microbatches, max_grad_norm=None
    )
    trainer = PreferenceTrainer(module, queue, part)
    with torch.no_grad():
        module.head.bias += torch.randn(token_models.WORDS)  # away from the reference
    trainer.optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    trainer._stepper.optimizers = {"": trainer.optimizer}
    draw = partial(_drawn, read)
    source = DrawnSource(lambda count, rng: pack_pairs(draw(count, rng)), queue, 5, trainer, seed=1)
    source.collect(1)
    drawn = np.random.default_rng([1, 0]).integers(3, size=5)

    def ratio(row: Any) -> torch.Tensor:
        mask = torch.from_numpy(row.mask)
        own = token_models.plain_log_probs(module, row)
        before = token_models.plain_log_probs(trainer._reference, row)
        return ((own - before) * mask).sum()

    margins = [ratio(read[n][0]) - ratio(read[n][1]) for n in drawn]
    loss = -torch.stack([logsigmoid(0.3 * one) for one in margins]).mean()
    wanted = [
        (p - g).detach()
        for p, g in zip(
            module.parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True
        )
    ]
    trainer.run(1)
    for got, want in zip(module.parameters(), wanted, strict=True):
        torch.testing.assert_close(got.detach(), want, atol=1e-6, rtol=1e-5)
    assert source.poll().frames == 5


def test_a_pair_without_an_answer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1", "chosen": "2"}')
    with pytest.raises(ConfigError, match="row 1: expected texts `chosen` and `rejected`, got"):
        read_pairs(tokenizer(), path)
