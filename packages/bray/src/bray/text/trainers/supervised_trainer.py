"""Supervised steps on demonstrated rows: the cross-entropy of the tokens to learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bray.text.trainers.token_trainer import TokenTrainer
from bray_algo.tokens import sft


class SupervisedTrainer(TokenTrainer):
    """Takes one step on each replay of demonstrated rows."""

    def begin_replay(self) -> None:
        """Set the learning rate, which warms up once."""
        self.set_rate(self.part.learning_rate, self.part.warmup_steps, self.steps)

    def handle(self, replay: Any) -> Iterator[dict[str, Tensor]]:
        """Yield the rows in parts."""
        rows = self.rows_of(replay)
        numbers = torch.arange(len(rows["length"]), device=self.device)
        yield from self.step_parts(rows, numbers)

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean of −log π over the tokens to learn."""
        return sft.loss(self.log_probs(batch), batch["mask"])
