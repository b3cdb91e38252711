"""Q-learning from sequences, for policies with a memory (Kapturowski et al. 2019, R2D2).

A sequence is a segment as it was played, with the state in which it began. That state is an older
network's; so the first steps of a segment that goes on from another one only bring the state up to
date (burn-in), without a gradient. A segment that begins its episode begins with zeros, which are
right for every network, and all of its steps are trained on.

Shapes: T steps, B segments, A actions, S numbers of a state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bray.training.off_policy.value_learning import ValueLoss
from bray_algo.losses import dqn
from bray_core import nested
from bray_core.layout import Packed
from bray_trainer import to_torch
from bray_trainer.sequences import Batch, valid_steps

_ETA = 0.9
"""η of the paper: a segment's priority is η max + (1 − η) mean of its errors."""
_STEPS = ("observation", "action", "reward", "terminated", "discounted_return")


def as_segments(replay: Packed, device: torch.device | str) -> Batch:
    """Return a replay's sequences as segments: steps `[T, B, …]`, and `length [B]`."""
    steps = tuple(name for name in _STEPS if name in replay.layout.spec)
    batch: Batch = to_torch(replay, device, time_major=steps)
    batch["length"] = batch.pop("mask").sum(1)
    return batch


def num_warm(segments: Batch, burn_in: int) -> Tensor:
    """Return the steps of burn-in of each segment, `[B]`: none where its episode begins.

    At least one step is left to train on.
    """
    goes_on = segments["initial_state"].ne(0).any(-1)
    return torch.where(goes_on, (segments["length"] - 1).clamp(max=burn_in), 0)


def unroll_values(
    policy: Any, segments: Batch, warm: Tensor, burn_in: int
) -> tuple[Tensor, Tensor | None]:
    """Return action values `[T + 1, B, A]` of all steps and the observation after them.

    Those of burn-in are of the stored state and without a gradient. And which actions are allowed.

    Args:
        policy: network; has `replay`.
        segments: those of `as_segments`.
        warm: steps of burn-in, `[B]`.
        burn_in: most of them.
    """
    length, state = segments["length"], segments["initial_state"]
    columns = torch.arange(len(length), device=length.device)

    def with_final(steps: Tensor, final: Tensor) -> Tensor:
        longer = torch.cat([steps, torch.zeros_like(steps[:1])])
        longer[length, columns] = final
        return longer

    observation = nested.map(with_final, segments["observation"], segments["final_observation"])
    if bool((warm > 0).any()):
        with torch.no_grad():
            early = nested.map(lambda leaf: leaf[:burn_in], observation)
            _, _, after = policy.replay(early, state, warm.clamp(min=1))
            state = torch.where((warm > 0)[:, None], after, state)
    # Each column begins at its first step to train on: [t, b] reads step t + warm[b].
    time = torch.arange(int(length.max()) + 1, device=length.device)[:, None]
    index = (time + warm).clamp(max=len(segments["reward"]))
    moved = nested.map(lambda leaf: leaf[index, columns], observation)
    numbers, allowed, _ = policy.replay(moved, state, length + 1 - warm)
    return numbers, allowed


def shifted(leaf: Tensor, warm: Tensor, num_steps: int) -> Tensor:
    """Return a leaf `[T, B]` from each column's first step to train on, `[num_steps, B]`."""
    time = torch.arange(num_steps, device=leaf.device)[:, None]
    index = (time + warm).clamp(max=len(leaf) - 1)
    return leaf[index, torch.arange(leaf.shape[1], device=leaf.device)]


def n_step_sums(
    reward: Tensor, terminated: Tensor, length: Tensor, n: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums of n rewards, the discounts behind them, and the steps of the bootstraps.

    Fewer rewards are summed at a segment's end. All are `[T, B]`.

    Args:
        reward: rewards, `[T, B]`.
        terminated: whether the episode terminated at a step, bool `[T, B]`.
        length: valid steps, `[B]`.
        n: number of rewards.
        gamma: discount per step.
    """
    num_steps = len(reward)
    time = torch.arange(num_steps, device=reward.device)[:, None]
    valid = time < length
    end = torch.minimum(time + n, length.expand_as(reward))
    padded = torch.cat([torch.where(valid, reward, 0.0), reward.new_zeros(n, reward.shape[1])])
    total = sum(gamma**k * padded[k : k + num_steps] for k in range(n))
    assert isinstance(total, Tensor)
    ends = (terminated & valid).any(0) & (end == length)
    discount = gamma ** (end - time).float() * ~ends
    return total, discount, end


def sequence_loss(
    online: Any, target: Any, batch: Batch, *, double: bool, burn_in: int, n_step: int, gamma: float
) -> ValueLoss:
    """Return the loss of a batch of segments, its terms and the segments' priorities `[B]`.

    Args:
        online: policy that learns.
        target: its target network, of the same class.
        batch: those of `as_segments`, and maybe `weight [B]`.
        double: whether the online network chooses the next action.
        burn_in: most steps of burn-in.
        n_step: rewards summed before the bootstrap.
        gamma: discount per step.
    """
    warm = num_warm(batch, burn_in)
    numbers, allowed = unroll_values(online, batch, warm, burn_in)
    with torch.no_grad():
        next_numbers, _ = unroll_values(target, batch, warm, burn_in)
    num_steps = len(numbers) - 1
    reward, terminated, action = (
        shifted(batch[name], warm, num_steps) for name in ("reward", "terminated", "action")
    )
    length = batch["length"] - warm
    valid = valid_steps({"reward": reward, "length": length})
    total, discount, end = n_step_sums(reward, terminated, length, n_step, gamma)
    columns = torch.arange(len(length), device=length.device).expand_as(end)

    def following(leaf: Tensor) -> Tensor:
        return leaf[end, columns][valid]

    aim = dqn.target(
        following(next_numbers),
        total[valid],
        discount[valid],
        next_online_q=following(numbers.detach()) if double else None,
        next_legal=None if allowed is None else following(allowed),
    )
    taken = numbers[:-1][valid]
    weight = batch["weight"].expand_as(reward)[valid] if "weight" in batch else None
    loss, terms = dqn.loss(taken, action[valid], aim, weight=weight)
    error = torch.zeros_like(reward)
    error[valid] = dqn.td_error(taken.detach(), action[valid], aim).abs()
    priority = _ETA * error.amax(0) + (1.0 - _ETA) * error.sum(0) / length
    return loss, terms, priority
