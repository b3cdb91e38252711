"""Adam over parameters that lie side by side in memory: a small network's step is one operation.

A step of a perceptron of six layers costs a dozen microseconds of arithmetic, and ten times as much
for going through twelve tensors one after the other: for their norm, their clipping, their update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import optimizer

from bray_trainer.adam import UncompiledAdam

_MOST = 2**20
"""Numbers up to which parameters are joined: copying the gradients of more costs what it saves."""


class FlatAdam(UncompiledAdam):
    """Fused Adam that updates all parameters at once: they become views of one tensor.

    What can be seen of it is `torch.optim.Adam`: its groups, its state by parameter, its
    `state_dict`, which either loads from the other. A step for which some parameter has no
    gradient, or that finds parameters moved elsewhere, goes through them one by one as torch does.

    Args:
        parameters: parameters that `can_join` approves of; their values stay.
        lr: step size.
        eps: number that keeps the divisor from 0.
    """

    def __init__(self, parameters: Iterable[Parameter], *, lr: float, eps: float = 1e-8) -> None:
        self._listed = list(parameters)
        super().__init__(self._listed, lr=lr, eps=eps, fused=True)
        self._flat = join(self._listed)
        self._places = [parameter.data_ptr() for parameter in self._listed]
        self._gradient = torch.zeros_like(self._flat)
        self.gradient_views = _views(self._gradient, self._listed)
        """Views of one tensor in the shapes of the parameters: a gradient that is written into its
        view, which is then made the parameter's `grad`, need not be copied there."""
        self._moments: tuple[Tensor, Tensor, Tensor] | None = None
        """Both moments and the number of steps, while `state` holds views of them."""

    @property
    def flat(self) -> Tensor | None:
        """All parameters side by side; None if one has been moved elsewhere since."""
        is_whole = [parameter.data_ptr() for parameter in self._listed] == self._places
        return self._flat if is_whole else None

    def gradient(self) -> Tensor | None:
        """Return all gradients side by side, which those of the parameters become views of.

        None where a parameter has none, is not where it was, or belongs to a group of its own.
        """
        group = self.param_groups[0]
        if self.flat is None or group["amsgrad"] or len(group["params"]) != len(self._listed):
            return None
        found = [parameter.grad for parameter in self._listed]
        if all(map(is_, found, self.gradient_views)):
            return self._gradient
        given = [grad for grad in found if grad is not None and not grad.is_sparse]
        if len(given) < len(found):
            return None
        torch.cat([grad.reshape(-1) for grad in given], out=self._gradient)
        for parameter, view in zip(self._listed, self.gradient_views, strict=True):
            parameter.grad = view
        return self._gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; see `torch.optim.Optimizer.zero_grad`."""
        if not set_to_none or len(self.param_groups) > 1:
            super().zero_grad(set_to_none)
            return
        for parameter in self._listed:
            parameter.grad = None

    def clip_gradient(self, max_norm: float) -> Tensor | None:
        """Scale the gradients down to a norm, and return the norm that they had.

        None, with nothing done, where `gradient` is None.
        """
        gradient = self.gradient()
        if gradient is None:
            return None
        norm: Tensor = torch.linalg.vector_norm(gradient)
        scale = max_norm / (float(norm) + 1e-6)  # as torch's clip_grad_norm_
        if not scale >= 1.0:
            gradient.mul_(scale)
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters; see `torch.optim.Adam.step`."""
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if hooks or optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks:
            return _step_with_hooks(self, closure)
        return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch's wrapper takes as long as a step

    @torch.no_grad()
    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        gradient = self.gradient() if closure is None and len(self.param_groups) == 1 else None
        moments = None if gradient is None else self._joined_moments()
        if gradient is None or moments is None:
            self._part()
            return super().step(closure)
        group, (mean, square, step) = self.param_groups[0], moments
        step.add_(1.0)
        # What fused Adam itself calls, for one tensor: sorting parameters by device, as torch does
        # before, takes longer than this.
        torch._fused_adam_(
            [self._flat],
            [gradient],
            [mean],
            [square],
            [],
            [step],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=group["maximize"],
        )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the settings and what was gathered of each parameter, as torch's own does."""
        found: dict[str, Any] = super().state_dict()
        # A number of steps each: whoever loads them counts each up by itself.
        state = {
            number: {**one, "step": one["step"].clone()} for number, one in found["state"].items()
        }
        return {**found, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what an Adam of the same parameters has gathered, this one or torch's own."""
        self._moments = None
        super().load_state_dict(state_dict)

    def _joined_moments(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return both moments and the number of steps; None if parameters differ in that number."""
        if self._moments is None or len(self.state) != len(self._listed):
            self._moments = self._join_moments()
        return self._moments

    def _join_moments(self) -> tuple[Tensor, Tensor, Tensor] | None:
        known = [self.state[parameter] for parameter in self._listed if parameter in self.state]
        if known and len(known) != len(self._listed):
            return None
        mean, square = torch.zeros_like(self._flat), torch.zeros_like(self._flat)
        step = torch.zeros((), dtype=torch.float32)
        if known:
            if len({float(state["step"]) for state in known}) > 1:
                return None
            step.copy_(known[0]["step"])
            torch.cat([state["exp_avg"].reshape(-1) for state in known], out=mean)
            torch.cat([state["exp_avg_sq"].reshape(-1) for state in known], out=square)
        both = zip(_views(mean, self._listed), _views(square, self._listed), strict=True)
        for parameter, (first, second) in zip(self._listed, both, strict=True):
            self.state[parameter] = {"step": step, "exp_avg": first, "exp_avg_sq": second}
        return mean, square, step

    def _part(self) -> None:
        """Give each parameter a number of steps of its own."""
        if self._moments is not None:
            for state in self.state.values():
                state["step"] = state["step"].clone()
        self._moments = None


_step_with_hooks: Any = optimizer.Optimizer.profile_hook_step(FlatAdam._step)


def can_join(parameters: Sequence[Tensor]) -> bool:
    """Return whether `FlatAdam` may take these: few, of float32, on the CPU, apart in memory."""
    if not parameters or sum(parameter.numel() for parameter in parameters) > _MOST:
        return False
    spans = sorted((parameter.data_ptr(), parameter.nbytes) for parameter in parameters)
    return all(map(_is_plain, parameters)) and all(
        begin + size <= following for (begin, size), (following, _) in itertools.pairwise(spans)
    )


def _is_plain(parameter: Tensor) -> bool:
    is_dense = parameter.layout == torch.strided and parameter.is_contiguous()
    is_usual = parameter.dtype == torch.float32 and parameter.device.type == "cpu"
    return is_dense and is_usual and parameter.requires_grad


def join(parameters: Sequence[Tensor]) -> Tensor:
    """Return a tensor of all these numbers, of which the parameters become views from now on."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, _views(flat, parameters), strict=True):
        parameter.data = view
    return flat


def _views(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [parameter.numel() for parameter in parameters])
    return [part.view(one.shape) for part, one in zip(parts, parameters, strict=True)]
