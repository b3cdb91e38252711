"""Trainers of tokens against formulas written out, over parts, lengths and masks."""

from __future__ import annotations

import copy

import pytest
import token_models
import torch
from torch import Tensor

from bray.text.policy_gradient_config import VARIANTS, GRPOConfig
from bray.text.row_queue import pack_samples
from bray.text.samples import TextSample
from bray_core import metrics
from bray_core.errors import ConfigError


def parts(trainer, replay: list[TextSample]) -> list[dict[str, Tensor]]:
    trainer.begin_replay()
    return list(trainer.handle(pack_samples(replay)))


def advantages(replay: list[TextSample], scaled: bool) -> list[float]:
    """(r − mean of the group) / (deviation + 1e-6), as in TRL's GRPOTrainer and in verl."""
    found = []
    for one in replay:
        group = torch.tensor([s.reward for s in replay if s.group == one.group])
        centred = one.reward - group.mean()
        found.append(float(centred / (group.std() + 1e-6) if scaled else centred))
    return found


def written_out(module, replay: list[TextSample], mean: str, clip: tuple[float, float]) -> Tensor:
    """The clipped loss of TRL (`loss_type` grpo, dr_grpo, dapo), one row after the other."""
    scaled = mean != "constant"
    sums, counts = [], []
    for one, advantage in zip(replay, advantages(replay, scaled), strict=True):
        row = one.rows[0]
        if one.group == 2:  # equal rewards: left out
            continue
        mask = torch.from_numpy(row.mask)
        ratio = (token_models.plain_log_probs(module, row) - torch.from_numpy(row.log_prob)).exp()
        held = ratio.clamp(1 - clip[0], 1 + clip[1])
        token = -torch.minimum(ratio * advantage, held * advantage)
        sums.append((token * mask).sum())
        counts.append(int(mask.sum()))
    if mean == "row":
        return torch.stack([s / c for s, c in zip(sums, counts, strict=True)]).mean()
    divisor = sum(counts) if mean == "token" else len(sums) * 6
    return torch.stack(sums).sum() / divisor


@pytest.mark.parametrize(
    ("variant", "mean"), [("grpo", "row"), ("dr_grpo", "constant"), ("dapo", "token")]
)
def test_losses_are_the_formulas_of_trl(variant: str, mean: str) -> None:
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)
    settings = {k: v for k, v in VARIANTS[variant].items() if k != "sampling_rounds"}
    trainer = token_models.trainer(module, replay, **settings)
    (batch,) = parts(trainer, replay)
    loss, _ = trainer.loss(batch, 0)
    clip = (trainer.part.clip_low, trainer.part.clip_high)
    torch.testing.assert_close(loss, written_out(module, replay, mean, clip), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_a_step_in_parts_is_that_of_all_rows_at_once(variant: str) -> None:
    begin = token_models.SumOfTokens()
    replay = token_models.samples(begin)
    found = []
    for microbatches in (1, 3):
        module = copy.deepcopy(begin)
        settings = {**VARIANTS[variant], "microbatches": microbatches}
        trainer = token_models.trainer(module, replay, **settings)
        trainer.optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        trainer._stepper.optimizers = {"": trainer.optimizer}
        trainer.set_rate = lambda *given: None  # type: ignore[method-assign]
        start = torch.nn.utils.parameters_to_vector(module.parameters())
        trainer.run(1)
        found.append(torch.nn.utils.parameters_to_vector(module.parameters()))
    assert (found[0] - start).abs().max() > 1e-3
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


def test_ppo_is_the_formula_of_trl_with_values_of_its_own() -> None:
    """Whitened advantages and clipped losses as in TRL's PPOTrainer, one row after the other."""
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)
    trainer = token_models.trainer(module, replay, **VARIANTS["ppo"], value_coefficient=0.3)
    head = module.value_head
    torch.nn.init.normal_(head.weight)
    (batch,) = parts(trainer, replay)
    with torch.no_grad():  # values move on before the step: as after a first minibatch
        head.weight.mul_(1.3)
    loss, terms = trainer.loss(batch, 0)

    advantages, policy, errors = [], [], []
    for one in replay:
        row, later, then = one.rows[0], 0.0, 0.0
        output = module(torch.from_numpy(row.tokens).long()[None], output_hidden_states=True)
        now = head(output.hidden_states[-1])[0, :, 0]
        old = ((now - head.bias) / 1.3 + head.bias).detach()
        ratio = (token_models.plain_log_probs(module, row) - torch.from_numpy(row.log_prob)).exp()
        own = [t for t in range(len(row)) if row.mask[t]]
        for t in reversed(own):
            before = float(old[t - 1])
            error = (one.reward if t == own[-1] else 0.0) + then - before
            later, then = error + 0.95 * later, before
            advantages.append(later)
            policy.append(ratio[t])
            target, value = later + before, now[t - 1]
            held = value.clamp(before - 0.2, before + 0.2)
            errors.append(torch.maximum((value - target) ** 2, (held - target) ** 2))
    each = torch.tensor(advantages)
    each = (each - each.mean()) / (each.std(correction=0) + 1e-8)
    ratios = torch.stack(policy)
    surrogate = torch.minimum(ratios * each, ratios.clamp(0.8, 1.2) * each).mean()
    wanted = torch.stack(errors).mean()
    torch.testing.assert_close(terms["value_loss"], wanted.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss, 0.3 * wanted - surrogate, atol=1e-5, rtol=1e-5)


