"""Policy gradients on sampled token rows: GRPO, Dr. GRPO, RLOO, REINFORCE++, DAPO, GSPO, CISPO.

The mathematics is in `bray_algo.tokens`; here a replay of samples becomes minibatches with
advantages, and the settings choose the loss. While the supervised phase lasts, replays hold
demonstrated rows and take supervised steps.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.row_queue import SUPERVISED
from bray.text.trainers.token_trainer import TokenTrainer
from bray_algo.tokens import advantages, cispo, divergence, grpo, gspo, reductions, sampler, sft
from bray_algo.tokens.groups import informative
from bray_algo.tokens.rewards import at_end
from bray_algo.tokens.sequences import spread, to_go
from bray_core import metrics
from bray_trainer.distributed.sharding import copy_parts, load, shard, whole


class PolicyGradientTrainer(TokenTrainer):
    """Trains on samples of a round in minibatches, and on demonstrations before the first round.

    Args:
        module: the model; with `kl_coefficient` a copy of it, as it is when the first samples are
            trained on, is the reference.
        queue: replays of rows.
        part: the hyperparameters.
        longest_answer: largest number of tokens of an answer, the divisor of `mean="constant"`.
        **rest: as in `TokenTrainer`.
    """

    part: GRPOConfig

    def __init__(
        self, module: nn.Module, queue: Any, part: GRPOConfig, *, longest_answer: int, **rest: Any
    ) -> None:
        self._longest_answer = longest_answer
        self.supervised_steps = 0
        """Steps taken on demonstrations, those of earlier launches included."""
        self._reference: nn.Module | None = None
        self._is_first_part = False
        self.is_supervised_over = False
        """Whether reinforcement learning has begun; the source decides it, checkpoints keep it."""
        is_copied_later = not (part.shard and part.kl_coefficient)
        spare = None if is_copied_later else frozen_copy(module)  # a split model has no copies
        super().__init__(module, queue, part, **rest)
        self._spare = spare
        if spare is not None:
            shard(spare.to(self.device), self.ranks)

    def begin_replay(self) -> None:
        """Set the learning rate of reinforcement learning; `handle` sets that of supervision."""
        self.set_rate(
            self.part.learning_rate, self.part.warmup_steps, self.steps - self.supervised_steps
        )
        self._is_first_part = True

    def handle(self, replay: Any) -> Iterator[dict[str, Tensor]]:
        """Yield the parts of each minibatch."""
        rows = self.rows_of(replay)
        if int(rows["group"][0]) == SUPERVISED:
            part = self.part
            rate, warmup = part.supervised_learning_rate, part.supervised_warmup_steps
            self.set_rate(rate, warmup, self.supervised_steps)
            yield from self.parts_of(rows, torch.arange(len(rows["length"])))
            self.supervised_steps += 1
            return
        if self.supervised_steps and self.steps == self.supervised_steps:
            optimizer: Any = self.optimizer
            optimizer.state.clear()  # moments of another loss
        yield from self._minibatches(rows)

    def _minibatches(self, rows: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        part = self.part
        if part.kl_coefficient and self._reference is None:
            self._reference = self._new_reference()
        with torch.no_grad():
            self._add_columns(rows)
            kept = self._add_advantages(rows)
        for _ in range(part.epochs):
            order = kept[torch.randperm(len(kept))]
            for chosen in torch.tensor_split(order, part.minibatches):
                yield from self.step_parts(rows, chosen)

    def _add_columns(self, rows: dict[str, Tensor]) -> None:
        """Add the trainer's own log-probabilities, and those of the reference, to rows."""
        part, reference = self.part, self._reference
        if reference is not None:
            rows["reference"] = self.column(rows, lambda piece: self.log_probs(piece, reference))
        if part.old_log_prob == "trainer":
            old, sampled = self.column(rows, self.log_probs), rows["log_prob"]
            rows["weight"] = sampler.truncated_weight(
                old, sampled, rows["mask"], max_weight=part.max_importance_weight
            )
            self._record_gap(old, sampled, rows["mask"])
            rows["log_prob"] = old

    def _add_advantages(self, rows: dict[str, Tensor]) -> Tensor:
        """Add each row's advantages, `[B, T]`, and return the numbers of the rows to train on."""
        part, mask = self.part, rows["mask"]
        first = first_rows(rows["sample"])
        reward, group = rows["reward"][first], numbered(rows["group"][first])
        kept = informative(reward, group)
        if part.kl_coefficient and part.kl_in == "reward":
            penalty = divergence.kl(
                rows["log_prob"], rows["reference"], mask, estimator=part.kl_estimator
            )
            self._record_kl(penalty, mask)
        else:
            penalty = None
        if part.baseline in ("batch", "value"):
            token = at_end(rows["reward"], mask)
            if penalty is not None:
                token = token - part.kl_coefficient * penalty
            found = self.token_advantages(token, rows)
            moments = self.ranks.sum(advantages.token_moments(found, mask))
            rows["advantage"] = advantages.whitened(found, mask, moments=moments).float()
            return torch.arange(len(mask))
        if penalty is not None:
            whole = torch.zeros_like(reward).index_add(
                0, rows["sample"].long(), penalty.sum(-1).to(reward.dtype)
            )
            reward = reward - part.kl_coefficient * whole
            kept = informative(reward, group)
        if part.baseline == "leave_one_out":
            each = advantages.rloo(reward, group)
        else:
            scale: advantages.Scale = "group" if part.baseline == "group_std" else "none"
            each = advantages.grpo(reward, group, scale=scale)
        sample = rows["sample"].long()
        rows["advantage"] = spread(each[sample].float(), mask)
        if not part.drop_equal_groups:
            return torch.arange(len(mask))
        return kept[sample].nonzero()[:, 0]

    def token_advantages(self, token_reward: Tensor, rows: dict[str, Tensor]) -> Tensor:
        """Return advantages of tokens before they are normalised: the rewards to go, `[B, T]`."""
        return to_go(token_reward, rows["mask"])

    def loss(self, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a part, a mean over what `batch_weight` counts."""
        log_prob = self.log_probs(batch)
        if "advantage" not in batch:
            return sft.loss(log_prob, batch["mask"])
        return self.policy_loss(log_prob, batch)

    def policy_loss(
        self, log_prob: Tensor, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the clipped loss of samples, and the penalty of the KL where it is in the loss.

        Args:
            log_prob: log probability of each own token, `[B, T]`.
            batch: columns of the part.
        """
        mask = batch["mask"]
        if self._is_first_part and self.part.old_log_prob == "sampler":
            self._record_gap(log_prob.detach().float(), batch["log_prob"], mask)
        self._is_first_part = False
        loss, terms = self._clipped_loss(log_prob, batch)
        if self._reference is not None and self.part.kl_in == "loss":
            weight, divisor = self.mean_of(mask, None)
            added, more = divergence.penalty(
                log_prob,
                batch["reference"],
                mask,
                kl_coefficient=self.part.kl_coefficient,
                estimator=self.part.kl_estimator,
                weight=weight,
                num_tokens=divisor,
            )
            loss, terms = loss + added, {**terms, **more}
        entropy = -(log_prob.detach() * mask).sum() / mask.sum().clamp(min=1)
        return loss, {**terms, "sampled_entropy": entropy}

    def _clipped_loss(
        self, log_prob: Tensor, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        part, mask = self.part, batch["mask"]
        columns = log_prob, batch["log_prob"], batch["advantage"], mask
        weight = batch.get("weight")
        if part.ratio == "sequence":
            return gspo.loss(
                *columns, clip_low=part.clip_low, clip_high=part.clip_high, weight=weight
            )
        weight, divisor = self.mean_of(mask, weight)
        if part.ratio == "detached":
            most = 1 + part.clip_high
            return cispo.loss(*columns, max_ratio=most, weight=weight, num_tokens=divisor)
        return grpo.loss(
            *columns,
            clip_low=part.clip_low,
            clip_high=part.clip_high,
            weight=weight,
            num_tokens=divisor,
        )

    def mean_of(self, mask: Tensor, weight: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Return the weight of each token and the divisor that make the mean of the settings."""
        if self.part.mean == "token":
            return weight, mask.sum().clamp(min=1)
        if self.part.mean == "constant":
            return weight, (mask.any(-1).sum() * self._longest_answer).clamp(min=1)
        share = reductions.sequence_weight(mask)
        return (share if weight is None else share * weight), reductions.count_sequences(mask)

    def batch_weight(self, batch: Any) -> float:
        """Return how much a part counts: its own tokens, or its rows that have some."""
        mask = batch["mask"]
        if "advantage" not in batch:
            return float(mask.sum())
        if self.part.ratio == "sequence" or self.part.mean != "token":
            return float(mask.any(-1).sum())
        return float(mask.sum())

    def _record_gap(self, own: Tensor, sampled: Tensor, mask: Tensor) -> None:
        if bool(mask.any()):
            found = sampler.gap(own, sampled, mask)
            metrics.record("trainer/sampler_gap", float(found["sampler_gap"]))
            metrics.record("trainer/sampler_gap_max", float(found["sampler_gap_max"]))
            metrics.record("trainer/sampler_kl", float(found["sampler_kl"]))

    def _record_kl(self, penalty: Tensor, mask: Tensor) -> None:
        mean = float(penalty.sum() / mask.sum().clamp(min=1))
        metrics.record("trainer/reference_kl", mean)

    def _new_reference(self) -> nn.Module:
        """Return a frozen copy of the model as it is now."""
        if self._spare is None:
            return frozen_copy(self.module)
        copy_parts(self.module, self._spare)
        return self._spare

    def state_dict(self) -> dict[str, Any]:
        """Return how far the supervised phase is, and the reference."""
        state: dict[str, Any] = {
            "supervised_steps": self.supervised_steps,
            "is_supervised_over": self.is_supervised_over,
        }
        if self._reference is not None:
            state["reference"] = whole(self._reference.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.supervised_steps = int(state["supervised_steps"])
        self.is_supervised_over = bool(state["is_supervised_over"])
        if "reference" in state:
            self._reference = self._new_reference()
            load(self._reference, state["reference"])


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a model that is never trained."""
    copied = copy.deepcopy(module).eval()
    copied.requires_grad_(False)
    return copied


def first_rows(sample: Tensor) -> Tensor:
    """Return the number of each sample's first row; rows of a sample lie side by side.

    Args:
        sample: number of each row's sample, `[B]`, rising from 0.
    """
    starts = torch.ones_like(sample, dtype=torch.bool)
    starts[1:] = sample[1:] != sample[:-1]
    return starts.nonzero()[:, 0]


def numbered(group: Tensor) -> Tensor:
    """Return groups numbered from 0 on, `[N]`."""
    _, numbers = torch.unique(group, return_inverse=True)
    found: Tensor = numbers
    return found
