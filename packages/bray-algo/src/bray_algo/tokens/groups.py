"""Groups of samples that answer one prompt: their means, and which of them teach anything.

`group` (integers `[N]`) numbers each sample's group, from 0 to N − 1; groups may differ in size,
and their samples need not lie side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bray_algo.precision import wide
from bray_algo.validation.tensors import check_numbers, check_rank, check_shape
from bray_algo.validation.values import check_finite, check_index


def check_groups(reward: Tensor, group: Tensor) -> None:
    """Refuse rewards that are not finite numbers `[N]`, and groups that are not 0 to N − 1.

    Raises:
        ValueError: one is such; the message names it.
    """
    check_rank("reward", reward, "N")
    check_numbers("reward", reward)
    check_shape("group", group, reward.shape, ": give each sample the number of its group")
    check_index("group", group, len(reward))
    check_finite(reward=reward)


def sizes(group: Tensor) -> Tensor:
    """Return the number of samples in each sample's group, integers `[N]`."""
    check_rank("group", group, "N")
    check_index("group", group, len(group))
    index = group.long()
    return torch.zeros_like(index).scatter_add(0, index, torch.ones_like(index))[index]


def means(reward: Tensor, group: Tensor) -> Tensor:
    """Return the mean of each sample's group, `[N]`, in float64."""
    check_groups(reward, group)
    total = torch.zeros(len(reward), dtype=torch.float64, device=reward.device)
    total = total.scatter_add(0, group.long(), reward.detach().double())
    return total[group.long()] / sizes(group)


def informative(reward: Tensor, group: Tensor) -> Tensor:
    """Return which samples are in groups whose rewards differ, bool `[N]`.

    Yu et al. 2025, "DAPO", §3.2, dynamic sampling: a group of equal rewards (all right or all
    wrong) has advantages of zero, so it only takes time and makes the mean smaller. DAPO draws
    prompts until a batch is full of groups that differ; leaving the others out is the cheaper half.

    Args:
        reward: Reward of each sample, `[N]`.
        group: Number of each sample's group, integers `[N]`.

    Raises:
        ValueError: shapes or types are not these, or a reward is not finite.
    """
    check_groups(reward, group)
    rows, index = wide(reward.detach()), group.long()
    least = torch.zeros_like(rows).scatter_reduce(0, index, rows, "amin", include_self=False)
    greatest = torch.zeros_like(rows).scatter_reduce(0, index, rows, "amax", include_self=False)
    return (least < greatest)[index]


def informative_fraction(reward: Tensor, group: Tensor) -> Tensor:
    """Return the fraction of groups whose rewards differ, a scalar from 0 to 1.

    Near 0 nothing is learned: the task is too hard (or too easy) for what the model can do so far.
    Arguments as in `informative`.
    """
    differ = informative(reward, group)
    share = 1 / sizes(group).to(wide(reward).dtype)  # a group's samples add up to one group
    return (share * differ).sum() / share.sum()
