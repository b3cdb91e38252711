"""Sampling answers to prompts, as rows to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bray.text.config import SamplingConfig
from bray.text.samples import TokenRow
from bray.text.task import TextPrompt
from bray_core.errors import ConfigError
from bray_model.text.requests import Completion, Sampling, TextRequest
from bray_model.text.text_model import TextModel

_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledAnswer:
    """One sampled answer."""

    row: TokenRow
    text: str
    """Its text without the end token."""
    is_cut: bool
    """Whether it has no end because it had no tokens left."""


class AnswerSampler:
    """Samples answers with the newest weights of a model.

    Args:
        model: what samples.
        config: how.
    """

    def __init__(self, model: TextModel, config: SamplingConfig) -> None:
        self.model = model
        self._config = config
        self.tokens = 0
        """Tokens sampled since it was made."""

    def prompt_ids(self, prompt: TextPrompt) -> tuple[int, ...]:
        """Return the token ids of a prompt; messages are rendered by the chat template.

        Raises:
            ConfigError: it is longer than the context, with an answer of at least one token.
        """
        content = prompt.content
        if isinstance(content, str):
            ids = self.model.encode(content)
        else:
            ids = self.model.apply_chat_template(content)
        if len(ids) + 1 > self.model.context_length:
            raise ConfigError(
                f"prompt: {len(ids)} tokens, longer than the context of "
                f"{self.model.context_length}: shorten it, or raise model.context: {content!r:.80}"
            )
        return ids

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        count: int = 1,
        *,
        rng: np.random.Generator | None,
    ) -> list[list[SampledAnswer]]:
        """Return `count` answers to each prompt.

        Args:
            prompts: token ids of each prompt.
            count: answers to each.
            rng: what the seeds of the requests are drawn from; None always takes the likeliest
                token.
        """
        seeds = iter([] if rng is None else rng.integers(2**31, size=len(prompts) * count).tolist())
        temperature = 0.0 if rng is None else self._config.temperature
        sampling = Sampling(max_tokens=self._config.max_tokens, temperature=temperature)
        requests = []
        for number, prompt in enumerate(prompts):
            ids = tuple(prompt)
            group = number if count > 1 else None
            for _ in range(count):
                requests.append(TextRequest(ids, sampling, group, next(seeds, None)))
        found = self.model.generate(requests, timeout_s=_TIMEOUT_S)
        self.tokens += sum(len(one.ids) for one in found)
        answers = [self._answer(one) for one in found]
        return [answers[at : at + count] for at in range(0, len(answers), count)]

    def _answer(self, one: Completion) -> SampledAnswer:
        return SampledAnswer(row=row_of(one), text=one.text, is_cut=one.finish_reason == "length")


def row_of(completion: Completion) -> TokenRow:
    """Return the row of a completion, each token with the version that sampled it."""
    before, own = len(completion.prompt_ids), len(completion.ids)
    mask = np.zeros(before + own, np.bool_)
    mask[before:] = True
    log_prob = np.zeros(before + own, np.float32)
    log_prob[before:] = completion.logprobs
    version = np.zeros(before + own, np.int32)
    version[before:] = completion.versions
    tokens = np.concatenate([np.asarray(completion.prompt_ids, np.int32), completion.ids])
    return TokenRow(tokens=tokens.astype(np.int32), mask=mask, log_prob=log_prob, version=version)
