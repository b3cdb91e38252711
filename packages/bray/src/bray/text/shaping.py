"""Samples of a round made ready: penalties of long answers, and groups that differ told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.samples import TextSample
from bray_algo.tokens.rewards import overlong_penalty


def shaped(
    samples: Sequence[TextSample], part: GRPOConfig, longest_answer: int
) -> list[TextSample]:
    """Return samples with the penalty of long answers taken off their rewards.

    Args:
        samples: the samples.
        part: hyperparameters; `overlong_buffer=0` leaves the rewards alone.
        longest_answer: largest number of tokens of an answer.
    """
    if not part.overlong_buffer or not samples:
        return list(samples)
    lengths = torch.tensor([float(one.num_own_tokens) for one in samples])
    buffer = min(part.overlong_buffer, longest_answer)
    penalty = overlong_penalty(lengths, max_length=longest_answer, buffer=buffer)
    return [
        replace(one, reward=one.reward + part.overlong_penalty * taken)
        for one, taken in zip(samples, penalty.tolist(), strict=True)
    ]


def split_by_difference(
    samples: Sequence[TextSample], first: int
) -> tuple[list[TextSample], list[TextSample]]:
    """Return the samples of groups whose rewards differ, and those of the others.

    Args:
        samples: samples of one round.
        first: number that its first group gets, so that groups of several rounds differ.
    """
    rewards: dict[int, set[float]] = {}
    for one in samples:
        rewards.setdefault(one.group, set()).add(one.reward)
    moved = [replace(one, group=one.group + first) for one in samples]
    differ = [one for one in moved if len(rewards[one.group - first]) > 1]
    same = [one for one in moved if len(rewards[one.group - first]) == 1]
    return differ, same
