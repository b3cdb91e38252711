"""What a language model is trained on: prompts, what rewards answers, and demonstrations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

Message: TypeAlias = Mapping[str, Any]
"""One message of a conversation: `role`, `content`, and what a chat template knows besides, such as
`tool_calls`."""

FIRST_HELD_OUT_SEED = 2**31
"""Seeds of an environment's evaluations are this and greater; those of training are smaller. An
environment that holds questions out asks them at these seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPrompt:
    """What is asked: a text, or messages that the chat template renders."""

    content: str | tuple[Message, ...]
    """The text as it stands, or the messages."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What the reward may look at, such as the right answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """What is to be learnt by heart: a prompt and its completion, or a whole conversation."""

    content: str | tuple[Message, ...]
    """The prompt, or the messages, of which those of the role `assistant` are learnt."""
    completion: str | None = None
    """The completion of a prompt; the tokenizer's end token is added. None: `content` is a
    conversation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """Two answers to a prompt, of which one is preferred."""

    content: str | tuple[Message, ...]
    """The prompt."""
    chosen: str
    """The better answer, without the end token."""
    rejected: str
    """The worse answer, without the end token."""


class TextTask(ABC):
    """A task of your own: derive from it and name the class as the source's `environment`."""

    @abstractmethod
    def prompts(self, count: int, rng: np.random.Generator) -> Sequence[TextPrompt]:
        """Return prompts to train on.

        Args:
            count: how many.
            rng: what random choices are drawn from, so that a seed repeats.
        """

    @abstractmethod
    def held_out(self, count: int) -> Sequence[TextPrompt]:
        """Return prompts that training never asks, the same each time.

        Args:
            count: how many at most.
        """

    @abstractmethod
    def reward(self, prompts: Sequence[TextPrompt], completions: Sequence[str]) -> Sequence[float]:
        """Return the reward of each answer; NaN fails an answer, which is then left out.

        Args:
            prompts: what was asked, one for each answer.
            completions: the answers' text, without the end token.
        """

    def demonstrations(self, count: int, rng: np.random.Generator) -> Sequence[Demonstration]:
        """Return demonstrations for supervised steps; by default there are none.

        Args:
            count: how many.
            rng: what random choices are drawn from.
        """
        return ()

    def preferences(self, count: int, rng: np.random.Generator) -> Sequence[Preference]:
        """Return pairs of answers of which one is preferred, for DPO; by default there are none.

        Args:
            count: how many.
            rng: what random choices are drawn from.
        """
        return ()


@runtime_checkable
class TextEnvironment(Protocol):
    """A conversation with the policy in several turns: name the class as `environment`."""

    def reset(self, seed: int) -> Sequence[Message]:
        """Begin anew and return the first messages, such as of the system and the user.

        Args:
            seed: what is asked; those of one group get the same seed, and evaluations get
                `FIRST_HELD_OUT_SEED` and greater ones.
        """
        ...

    def step(self, message: Message) -> tuple[Sequence[Message], float, bool]:
        """Take the policy's message.

        Args:
            message: role `assistant`, `content`, and `tool_calls` where some were parsed.

        Returns:
            The messages that follow, the reward, which adds up over the conversation, and whether
            it is over.
        """
        ...
