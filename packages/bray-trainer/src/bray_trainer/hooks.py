"""Methods that a user's trainer may write: batches, losses, optimisers, state of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from bray_core import nested
from bray_core.layout import Packed
from bray_trainer.adam import UncompiledAdam
from bray_trainer.arguments import set_training
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed.sharding import is_sharded
from bray_trainer.flat_adam import FlatAdam, can_join
from bray_trainer.stepper import Losses, Stepper, losses_by_metric
from bray_trainer.transfer import to_torch


class TrainerHooks:
    """The methods that a subclass of `Trainer` may write; only `loss` has no default."""

    config: TrainerConfig
    device: torch.device
    module: Any
    steps: int
    _stepper: Stepper

    def handle(self, replay: Any) -> Iterable[Any]:
        """Turn a replay into batches, each for one `loss`; by default its tensors `[B, …]`.

        On the CPU the tensors are the replay's own memory, which `max_reuse` may bring again.

        Args:
            replay: One batch, `Packed`; with several buffers, one of each by name.
        """
        if isinstance(replay, Packed):
            yield to_torch(replay, self.device)
        else:
            yield {name: to_torch(packed, self.device) for name, packed in replay.items()}

    def handle_eval(self, replay: Packed) -> Iterable[Any]:
        """Turn a replay of the evaluation's buffer into batches, each for one `eval`."""
        yield to_torch(replay, self.device)

    def loss(self, batch: Any, step: int) -> tuple[Losses, Mapping[str, Tensor | float]]:
        """Return the scalar loss of a batch and named scalar terms of it to report.

        With several optimisers it may return a loss of each by name; one that is left out does
        not step.
        """
        raise TypeError(f"{type(self).__name__}.loss: not written: override it")

    def gradients(
        self, batch: Any, step: int
    ) -> tuple[Losses, Mapping[str, Tensor | float]] | None:
        """Compute what `loss` returns, and every gradient besides, without autograd.

        For networks small enough that keeping autograd's books takes longer than the arithmetic.
        It sets `grad` of all parameters that the losses depend on, as `backward` would, and may
        return None, which leaves them to `loss` and autograd: the default. Asked on the CPU in
        float32 alone, of one rank without accumulation.
        """
        return None

    def is_repeatable(self, batch: Any) -> bool:
        """Return whether a GPU may repeat what `loss` launched for a batch of the same shapes.

        It then gets the kernels of forward and backward as one CUDA graph, which for small networks
        is several times as quick; `loss` itself is not called. It may be said of a loss that reads
        nothing but tensors: those of its batch (all leaves are tensors, or `FrameStacks`), of the
        module, and others that change in place. Numbers that it reads are as they were when it was
        captured: no `step`, no schedule. By default it is said of none. Asked of one rank with one
        optimiser, without accumulation, in float32 or bfloat16.
        """
        return False

    def batch_weight(self, batch: Any) -> float:
        """Return how much a batch counts in a mean over several: as many samples as it has.

        It must be what the loss is a mean over, so that the mean gradient of several batches or
        ranks is that of all samples together: write it where that is something else, such as whole
        segments. By default it is the sum of a leaf `mask`, or of an integer leaf `length`, the
        valid steps of segments; where there is neither, the number of elements of the first leaf.
        Asked only where gradients of several batches or ranks are averaged.
        """
        leaves = nested.flatten(batch)
        if "mask" in leaves:
            return float(leaves["mask"].sum())
        if "length" in leaves and not leaves["length"].is_floating_point():
            return float(leaves["length"].sum())
        return float(next(iter(leaves.values())).numel())

    def eval(self, batch: Any) -> dict[str, float]:
        """Return figures of a batch without training; by default the loss and its terms.

        The module is switched to evaluation meanwhile: call it while the trainer stands still.
        """
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad(), self._stepper.autocast():
                loss, terms = self.loss(batch, self.steps)
        finally:
            set_training(self.module, was_training)
        return {name: float(value) for name, value in {**losses_by_metric(loss), **terms}.items()}

    def begin_replay(self) -> None:
        """Do what comes before the first step on a replay.

        Such as setting a learning rate that follows a schedule of one's own. By default it does
        nothing.
        """

    def finish_replay(self) -> None:
        """Do what follows the last step on a replay, before its weights are published.

        Such as taking what was trained on into running statistics. All ranks call it equally often,
        so it may exchange something by `ranks`. By default it does nothing.
        """

    def should_pause(self) -> bool:
        """Return whether to pause, asked after each replay; by default never.

        At a pause all that was to be published is published.
        """
        return False

    def make_optimizer(self) -> Optimizer | Mapping[str, Optimizer]:
        """Return the optimiser, or several by name; by default Adam, fused where torch has that.

        Adam's eps is 1e-5.
        """
        return self.make_adam(self.module, lr=self.config.learning_rate, eps=1e-5)

    def make_adam(self, module: nn.Module, *, lr: float, eps: float = 1e-8) -> torch.optim.Adam:
        """Return Adam for what is trained of a module, the quickest kind there is for it.

        Few parameters on the CPU become views of one tensor (`FlatAdam`); Adam is fused where torch
        has that.
        """
        parameters = [p for p in module.parameters() if p.requires_grad]
        is_plain = self.config.precision != "fp16" and not self.config.compile
        is_plain = is_plain and not is_sharded(module)
        if is_plain and can_join(parameters):
            return FlatAdam(parameters, lr=lr, eps=eps)
        is_fused = self.device.type in ("cpu", "cuda")
        return UncompiledAdam(parameters, lr=lr, eps=eps, fused=is_fused)

    def make_scheduler(self) -> LRScheduler | Mapping[str, LRScheduler] | None:
        """Return learning-rate schedulers, stepped once a replay; by default none."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the subclass's own state for checkpoints: tensors, numbers, strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
