"""What trainers of tokens share: the forward pass, minibatches, AdamW, exact means over parts.

A replay is the rows of one round of sampling. Each optimiser step is on a minibatch of rows, cut
into `microbatches` parts of similar length. A part's loss is a mean over its own tokens (or rows),
and `batch_weight` says over how many: so the mean gradient over parts and ranks is that of one mean
over all tokens, not a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bray.text.config import TokenTrainerConfig
from bray.text.row_queue import RowQueue
from bray.text.trainers.forward_pass import ForwardPass, check_rows_are_apart
from bray_core.layout import Packed
from bray_core.protocols import ModelProtocol
from bray_trainer import Trainer, TrainerConfig, to_torch


class TokenTrainer(Trainer):
    """Trains a causal language model of transformers on rows of tokens; a subclass has the loss.

    Dropout is turned off: the sampler and the reference drop nothing, and what is trained must be
    compared with them.

    Args:
        module: the model, whose `forward(input_ids)` returns `logits`.
        queue: replays of rows.
        part: settings of the algorithm.
        temperature: divisor of the logits, that of the sampler.
        seed: seed of what is drawn.
        model: where weights are published; None publishes nowhere.
        directory: folder of the checkpoints; None writes none.
    """

    def __init__(
        self,
        module: nn.Module,
        queue: RowQueue,
        part: TokenTrainerConfig,
        *,
        temperature: float = 1.0,
        seed: int = 1,
        model: ModelProtocol | None = None,
        directory: Path | None = None,
    ) -> None:
        self.part = part
        self.temperature = temperature
        self._packs = False  # whether the model was seen to keep packed rows apart
        config = TrainerConfig(
            learning_rate=part.learning_rate,
            max_grad_norm=part.max_grad_norm,
            accumulate=part.microbatches,
            precision=part.precision,
            shard=part.shard,
            prefetch=0,  # the queue is in this process, and says itself how far it goes ahead
            checkpoint_every=part.checkpoint_every,
            device=part.device,
            threads=part.trainer_threads,
            seed=seed,
        )
        drop_nothing(module)
        if part.gradient_checkpointing:
            checkpoint_activations(module)
        super().__init__(module, queue, model=model, config=config, directory=directory)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW for what is trained: all weights, or the adapters."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        return torch.optim.AdamW(
            trained,
            lr=self.part.learning_rate,
            betas=(0.9, self.part.beta2),
            weight_decay=self.part.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
        )

    def set_rate(self, rate: float, warmup_steps: int, steps: int) -> None:
        """Set the learning rate of the next step.

        Args:
            rate: the rate after the warm-up.
            warmup_steps: steps over which it rises from 0.
            steps: steps taken since the warm-up began.
        """
        share = min(1.0, (steps + 1) / (warmup_steps + 1))
        optimizer: Any = self.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate * share

    def log_probs(self, rows: dict[str, Tensor], module: nn.Module | None = None) -> Tensor:
        """Return the log probability of each own token of rows, `[B, T]`, 0 elsewhere.

        Args:
            rows: `tokens` and `mask`, `[B, T]`, and `length`, `[B]`.
            module: another model of the same kind, such as the reference; None is the trained one.
        """
        return self.forward_pass(rows, module).log_probs(self.temperature)

    def forward_pass(
        self, rows: dict[str, Tensor], module: nn.Module | None = None, **asked: bool
    ) -> ForwardPass:
        """Return a pass of the model over rows, packed where the settings say so.

        Raises:
            ConfigError: the model does not keep packed rows apart.
        """
        model = self.module if module is None else module
        if self.part.packed_tokens and not self._packs:
            with torch.autocast(self.device.type, enabled=False):
                check_rows_are_apart(model, rows)
            self._packs = True
        return ForwardPass.over(model, rows, self.part.packed_tokens, **asked)

    def rows_of(self, replay: Packed) -> dict[str, Tensor]:
        """Return the leaves of a replay on the trainer's device, `[B, …]`."""
        rows: dict[str, Tensor] = to_torch(replay, self.device)
        rows["tokens"] = rows["tokens"].long()
        return rows

    def column(
        self, rows: dict[str, Tensor], compute: Callable[[dict[str, Tensor]], Tensor]
    ) -> Tensor:
        """Return what a pass over all rows computes for each token, in parts of them, `[B, T]`.

        Args:
            rows: leaves `[B, …]`.
            compute: rows → a number for each token, 0 where it is not own.
        """
        numbers = torch.arange(len(rows["length"]), device=self.device)
        found = torch.zeros(rows["mask"].shape, device=self.device)
        for piece in self.parts_of({**rows, "row": numbers}, numbers, self.part.microbatches):
            # One that no row was left for stands for another row; split models pass all the same.
            if self.is_sharded or bool(piece["mask"].any()):
                with self._stepper.autocast():
                    part = compute(piece)
                if bool(piece["mask"].any()):
                    found[piece["row"], : part.shape[1]] = part.float()
        return found

    def step_parts(self, rows: dict[str, Tensor], chosen: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield the parts of one step: `parts_of`, and where a model is split equally many of them.

        Args:
            rows: leaves `[B, …]`.
            chosen: numbers of this rank's rows of the step; none where only others have some.
        """
        if self.is_sharded and self.ranks.any(len(chosen) > 0) and not len(chosen):
            rows = {**rows, "mask": torch.zeros_like(rows["mask"])}
            chosen = torch.zeros(1, dtype=torch.long, device=self.device)
        yield from self.parts_of(rows, chosen)

    def parts_of(
        self,
        rows: dict[str, Tensor],
        chosen: Tensor,
        parts: int | None = None,
        *,
        is_sorted: bool = False,
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the chosen rows in parts of similar length, each as long as its longest row.

        Args:
            rows: leaves `[B, …]`.
            chosen: numbers of the rows of one step.
            parts: number of parts; None is `microbatches`. There are always so many, so that each
                step has as many as it adds up: one that no row is left for has a row without own
                tokens. Where nothing was chosen there is none.
            is_sorted: whether the rows stay in the order in which they were chosen.
        """
        count = self.part.microbatches if parts is None else parts
        order = chosen
        if not is_sorted:
            order = chosen[torch.argsort(rows["length"][chosen], stable=True)]
        for piece in torch.tensor_split(order, count) if len(order) else ():
            is_empty = not len(piece)
            piece = order[:1] if is_empty else piece
            longest = int(rows["length"][piece].max())
            part = {
                name: leaf[piece][:, :longest] if leaf.dim() == 2 else leaf[piece]
                for name, leaf in rows.items()
            }
            if is_empty:
                part["mask"] = torch.zeros_like(part["mask"])
            yield part

    def batch_weight(self, batch: Any) -> float:
        """Return the number of own tokens: what a part's loss is a mean over."""
        return float(batch["mask"].sum())


def drop_nothing(module: nn.Module) -> None:
    """Set every probability of dropout in a module to 0: those of layers, and plain numbers."""
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float):
                setattr(layer, name, 0.0)


def checkpoint_activations(module: Any) -> None:
    """Let a model of transformers compute its activations again in the backward pass."""
    given = {"use_reentrant": False}
    enable = getattr(module, "activation_checkpointing_enable", None)
    if enable is not None:
        enable(activation_checkpointing_kwargs=given)
    else:  # versions of transformers before the change of name
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=given)
