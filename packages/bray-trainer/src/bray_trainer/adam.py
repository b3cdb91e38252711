"""Adam as torch has it, but for the import of torch's compiler."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

_COMPILER = "torch._dynamo"


class UncompiledAdam(torch.optim.Adam):
    """`torch.optim.Adam`, made and stepped without importing `torch._dynamo`.

    Torch's optimisers mark their methods for its compiler when they are first called, and import it
    for that: nine hundred modules, more than a second, in a process that compiles nothing. Here the
    methods are called as they were before they were marked. Once the compiler is imported, for
    whatever reason, and with a torch that marks them otherwise, they are torch's own.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, as `torch.optim.Adam` does."""
        step = torch.optim.Adam.step
        if getattr(
            step, "hooked", False
        ):  # by an Adam that was made before: this class has its own
            step = getattr(step, "__wrapped__", step)
        if _COMPILER in sys.modules:
            return step(self, closure)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return inspect.unwrap(step)(self, closure)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as `torch.optim.Adam` does."""
        _unmarked(torch.optim.Adam.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, as `torch.optim.Adam` does."""
        _unmarked(torch.optim.Adam.zero_grad)(self, set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state, as `torch.optim.Adam` does."""
        state: dict[str, Any] = _unmarked(torch.optim.Adam.state_dict)(self)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, as `torch.optim.Adam` does."""
        _unmarked(torch.optim.Adam.load_state_dict)(self, state_dict)


def _unmarked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method as it was before it was marked, unless the compiler is there."""
    return method if _COMPILER in sys.modules else inspect.unwrap(method)
