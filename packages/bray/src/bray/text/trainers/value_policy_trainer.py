"""PPO on tokens: advantages by values that the model learns beside its policy.

Schulman et al. 2017, "Proximal policy optimization algorithms"; Ouyang et al. 2022, "Training
language models to follow instructions", §3.5. The values are a linear layer on the model's last
hidden states: a second model would need the memory of a second model.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from bray.text import value_head
from bray.text.trainers.forward_pass import ForwardPass
from bray.text.trainers.policy_gradient_trainer import PolicyGradientTrainer
from bray.text.value_head import add_value_head
from bray_algo.tokens import sft, values
from bray_core import metrics


class ValuePolicyTrainer(PolicyGradientTrainer):
    """Trains a policy and its values; the settings are those of `PolicyGradientTrainer`.

    Args:
        module: the model, whose `forward` returns `hidden_states`, too; it gets the layer.
        *given: as in `PolicyGradientTrainer`.
        **rest: as in `PolicyGradientTrainer`.
    """

    def __init__(self, module: nn.Module, *given: Any, **rest: Any) -> None:
        add_value_head(module)
        super().__init__(module, *given, **rest)

    def token_advantages(self, token_reward: Tensor, rows: dict[str, Tensor]) -> Tensor:
        """Return advantages of tokens by the values, and add the columns that values learn by."""
        value, mask = self.column(rows, self._values), rows["mask"]
        advantage, target = values.gae(token_reward, value, mask, lambda_=self.part.gae_lambda)
        rows["old_value"], rows["target"] = value, target.float()
        self._record_explained(advantage[mask], target[mask])
        return advantage

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the policy, and `value_coefficient` times that of the values."""
        if "advantage" not in batch:
            return sft.loss(self.log_probs(batch), batch["mask"])
        mask = batch["mask"]
        done = self.forward_pass(batch, output_hidden_states=True)
        loss, terms = self.policy_loss(done.log_probs(self.temperature), batch)
        weight, divisor = self.mean_of(mask, None)
        error = values.loss(
            self._values_by(done, mask),
            batch["old_value"],
            batch["target"],
            mask,
            value_clip=self.part.value_clip,
            weight=weight,
            num_tokens=divisor,
        )
        return loss + self.part.value_coefficient * error, {**terms, "value_loss": error.detach()}

    def _values(self, rows: dict[str, Tensor]) -> Tensor:
        return self._values_by(self.forward_pass(rows, output_hidden_states=True), rows["mask"])

    def _values_by(self, done: ForwardPass, mask: Tensor) -> Tensor:
        """Return the value before each own token, `[B, T]`, 0 elsewhere."""
        head: Any = getattr(self.module, value_head.NAME)
        after = head(done.output.hidden_states[-1].to(head.weight.dtype))[..., 0].float()
        before = done.of_tokens(after)[:, :-1]
        return nn.functional.pad(before, (1, 0)).masked_fill(~mask, 0)

    def _record_explained(self, advantage: Tensor, target: Tensor) -> None:
        """Record how much of the targets' variance the values explained: 1 all, 0 and less none."""
        if len(target) > 1 and float(spread := target.var()) > 0:
            metrics.record("trainer/explained_variance", 1 - float(advantage.var() / spread))
