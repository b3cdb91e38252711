"""Choices one after the other, each given those before, and reals given all of them.

Beside `logits` (a list of K heads `[A_k]`) there are `conditional [S, S + D]`, with S = ΣA_k and D
reals, and `order [K]`. Once a choice is made, the row of its value is added to the numbers of all
that is drawn after it: to their logits, which lie side by side in the columns, and to `mean [D]`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from bray_actor.policy.decision import Decision, Decoder, all_of, both_of
from bray_actor.policy.named_outputs import heads_of, leaf_of, order_of
from bray_core.nested import Nested

_Decide = Callable[[Decoder, Nested], Decision]


class Autoregressive:
    """Several choices in an order, with a real vector behind them where there is one.

    Args:
        sizes: number of values of each choice.
        choices: what draws each choice by its `logits`.
        reals: what draws the reals; None where there are none.
        num_reals: number D of reals.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        choices: Sequence[Decoder],
        reals: Decoder | None,
        num_reals: int,
    ) -> None:
        self._sizes, self._choices, self._reals = list(sizes), choices, reals
        self._starts = list(accumulate(sizes, initial=0))
        self._shape = (self._starts[-1], self._starts[-1] + num_reals)

    def sample(self, outputs: Nested, rng: random.Random) -> Decision:
        """Draw one after the other; log_prob is the sum along the way."""
        return self._walk(outputs, lambda decoder, part: decoder.sample(part, rng))

    def mode(self, outputs: Nested) -> Decision:
        """Return the likeliest value of each choice given those before.

        The likeliest whole action may be another one; to find it takes a search.
        """
        return self._walk(outputs, lambda decoder, part: decoder.mode(part))

    def _walk(self, outputs: Nested, decide: _Decide) -> Decision:
        number = len(self._sizes)
        heads = heads_of(outputs, number)
        conditional = leaf_of(outputs, "conditional", self._shape)
        given = np.zeros(self._shape[1])  # what the choices so far add
        made: dict[int, Decision] = {}
        for k in order_of(leaf_of(outputs, "order", (number,)), number):
            start, size = self._starts[k], self._sizes[k]
            logits = leaf_of({"logits": heads[k]}, "logits", (size,))
            made[k] = decide(self._choices[k], {"logits": logits + given[start : start + size]})
            given += conditional[start + made[k].action]
        choices = all_of([made[k] for k in range(number)])
        if self._reals is None:
            return choices
        mean = leaf_of(outputs, "mean", (self._shape[1] - self._shape[0],))
        reals = {**outputs, "mean": mean + given[self._shape[0] :]}
        return both_of(choices, decide(self._reals, reals))
