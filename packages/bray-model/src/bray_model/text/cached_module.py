"""Any causal language model of transformers over rows of different lengths.

The module's own forward runs with a cache of ours: a row's tokens lie at its own positions, and a
mask hides what other rows have there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from bray_model.text.row_cache import LayerShape, RowCache
from bray_model.text.step_module import PromptPart

SLIDING = "sliding_attention"
FULL = "full_attention"


class CachedModule:
    """A `StepModule` of a transformers module's own forward.

    Args:
        module: A causal language model, in evaluation mode.
        cache: Memory of its keys and values.
    """

    def __init__(self, module: Any, cache: RowCache) -> None:
        self.cache = cache
        self._module = module
        self._rows = _RowsOfCache(cache)
        config = module.config.get_text_config()
        self._window = window_of(config)
        self._mask_types = mask_types(config)
        self._eager = config._attn_implementation == "eager"
        self._dtype = module.dtype

    def prefill(self, parts: Sequence[PromptPart]) -> torch.Tensor:
        """Compute parts of prompts, padded to the longest of them."""
        device = self.cache.device
        counts = torch.tensor([len(part.ids) for part in parts])
        starts = torch.tensor([part.start for part in parts])
        width = int(counts.max())
        ids = torch.tensor([[*part.ids] + [0] * (width - len(part.ids)) for part in parts])
        steps = torch.arange(width)
        real = steps < counts[:, None]
        positions = starts[:, None] + torch.minimum(steps, counts[:, None] - 1)
        rows = torch.tensor([part.row for part in parts])[:, None].expand(-1, width)
        self._rows.place = _Place(
            rows=rows[real].to(device),
            positions=positions[real].to(device),
            real=real.to(device),
            read_rows=rows[:, 0].to(device) if starts.any() else None,
            length=int((starts + counts).max()),
        )
        wanted, inverse = torch.unique(counts - 1, return_inverse=True)
        logits = self._forward(
            ids.to(device), positions.to(device), logits_to_keep=wanted.to(device)
        )
        return logits[torch.arange(len(parts), device=device), inverse.to(device)]

    def decode(self, ids: torch.Tensor, lengths: torch.Tensor, longest: int) -> torch.Tensor:
        """Compute one token for each row."""
        rows = torch.arange(len(ids), device=self.cache.device)
        self._rows.place = _Place(
            rows=rows, positions=lengths, real=None, read_rows=None, length=longest + 1
        )
        return self._forward(ids[:, None], lengths[:, None], logits_to_keep=1)[:, 0]

    def weights_changed(self) -> None:
        """Nothing to do: the module's own weights are used."""

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, **options: Any) -> torch.Tensor:
        output = self._module(
            input_ids=ids,
            attention_mask=self._mask(positions),
            position_ids=positions,
            past_key_values=self._rows,
            use_cache=True,
            **options,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _mask(self, positions: torch.Tensor) -> Any:
        """Return the mask, `[B, 1, Q, K]`, or one for each type of layer."""
        distance = positions[:, None, :, None] - torch.arange(
            self._rows.place.length, device=positions.device
        )
        causal = distance >= 0
        masks = {FULL: causal}
        if self._window is not None:
            masks[SLIDING] = causal & (distance < self._window)
        if self._eager:
            least = torch.finfo(self._dtype).min
            masks = {
                name: torch.zeros_like(mask, dtype=self._dtype).masked_fill_(~mask, least)
                for name, mask in masks.items()
            }
        if len(self._mask_types) == 1:
            return masks[self._mask_types[0]]
        return {name: masks[name] for name in self._mask_types}


def mask_types(config: Any) -> tuple[str, ...]:
    """Return which kinds of attention the layers of a text config have."""
    types = getattr(config, "layer_types", None)
    if types:
        return tuple(sorted(set(types)))
    return (FULL,) if window_of(config) is None else (SLIDING,)


def window_of(config: Any) -> int | None:
    """Return over how many tokens the layers of a text config slide; None: they do not.

    Some configs say 0 where nothing slides (Qwen 2 with experts).
    """
    return getattr(config, "sliding_window", None) or None


class _Place(NamedTuple):
    """Where the tokens of one forward lie in the cache."""

    rows: torch.Tensor
    """Row of each token that is no padding, `[N]`."""
    positions: torch.Tensor
    """Position of each token that is no padding, `[N]`."""
    real: torch.Tensor | None
    """Which of the tokens `[B, Q]` are no padding; None: one a row, in the first rows."""
    read_rows: torch.Tensor | None
    """Rows to read, `[B]`; None: the first rows, or nothing but what is computed now."""
    length: int
    """Tokens of each row that are read."""


class _RowsOfCache(Cache):  # type: ignore[misc]
    """The rows of a `RowCache` as the cache that a module's forward writes to."""

    def __init__(self, cache: RowCache) -> None:
        nothing = torch.empty(0)
        self.place = _Place(nothing, nothing, None, None, 0)
        super().__init__(
            layers=[_RowsOfLayer(self, cache, layer) for layer in range(len(cache.shapes))]
        )


class _RowsOfLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of `_RowsOfCache`."""

    is_sliding = False

    def __init__(self, owner: _RowsOfCache, cache: RowCache, layer: int) -> None:
        super().__init__()
        self._owner = owner
        self._cache = cache
        self._layer = layer
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[B, heads, Q, size]`, and return what the rows have, `[B, heads, K, size]`."""
        place, cache, layer = self._owner.place, self._cache, self._layer
        keys, values = key_states.transpose(1, 2), value_states.transpose(1, 2)
        if place.real is None:
            cache.write(layer, place.rows, place.positions, keys[:, 0], values[:, 0])
            rows: Any = slice(len(place.rows))
        else:
            new = keys[place.real], values[place.real]
            cache.write(layer, place.rows, place.positions, *new)
            if place.read_rows is None:
                return key_states, value_states  # nothing lies before them
            rows = place.read_rows
        return (
            cache.keys[layer][rows, :, : place.length],
            cache.values[layer][rows, :, : place.length],
        )

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the memory is there."""

    def get_seq_length(self) -> int:
        """Return the number of tokens that are read."""
        return self._owner.place.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of tokens that are read, and where they begin."""
        return self._owner.place.length, 0

    def get_max_length(self) -> int:
        """Return the number of tokens that there is memory for."""
        return self._cache.length


def layer_shapes(module: Any) -> list[LayerShape]:
    """Find out what one token's keys and values look like in each layer, by computing one."""
    from transformers import DynamicCache

    cache = DynamicCache(config=module.config)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=module.device)
    module(input_ids=ids, past_key_values=cache, use_cache=True)
    shapes = []
    for layer in cache.layers:
        keys, values = layer.keys, layer.values
        shapes.append(LayerShape(keys.shape[1], keys.shape[3], values.shape[1], values.shape[3]))
    return shapes
