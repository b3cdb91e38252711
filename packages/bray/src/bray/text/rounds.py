"""Rounds of sampling: what plays with the newest weights and returns rewarded samples."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bray.text.reward_function import GuardedReward
from bray.text.samples import TextSample
from bray.text.sampling import AnswerSampler
from bray.text.task import TextTask


class Rounds(Protocol):
    """What plays: answers to prompts, conversations in this process, or programs at an endpoint."""

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        """Return the samples of so many groups; those that failed are left out.

        Args:
            groups: number of prompts, or of seeds of conversations.
            size: samples of each.
            rng: what random choices are drawn from.
        """
        ...

    def evaluate(self, count: int, rng: np.random.Generator | None) -> list[float]:
        """Return the rewards of what training never asks.

        Args:
            count: number of episodes at most.
            rng: what samples are drawn from; None takes the likeliest tokens.
        """
        ...

    def close(self) -> None:
        """Free what plays."""
        ...


class PromptRounds:
    """Asks the prompts of a task, and lets it reward the answers.

    Args:
        task: prompts and rewards.
        sampler: what answers.
        reward_timeout_s: longest time of one call of the reward.
    """

    def __init__(self, task: TextTask, sampler: AnswerSampler, reward_timeout_s: float) -> None:
        self._task = task
        self._sampler = sampler
        self._reward = GuardedReward(task.reward, reward_timeout_s)

    def play(self, groups: int, size: int, rng: np.random.Generator) -> list[TextSample]:
        """Return the answers to so many prompts; see `Rounds`."""
        prompts = list(self._task.prompts(groups, rng))
        answers = self._sampler.sample(
            [self._sampler.prompt_ids(prompt) for prompt in prompts], size, rng=rng
        )
        asked = [prompt for prompt in prompts for _ in range(size)]
        given = [answer for group in answers for answer in group]
        rewards = self._reward(asked, [answer.text for answer in given])
        return [
            TextSample(rows=(one.row,), reward=reward, group=at // size, is_cut=one.is_cut)
            for at, (one, reward) in enumerate(zip(given, rewards, strict=True))
            if reward is not None
        ]

    def evaluate(self, count: int, rng: np.random.Generator | None) -> list[float]:
        """Return the rewards of answers to held-out prompts; see `Rounds`."""
        prompts = self._task.held_out(count)
        ids = [self._sampler.prompt_ids(prompt) for prompt in prompts]
        answers = [group[0] for group in self._sampler.sample(ids, rng=rng)]
        rewards = self._reward(prompts, [answer.text for answer in answers])
        return [reward for reward in rewards if reward is not None]

    def close(self) -> None:
        """Do nothing: the sampler is the run's."""
