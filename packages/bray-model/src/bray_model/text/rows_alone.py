"""Any causal language model of transformers, each row decoded by itself.

A row keeps whatever the module's own forward hands on from token to token: a cache, a recurrent
state, both of them, or nothing, and then its tokens are computed anew. So models run whose rows
cannot be computed together: Mamba, RWKV, Bloom, hybrids such as Qwen 3.5. A step takes as long as
its rows one after another. No row lends its beginning, because a state has forgotten where that
ended, and prompts are read at once, because some states are only carried on by single tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from bray_model.text.step_module import PromptPart

_BOUNDLESS = 2**62
_PROBED_TOKENS = 9


class RowStates:
    """The states of rows, each as its module made it.

    Args:
        device: Where they lie.
        row_bytes: Bytes of a row, however long.
        token_bytes: Bytes that each of its tokens adds.
        limit_bytes: Largest memory of all rows together.
    """

    def __init__(
        self, device: torch.device, row_bytes: int, token_bytes: int, limit_bytes: int
    ) -> None:
        self.device = device
        self.num_rows = self.length = _BOUNDLESS  # nothing is allocated before it is used
        self.lends = False
        self.states: dict[int, dict[str, Any]] = {}
        """What each row hands on to its next token."""
        self._row_bytes = row_bytes
        self._token_bytes = token_bytes
        self.limit_bytes = limit_bytes
        """Largest number of bytes that are held."""
        self.limit_tokens = max(0, limit_bytes - row_bytes) // max(1, token_bytes)
        """Tokens of one row that fill all memory."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return sum(map(_bytes_of, list(self.states.values())))

    def fits(self, num_rows: int, length: int) -> bool:
        """Return whether so many rows of such a length are within the limit."""
        return num_rows * (self._row_bytes + length * self._token_bytes) <= self.limit_bytes

    def resize(self, num_rows: int, length: int, live_rows: int, live_length: int) -> None:
        """Nothing to do: states grow by themselves."""

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Move rows to other rows."""
        for source, target in zip(sources, targets, strict=True):
            self.states[target] = self.states.pop(source)

    def take(self, row: int, length: int) -> list[torch.Tensor]:
        """Never asked: see `lends`."""
        raise NotImplementedError

    def put(self, row: int, taken: Sequence[torch.Tensor]) -> None:
        """Never asked: see `lends`."""
        raise NotImplementedError

    def free(self) -> None:
        """Let all states go."""
        self.states.clear()


class RowsAlone:
    """A `StepModule` that calls a transformers module for one row at a time.

    Args:
        module: A causal language model, in evaluation mode.
        device: Where it lies.
        limit_bytes: Largest memory of the states of all rows together.
    """

    def __init__(self, module: Any, device: torch.device, limit_bytes: int) -> None:
        self._module = module
        taken = inspect.signature(module.forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in taken else {}
        output = module(input_ids=_ids([0], device), use_cache=True, return_dict=True)
        self._handed_on = sorted(set(output.keys()) & set(taken) - {"logits"})
        one, many = (
            _bytes_of(self._forward([0] * count, {}, device)[1]) for count in (1, _PROBED_TOKENS)
        )
        token_bytes = (many - one) // (_PROBED_TOKENS - 1)
        self.cache = RowStates(device, max(0, one - token_bytes), token_bytes, limit_bytes)

    def prefill(self, parts: Sequence[PromptPart]) -> torch.Tensor:
        """Compute whole prompts, one after another."""
        return torch.stack([self._advance(part.row, part.ids, {}) for part in parts])

    def decode(self, ids: torch.Tensor, lengths: torch.Tensor, longest: int) -> torch.Tensor:
        """Compute one token for each row, one after another."""
        states = self.cache.states
        for gone in [row for row in states if row >= len(ids)]:
            del states[gone]
        logits = [self._advance(row, [id_], states[row]) for row, id_ in enumerate(ids.tolist())]
        return torch.stack(logits)

    def weights_changed(self) -> None:
        """Nothing to do: the module's own weights are used."""

    def _advance(self, row: int, ids: Sequence[int], state: dict[str, Any]) -> torch.Tensor:
        """Let a row read tokens; return the logits after the last of them, `[V]`."""
        logits, self.cache.states[row] = self._forward(ids, state, self.cache.device)
        return logits

    def _forward(
        self, ids: Sequence[int], state: dict[str, Any], device: torch.device
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the logits after the last token, `[V]`, and the state then."""
        if not self._handed_on:
            read = [*state.get("ids", ()), *ids]
            output = self._module(input_ids=_ids(read, device), **self._options)
            return output.logits[0, -1], {"ids": read}
        output = self._module(
            input_ids=_ids(ids, device), use_cache=True, return_dict=True, **state, **self._options
        )
        return output.logits[0, -1], {name: output[name] for name in self._handed_on}


def _ids(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([list(ids)], dtype=torch.int64, device=device)


def _bytes_of(state: Any) -> int:
    """Return the bytes of all tensors that a state holds."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    left = [state]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, torch.Tensor):
            storage = part.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list | tuple):
            left += part
        elif hasattr(part, "__dict__") and not isinstance(part, type | torch.nn.Module):
            left += vars(part).values()
    return sum(found.values())
