"""A forward pass over rows of tokens, padded or packed, and what it says of each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bray.text.packing import PackedRows
from bray_algo.tokens.prediction import token_log_prob
from bray_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardPass:
    """What a causal language model of transformers computed of rows."""

    output: Any
    """Its output, with `logits`."""
    rows: dict[str, Tensor]
    """The rows: `tokens` and `mask`, `[B, T]`, and `length`, `[B]`."""
    packed: PackedRows | None
    """How the rows were packed; None: they were padded."""

    @classmethod
    def over(
        cls, module: nn.Module, rows: dict[str, Tensor], packed_tokens: int, **asked: bool
    ) -> ForwardPass:
        """Return a pass over rows.

        Padding lies at the right of a row, where causal attention lets no own token see it. Of
        padded rows logits are computed only from the first own token of all rows on.

        Args:
            module: the model, whose `forward(input_ids)` returns `logits`.
            rows: the rows.
            packed_tokens: tokens of the packed rows; 0 packs nothing.
            **asked: what else the model is to return.
        """
        call: Callable[..., Any] = module
        tokens = rows["tokens"]
        if packed_tokens:
            packed = PackedRows.of(tokens, rows["length"], packed_tokens)
            output = call(
                input_ids=packed.tokens, position_ids=packed.position, use_cache=False, **asked
            )
            return cls(output=output, rows=rows, packed=packed)
        kept = tokens.shape[1] - _first_own(rows["mask"]) + 1
        output = call(input_ids=tokens, use_cache=False, logits_to_keep=kept, **asked)
        return cls(output=output, rows=rows, packed=None)

    def log_probs(self, temperature: float) -> Tensor:
        """Return the log probability of each own token, `[B, T]`, 0 elsewhere.

        Args:
            temperature: divisor of the logits.
        """
        tokens, mask, logits = self.rows["tokens"], self.rows["mask"], self.output.logits
        if self.packed is not None:
            wanted = self.packed.packed(mask)
            found = token_log_prob(logits, self.packed.tokens, wanted, temperature=temperature)
            return self.packed.unpacked(found)
        first = tokens.shape[1] - logits.shape[1] + 1
        found = token_log_prob(
            logits, tokens[:, first - 1 :], mask[:, first - 1 :], temperature=temperature
        )
        return nn.functional.pad(found, (first - 1, 0))

    def of_tokens(self, column: Tensor) -> Tensor:
        """Return a number for each place of the pass as one for each token of the rows, `[B, T]`.

        Args:
            column: a number for each place, such as of the hidden states.
        """
        return column if self.packed is None else self.packed.unpacked(column)


def check_rows_are_apart(module: nn.Module, rows: dict[str, Tensor]) -> None:
    """Compare a row by itself with the same row packed behind another.

    Args:
        module: the model.
        rows: some rows; the longest and the first are taken.

    Raises:
        ConfigError: it comes out otherwise: the architecture does not keep packed rows apart.
    """
    lengths = rows["length"]
    pair = torch.stack([lengths.argmax(), torch.zeros_like(lengths[0]).long()])
    tokens, length = rows["tokens"][pair], lengths[pair]
    packed = PackedRows.of(tokens, length, int(length.sum()))
    size = int(length[1])
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            alone = module(input_ids=tokens[1:, :size], use_cache=False).logits[0]
            whole = module(
                input_ids=packed.tokens, position_ids=packed.position, use_cache=False
            ).logits[0]
    finally:
        module.train(was_training)
    behind = whole[packed.place[1, :size]]
    allowed = 1e-5 if alone.dtype == torch.float32 else 0.03
    if float((behind - alone).abs().max()) > allowed * (1 + float(alone.abs().max())):
        raise ConfigError(
            "packed_tokens: this model computes other logits where a row lies behind another: its "
            "architecture does not keep packed rows apart: set 0"
        )


def _first_own(mask: Tensor) -> int:
    """Return the first place at which a row has an own token, 1 at least."""
    return max(1, int(mask.any(0).int().argmax())) if bool(mask.any()) else 1
