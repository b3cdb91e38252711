"""Steps on pairs of answers of which one was preferred: DPO."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bray.text.config import TokenTrainerConfig
from bray.text.trainers.policy_gradient_trainer import frozen_copy
from bray.text.trainers.token_trainer import TokenTrainer
from bray_algo.tokens import dpo
from bray_algo.tokens.sequences import sums
from bray_core.settings.ranges import PositiveFloat, PositiveInt, check_fields
from bray_trainer.distributed.sharding import load, shard, whole


@dataclass(frozen=True, kw_only=True, slots=True)
class DPOConfig(TokenTrainerConfig):
    """The hyperparameters of DPO."""

    batch_size: PositiveInt = 32
    """Pairs of one step of the optimiser. 8 to 128."""
    learning_rate: PositiveFloat = 5e-7
    """AdamW's step size. 1e-7 to 1e-6 for pretrained models, 1e-5 with LoRA: preferences are few,
    and a large step forgets how to write."""
    beta: PositiveFloat = 0.1
    """How strongly the model is held at the one that training began with. 0.01 to 0.5; small lets
    it drift, large hardly learns."""

    def __post_init__(self) -> None:
        check_fields(self)


class PreferenceTrainer(TokenTrainer):
    """Takes one step on each replay of pairs: rows 2i are chosen, rows 2i + 1 rejected.

    Args:
        module: the model; a copy of it, as it is now, is the reference.
        queue: replays of rows.
        part: the hyperparameters.
        **rest: as in `TokenTrainer`.
    """

    part: DPOConfig

    def __init__(self, module: nn.Module, queue: Any, part: DPOConfig, **rest: Any) -> None:
        self._reference = frozen_copy(module)
        super().__init__(module, queue, part, **rest)
        self._reference.to(self.device)
        if part.shard:
            shard(self._reference, self.ranks)

    def begin_replay(self) -> None:
        """Set the learning rate, which warms up once."""
        self.set_rate(self.part.learning_rate, self.part.warmup_steps, self.steps)

    def handle(self, replay: Any) -> Iterator[dict[str, Tensor]]:
        """Yield the pairs in parts."""
        rows = self.rows_of(replay)
        pairs = torch.arange(len(rows["length"])).view(-1, 2)
        for piece in torch.tensor_split(pairs, min(self.part.microbatches, len(pairs))):
            yield next(self.parts_of(rows, piece.flatten(), 1, is_sorted=True))

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return −log σ(β (chosen − rejected)), each relative to the reference, over the pairs."""
        mask = batch["mask"]
        own = sums(self.log_probs(batch), mask).view(-1, 2)
        with torch.no_grad():
            reference = sums(self.log_probs(batch, self._reference), mask).view(-1, 2)
        return dpo.loss(own[:, 0], own[:, 1], reference[:, 0], reference[:, 1], beta=self.part.beta)

    def batch_weight(self, batch: Any) -> float:
        """Return the number of pairs: what a part's loss is a mean over."""
        return len(batch["mask"]) / 2

    def state_dict(self) -> dict[str, Any]:
        """Return the reference."""
        return {"reference": whole(self._reference.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        load(self._reference, state["reference"])
