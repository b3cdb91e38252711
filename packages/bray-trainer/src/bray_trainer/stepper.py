"""One optimiser step: losses, gradients, their mean over the ranks, clipping, the update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from bray_core.errors import ConfigError, SpecError
from bray_trainer.arguments import UNNAMED, as_mapping
from bray_trainer.config import TrainerConfig
from bray_trainer.distributed.ranks import Ranks
from bray_trainer.distributed.sharding import is_sharded, whole
from bray_trainer.flat_adam import FlatAdam
from bray_trainer.reporting.loop_timer import LoopTimer
from bray_trainer.reporting.loss_means import LossMeans
from bray_trainer.step_graphs import Found, StepGraphs

Losses = Tensor | Mapping[str, Tensor]
"""One loss, or one of each optimiser by name."""
LossFunction = Callable[[Any, int], tuple[Losses, Mapping[str, Tensor | float]]]
GradientFunction = Callable[[Any, int], tuple[Losses, Mapping[str, Tensor | float]] | None]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """Takes optimiser steps on lists of batches.

    With several optimisers all losses of a batch are computed first; then each loss is
    differentiated for the parameters of its own optimiser alone, and all of these step.

    Args:
        module: The trained module; several are an `nn.ModuleDict`.
        optimizers: One optimiser, or several by name.
        loss: Function of a batch and the step: `Trainer.loss`.
        gradients: Function that may give what `loss` does and gradients too: `Trainer.gradients`.
        is_repeatable: Function that says of a batch whether a graph may stand for `loss`.
        weigh: Function that weighs a batch: `Trainer.batch_weight`.
        config: Gives precision, clipping, and what happens where a value is not finite.
        device: Device of the module.
        ranks: The ranks that step together.
        timer: Timer of the phases.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Optimizer | Mapping[str, Optimizer],
        loss: LossFunction,
        gradients: GradientFunction,
        is_repeatable: Callable[[Any], bool],
        weigh: Callable[[Any], float],
        config: TrainerConfig,
        device: torch.device,
        ranks: Ranks,
        timer: LoopTimer,
    ) -> None:
        self.optimizers = as_mapping(optimizers)
        self.scaler = _scaler(config, device)
        self._module = module
        self._loss = loss
        self._gradients = gradients
        self._is_repeatable = is_repeatable
        self._weigh = weigh
        self._config = config
        self._device = device
        self._ranks = ranks
        self._timer = timer
        self._is_sharded = is_sharded(module)
        is_alone = ranks.size == config.accumulate == 1
        self._is_plain = is_alone and config.precision == "fp32" and device.type == "cpu"
        has_graphs = is_alone and device.type == "cuda" and not config.compile
        has_graphs = has_graphs and self.scaler is None and len(self.optimizers) == 1
        backward = partial(self._by_autograd, share=1.0, steps=0)
        self._graphs = StepGraphs(backward, self._parameters([UNNAMED])) if has_graphs else None
        self._is_checked = config.when_not_finite == "skip" or self.scaler is not None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context that losses are computed in."""
        dtype = _AUTOCAST.get(self._config.precision)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    def step(self, batches: Sequence[Any], steps: int, terms: LossMeans) -> bool:
        """Take a step on the mean gradient over all samples of the batches; False if skipped.

        Args:
            batches: Batches of this step; none where only other ranks have some, whose gradient is
                taken then.
            steps: Number of steps taken so far.
            terms: Means that the losses are added to.
        """
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        before = self._buffers() if self._is_checked else []
        with self._timer.on_device("backward"):
            weights = self._weights(batches)
            total = self._total(weights)
            found = [
                self._backward(batch, weight / (total or 1.0), steps)
                for batch, weight in zip(batches, weights, strict=True)
            ]
        with self._timer.on_device("optimizer"):
            names = self._names(found)
            if self._ranks.size > 1 and not self._is_sharded:  # else it is the mean already
                self._ranks.average(self._parameters(names), total)
            norms = self._clip(names)
            is_taken = not self._is_checked or self._is_finite(found, norms)
            if is_taken:
                self._update(names)
            else:
                self._skip(before)
        if is_taken or self._config.when_not_finite == "stop":  # it stops at the losses
            for (losses, parts), weight in zip(found, weights, strict=True):
                own = losses_by_metric(losses)  # no term takes the place of one
                terms.add({**own, **parts, **own}, weight)
        if is_taken and self._config.max_grad_norm is not None:
            terms.add({f"grad_norm{_suffix(name)}": norm for name, norm in norms.items()})
        return is_taken

    def _names(self, found: Sequence[tuple[Mapping[str, Tensor], Any]]) -> list[str]:
        """Return the names of the losses, the same on all ranks, also on one without batches."""
        if self._ranks.size == 1 and len(found) == len(found[0][0]) == 1:
            return [*found[0][0]]
        known = list(dict.fromkeys([UNNAMED, *self.optimizers]))
        names = [name for name in known if any(name in losses for losses, _ in found)]
        names = names or list(self.optimizers)
        if self._ranks.size == 1 or len(self.optimizers) == 1:
            return names
        bits = sum(1 << known.index(name) for name in names)
        # A rank without batches says more than any: it leaves the choice to the others.
        least, most = self._ranks.smallest(*((bits, -bits) if found else (1 << len(known), 0)))
        if least != -most:
            raise SpecError(
                f"loss: got those of {', '.join(names)}, but of others on another rank: "
                "return losses of the same optimisers in the same step"
            )
        return [name for index, name in enumerate(known) if least >> index & 1]

    def _weights(self, batches: Sequence[Any]) -> list[float]:
        if self._ranks.size == 1 and self._config.accumulate == 1:
            return [1.0] * len(batches)  # not asked: it may have to wait for the device
        return [float(self._weigh(batch)) for batch in batches]

    def _total(self, weights: Sequence[float]) -> float:
        """Return the sum of the weights: of this rank, or of all where parameters are split."""
        own = sum(weights)
        if not self._is_sharded:
            return own
        least, most = self._ranks.smallest(len(weights), -len(weights))
        if least != -most:
            raise SpecError(
                f"shard: got {len(weights)} batches for this step, but {least} to {-most} on the "
                "ranks: give each rank equally many, where need be with a weight of 0"
            )
        return float(self._ranks.sum(torch.tensor([own], dtype=torch.float64)))

    def _backward(self, batch: Any, share: float, steps: int) -> Found:
        """Add a batch's share to the gradients; return its losses and terms."""
        given = self._gradients(batch, steps) if self._is_plain else None
        if given is not None:
            return self._checked(given[0]), given[1]
        if self._graphs is not None and self._is_repeatable(batch):
            repeated = self._graphs.run(batch)
            if repeated is not None:
                return repeated
        return self._by_autograd(batch, share, steps)

    def _by_autograd(self, batch: Any, share: float, steps: int) -> Found:
        with self.autocast():
            returned = self._loss(batch, steps)
        if not isinstance(returned, tuple) or len(returned) != 2:
            kind = type(returned).__name__
            kind += f" of {len(returned)}" if isinstance(returned, tuple) else ""
            raise SpecError(
                f"loss: expected `return loss, terms`, got a {kind}: write `loss, {{}}`"
            )
        value, parts = returned
        if not isinstance(parts, Mapping):
            raise SpecError(
                "loss: expected `return loss, terms` with terms by name, such as "
                f"`{{'entropy': entropy}}`, got a {type(parts).__name__}: write `loss, {{}}`"
            )
        losses = self._checked(value)
        if not all(loss.requires_grad for loss in losses.values()):
            raise SpecError(
                "loss: expected one that depends on what is trained, got a constant: leave out "
                "torch.no_grad() and .detach()"
            )
        for index, (name, loss) in enumerate(losses.items()):
            # A product with 1 would still cost a kernel.
            scaled = loss if share == 1 else loss * share
            if self.scaler is not None:
                scaled = self.scaler.scale(scaled)
            # Losses of one batch share a graph, which the last of them frees.
            torch.autograd.backward(
                scaled,
                retain_graph=index < len(losses) - 1,
                inputs=None if name == UNNAMED else self._parameters([name]),
            )
        return losses, parts

    def _checked(self, value: Losses) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = as_mapping(value)
        for name, loss in losses.items():
            if name != UNNAMED and name not in self.optimizers:
                named = ", ".join(map(repr, filter(None, self.optimizers)))
                wanted = f"losses named as the optimisers ({named})" if named else "one tensor"
                raise SpecError(f"loss: {name!r}: expected {wanted}")
            if not isinstance(loss, Tensor):
                raise SpecError(f"loss: expected a tensor, got {loss!r:.100}")
            if loss.ndim:
                raise SpecError(
                    f"loss: expected a scalar, got shape {tuple(loss.shape)}: "
                    "reduce it, such as by mean()"
                )
        return losses

    def _active(self, names: Iterable[str]) -> list[Optimizer]:
        """Return the optimisers that have a loss: one loss without a name is that of all."""
        names = set(names)
        return [o for name, o in self.optimizers.items() if name in names or UNNAMED in names]

    def _parameters(self, names: Iterable[str]) -> list[Parameter]:
        return [
            parameter
            for optimizer in self._active(names)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]

    def _clip(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Unscale, measure where that is needed, and clip each optimiser's gradients."""
        if self.scaler is not None:
            for optimizer in self._active(names):
                self.scaler.unscale_(optimizer)
        limit = self._config.max_grad_norm
        if limit is None and not self._is_checked:
            return {}
        return {name: self._clip_one(name, limit or math.inf) for name in names}

    def _clip_one(self, name: str, limit: float) -> Tensor:
        """Clip the gradients of one loss's optimisers; return the norm that they had."""
        active = self._active([name])
        if len(active) == 1 and isinstance(active[0], FlatAdam):
            norm = active[0].clip_gradient(limit)
            if norm is not None:
                return norm
        total = nn.utils.clip_grad_norm_(self._parameters([name]), limit)
        return whole({name: total})[name] if self._is_sharded else total

    def _is_finite(
        self, found: Iterable[tuple[Mapping[str, Tensor], Any]], norms: Mapping[str, Tensor]
    ) -> bool:
        """Return whether this step may be taken, the same on all ranks."""
        values = [*norms.values()]
        if self._config.when_not_finite == "skip":
            values += [loss.detach().float() for losses, _ in found for loss in losses.values()]
        finite = all(bool(torch.isfinite(value)) for value in values)
        return self._ranks.agree(int(finite)) == 1

    def _buffers(self) -> list[tuple[Tensor, Tensor]]:
        """Return the module's buffers, such as running means, each with a copy."""
        return [(buffer, buffer.clone()) for buffer in self._module.buffers()]

    def _skip(self, before: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Leave everything as it was before the step."""
        for buffer, saved in before:
            buffer.copy_(saved)
        if self.scaler is not None:
            self.scaler.update()

    def _update(self, names: Iterable[str]) -> None:
        for optimizer in self._active(names):
            if self.scaler is not None:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler is not None:
            self.scaler.update()


def group_batches(batches: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Yield lists of `size` batches; the last may be shorter."""
    group: list[Any] = []
    for batch in batches:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _suffix(name: str) -> str:
    return f"_{name}" if name else ""


def losses_by_metric(losses: Losses) -> dict[str, Tensor]:
    """Return the losses by the names of their figures: `loss`, or `loss_<name>` of several."""
    return {f"loss{_suffix(name)}": loss for name, loss in as_mapping(losses).items()}


def _scaler(config: TrainerConfig, device: torch.device) -> torch.amp.GradScaler | None:
    if config.precision != "fp16":
        return None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"precision: fp16 needs device 'cpu' or 'cuda', got {device.type!r}")
    return torch.amp.GradScaler(device.type)