def test_more_parts_than_rows_leave_each_rows_column_alone() -> None:
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)[:3]
    trainer = token_models.trainer(module, replay, old_log_prob="trainer", microbatches=5)
    batches = parts(trainer, replay)
    for batch in batches:
        assert torch.equal(batch["log_prob"].ne(0).any(-1), torch.ones(1, dtype=torch.bool))


def test_tokens_of_others_get_no_gradient() -> None:
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)
    trainer = token_models.trainer(module, replay, mean="token")
    (batch,) = parts(trainer, replay)
    batch["log_prob"][~batch["mask"]] = 123.0  # whatever stands there
    batch["advantage"][~batch["mask"]] = -9.0
    changed, _ = trainer.loss(batch, 0)
    torch.testing.assert_close(
        changed, written_out(module, replay, "token", (0.2, 0.2)), atol=1e-6, rtol=1e-5
    )


def test_the_gap_to_the_sampler_is_a_metric_and_truncates_weights() -> None:
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)
    trainer = token_models.trainer(
        module, replay, old_log_prob="trainer", max_importance_weight=1.05
    )
    (batch,) = parts(trainer, replay)
    own, mask = batch["weight"], batch["mask"]
    assert own.max() == pytest.approx(1.05)
    assert (own[mask] < 1).any()
    for row, tokens, size in zip(batch["log_prob"], batch["tokens"], batch["length"], strict=True):
        twin = next(
            s.rows[0] for s in replay if s.rows[0].tokens.tolist() == tokens[:size].tolist()
        )
        old = token_models.plain_log_probs(module, twin).detach() * torch.from_numpy(twin.mask)
        torch.testing.assert_close(row[:size], old, atol=1e-6, rtol=1e-5)
    assert metrics.query("trainer/sampler_gap", window_s=60).mean > 0.01


def test_a_penalty_of_the_kl_pulls_back_to_the_reference() -> None:
    module = token_models.SumOfTokens()
    replay = token_models.samples(module)
    trainer = token_models.trainer(module, replay, kl_coefficient=0.5, mean="token", minibatches=2)
    first = parts(trainer, replay)[0]
    with torch.no_grad():
        module.head.bias += torch.randn(token_models.WORDS)
    with_kl, terms = trainer.loss(first, 0)
    trainer._reference = None
    without, _ = trainer.loss(first, 0)
    added = (with_kl - without).item()
    assert added == pytest.approx(0.5 * terms["reference_kl"].item(), rel=1e-4)
    assert terms["reference_kl"] > 0.01


def test_a_kl_in_the_loss_by_k1_is_refused() -> None:
    with pytest.raises(ConfigError, match="kl_estimator: expected k2 or k3 in the loss"):
        GRPOConfig(kl_coefficient=0.1, kl_estimator="k1")
    GRPOConfig(kl_coefficient=0.1, kl_estimator="k1", kl_in="reward")


def test_answers_of_one_are_refused_where_a_group_is_compared() -> None:
    with pytest.raises(ConfigError, match="group_size: expected 2 or more"):
        GRPOConfig(group_size=1)
