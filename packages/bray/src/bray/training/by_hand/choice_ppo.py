"""PPO's step on any policy of one choice: by autograd through its module alone, by hand behind it.

The loss and the distribution are two thirds of what autograd would record for a small network. Both
are found from the logits without a graph, and their gradients go back through the module alone.
Values and gradients are the same but for the last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bray_algo.gradients import heads
from bray_algo.gradients.ppo import PPOGradients, loss_and_gradients
from bray_algo.validation.switch import is_validated
from bray_trainer.frame_stacks import as_tensors
from bray_trainer.sequences import Batch


class BehindModule:
    """Takes steps on a policy of one choice, once its outputs have been seen to be such."""

    def __init__(self) -> None:
        self._is_usual = False
        self._is_refused = False

    def see(self, outputs: Mapping[str, Any]) -> None:
        """Look at outputs that autograd is given as a whole."""
        self._is_usual = not self._is_refused and fits(outputs)

    def __call__(
        self, module: nn.Module, batch: Batch, **settings: Any
    ) -> tuple[Tensor, PPOGradients] | None:
        """Return what `add_gradients` does; None, without asking the module, where it would not.

        Args:
            module: the policy.
            batch: `observation` beside what `add_gradients` takes.
            settings: see there.
        """
        if not self._is_usual:
            return None
        found = add_gradients(module(as_tensors(batch["observation"])), batch, **settings)
        # Logits of −inf, say: asking at each step would run the module twice.
        self._is_usual, self._is_refused = found is not None, found is None
        return found


def fits(outputs: Mapping[str, Any]) -> bool:
    """Return whether `add_gradients` takes a policy's outputs."""
    logits = outputs.get("logits")
    if not isinstance(logits, Tensor) or "conditional" in outputs or "mean" in outputs:
        return False
    columns = (logits, outputs["value"])
    return all(one.dtype == torch.float32 and one.requires_grad for one in columns)


def add_gradients(
    outputs: Mapping[str, Any], batch: Batch, **settings: Any
) -> tuple[Tensor, PPOGradients] | None:
    """Return the log probabilities `[N]` and the loss, and add the gradients of a module.

    None, with no gradient added, where a number may not be finite, or nothing looks at that.

    Args:
        outputs: what the module returned, with its graph; `fits` approves of it.
        batch: `action, log_prob, advantage, return` of N steps, advantages normalised.
        settings: `clip`, `value_coefficient`, `entropy_coefficient`.
    """
    logits, value = outputs["logits"], outputs["value"]
    if not is_validated(logits):
        return None
    with torch.no_grad():
        log_prob, entropy, backward = heads.categorical(logits.detach(), batch["action"])
        found = loss_and_gradients(
            log_prob,
            entropy,
            value.detach(),
            batch["log_prob"],
            batch["advantage"],
            batch["return"],
            **settings,
        )
        if found.is_suspect:
            return None
        of_logits = backward(found.log_prob, found.entropy)
    torch.autograd.backward([logits, value], [of_logits, found.value])
    return log_prob, found
