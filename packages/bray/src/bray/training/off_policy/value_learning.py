"""The loss of Q-learning from transitions, for networks of means and of distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bray.policies.values import RESCALING, QNetworkConfig
from bray_algo.losses import c51, dqn, iqn, qr_dqn
from bray_algo.losses.reductions import LossTerms
from bray_algo.returns.value_rescaling import rescale, unrescale

ValueLoss = tuple[Tensor, LossTerms, Tensor]
"""Loss, its terms, and the priority of each row `[N]`."""


def value_loss(
    online: Any, target: Any, batch: dict[str, Any], config: QNetworkConfig, *, double: bool
) -> ValueLoss:
    """Return the loss of a batch of transitions, its terms and the rows' priorities.

    Args:
        online: policy that learns; has `numbers`.
        target: its target network, of the same class.
        batch: `observation, action, reward, discount, next_observation`, and maybe `weight`.
        config: says what the network's numbers are.
        double: whether the online network chooses the next action.
    """
    reward = batch["reward"]
    if config.distributional == "iqn":
        levels = reward.new_empty(3, len(reward), config.num_atoms).uniform_()
    else:
        levels = [None, None, None]
    numbers, _ = online.numbers(batch["observation"], levels[0])
    with torch.no_grad():
        following = batch["next_observation"]
        next_numbers, allowed = target.numbers(following, levels[1])
        chooser = online.numbers(following, levels[2])[0] if double else None
    rows = (reward, batch["discount"])
    if config.distributional == "c51":
        return _of_atoms(online, numbers, next_numbers, rows, chooser, allowed, batch, config)
    if config.value_rescaling:
        next_numbers = unrescale(next_numbers, RESCALING)
        chooser = None if chooser is None else unrescale(chooser, RESCALING)
    action, weight = batch["action"], batch.get("weight")
    if config.distributional == "none":
        aim = dqn.target(next_numbers, *rows, next_online_q=chooser, next_legal=allowed)
        aim = rescale(aim, RESCALING) if config.value_rescaling else aim
        priority = dqn.td_error(numbers.detach(), action, aim).abs()
        return *dqn.loss(numbers, action, aim, weight=weight), priority
    aim = qr_dqn.target(next_numbers, *rows, next_online_quantiles=chooser, next_legal=allowed)
    aim = rescale(aim, RESCALING) if config.value_rescaling else aim
    if config.distributional == "qr":
        priority = qr_dqn.row_losses(numbers.detach(), action, aim)
        return *qr_dqn.loss(numbers, action, aim, weight=weight), priority
    priority = iqn.row_losses(numbers.detach(), levels[0], action, aim)
    return *iqn.loss(numbers, levels[0], action, aim, weight=weight), priority


def _of_atoms(
    online: Any,
    logits: Tensor,
    next_logits: Tensor,
    rows: tuple[Tensor, Tensor],
    chooser: Tensor | None,
    allowed: Tensor | None,
    batch: dict[str, Any],
    config: QNetworkConfig,
) -> ValueLoss:
    support = online.returns.support
    aim = c51.target(
        next_logits,
        *rows,
        support,
        next_online_logits=chooser,
        next_legal=allowed,
        rescaling=RESCALING if config.value_rescaling else None,
    )
    loss, terms = c51.loss(logits, batch["action"], aim, weight=batch.get("weight"))
    with torch.no_grad():
        taken = dqn.chosen(online.returns(logits), batch["action"])
        priority = c51.divergence(logits, batch["action"], aim)
    return loss, {**terms, "q": taken.mean()}, priority
