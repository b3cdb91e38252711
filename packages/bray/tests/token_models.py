"""A causal language model of a few hundred weights, without transformers, and rows to train it."""

from __future__ import annotations

import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bray.text.policy_gradient_config import GRPOConfig
from bray.text.row_queue import RowQueue, pack_samples
from bray.text.samples import TextSample, TokenRow
from bray.text.trainers.policy_gradient_trainer import PolicyGradientTrainer
from bray.text.trainers.value_policy_trainer import ValuePolicyTrainer

WORDS = 7


class SumOfTokens(nn.Module):
    """Logits of the next token from the mean of the embeddings so far: causal, and no attention."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(WORDS, 8)
        self.head = nn.Linear(8, WORDS)
        width = SimpleNamespace(hidden_size=8)
        self.config = SimpleNamespace(get_text_config=lambda: width)

    def forward(
        self,
        input_ids: Tensor,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        output_hidden_states: bool = False,
    ) -> SimpleNamespace:
        """Return `logits` `[B, T, V]`, of the last `logits_to_keep` places where it is not 0."""
        count = torch.arange(1, input_ids.shape[1] + 1)[:, None]
        hidden = (self.embed(input_ids).cumsum(1) / count).tanh()
        states = (hidden,) if output_hidden_states else None
        return SimpleNamespace(logits=self.head(hidden)[:, -logits_to_keep:], hidden_states=states)


@cache
def _llama() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            initializer_range=0.5,  # so that what a token sees matters
        )
    )


def llama() -> Any:
    """Return a small Llama, each time with the same weights."""
    return copy.deepcopy(_llama())


def plain_log_probs(module: nn.Module, row: TokenRow) -> Tensor:
    """Return log π of each token of one row by itself, `[T]`, 0 for the first."""
    tokens = torch.from_numpy(row.tokens).long()[None]
    scores = module(input_ids=tokens).logits[0, :-1].log_softmax(-1)
    found = scores.gather(-1, tokens[0, 1:, None])[:, 0]
    return torch.cat([torch.zeros(1), found])


def samples(module: nn.Module | None = None, seed: int = 0) -> list[TextSample]:
    """Return three groups of samples: rows of several lengths, one with two own turns."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(9):
        size = int(rng.integers(4, 9))
        mask = np.zeros(size, np.bool_)
        mask[2:] = True
        if number == 4:
            mask[3] = False  # a tool's answer between two own turns
        row = TokenRow(
            tokens=rng.integers(WORDS, size=size).astype(np.int32),
            mask=mask,
            log_prob=np.zeros(size, np.float32),
            version=np.where(mask, 3, 0).astype(np.int32),
        )
        if module is not None:
            with torch.no_grad():
                own = plain_log_probs(module, row).numpy() + 0.1 * rng.normal(size=size)
            row.log_prob[:] = np.where(mask, own, 0)
        reward = float(rng.normal()) if number < 6 else 1.0  # the last group is all equal
        found.append(TextSample(rows=(row,), reward=reward, group=number // 3))
    return found


def trainer(module: nn.Module, replay: list[TextSample], **settings: Any) -> PolicyGradientTrainer:
    """Return a trainer whose queue holds one replay."""
    queue = RowQueue(4)
    queue.put(pack_samples(replay))
    part = GRPOConfig(**{"learning_rate": 1e-2, "max_grad_norm": None, **settings})
    made = ValuePolicyTrainer if part.baseline == "value" else PolicyGradientTrainer
    return made(module, queue, part, longest_answer=6)
