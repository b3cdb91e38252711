"""Models built like Llama, computed with few operations a layer.

Small models spend their time between operations rather than in them. So the projections of
queries, keys and values are one matrix product, those of gate and up another, tokens of prompts are
computed without padding, and keys and values are written by one operation. The module's own
parameters become views of the joined matrices: there is one copy of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from bray_model.text.fused.norm import Norm
from bray_model.text.fused.packed_linear import PackedLinear, joined
from bray_model.text.row_cache import RowCache
from bray_model.text.step_module import PromptPart


class _Layer(NamedTuple):
    """Parameters of one layer."""

    first_norm: Norm
    qkv: PackedLinear
    query_norm: Norm | None
    key_norm: Norm | None
    output: PackedLinear
    second_norm: Norm
    gate_up: PackedLinear
    down: PackedLinear


class FusedModule:
    """A `StepModule` of a module that `has_llama_shape`.

    Args:
        module: The module; its parameters become views of joined ones.
        cache: Memory of its keys and values.
        windows: Window of each layer's attention in tokens; None: all tokens.
    """

    def __init__(self, module: Any, cache: RowCache, windows: Sequence[int | None]) -> None:
        self.cache = cache
        first = module.model.layers[0]
        self._head_size: int = first.self_attn.head_dim
        self._num_key_heads = cache.shapes[0].num_key_heads
        self._num_heads = first.self_attn.q_proj.out_features // self._head_size
        self._groups = self._num_heads // self._num_key_heads
        self._scale: float = first.self_attn.scaling
        self._middle: int = first.mlp.gate_proj.out_features
        self._windows = tuple(windows)
        self._rotary = module.model.rotary_emb
        self._embedding = module.model.embed_tokens.weight
        self._final_norm = self._norm(module.model.norm)
        self._is_plain = cache.device.type == "cpu" and cache.dtype == torch.float32
        self._head = PackedLinear(module.lm_head.weight, module.lm_head.bias)
        self._layers = [self._join(layer) for layer in module.model.layers]
        self._cosines = self._sines = torch.empty(0)
        self._order = torch.arange(0, device=cache.device)
        self._lines = self._order
        self._lines_of = 0, 0
        self._seen = torch.zeros((), dtype=cache.dtype, device=cache.device)
        self._unseen = torch.full((), -torch.inf, dtype=cache.dtype, device=cache.device)

    def _norm(self, module: Any) -> Norm:
        return Norm(module.weight, module.variance_epsilon)

    def _join(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        query_norm = getattr(attention, "q_norm", None)
        key_norm = getattr(attention, "k_norm", None)
        return _Layer(
            self._norm(layer.input_layernorm),
            joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            None if query_norm is None else self._norm(query_norm),
            None if key_norm is None else self._norm(key_norm),
            PackedLinear(attention.o_proj.weight, attention.o_proj.bias),
            self._norm(layer.post_attention_layernorm),
            joined([mlp.gate_proj, mlp.up_proj]),
            PackedLinear(mlp.down_proj.weight, mlp.down_proj.bias),
        )

    def weights_changed(self) -> None:
        """Take the new weights where something was made of the old ones."""
        self._head.weights_changed()
        self._final_norm.weights_changed()
        for layer in self._layers:
            for part in layer:
                if part is not None:
                    part.weights_changed()

    def decode(self, ids: torch.Tensor, lengths: torch.Tensor, longest: int) -> torch.Tensor:
        """Compute one token for each row."""
        count, length = ids.shape[0], longest + 1
        hidden = torch.embedding(self._embedding, ids)
        cosines, sines = self._rotation(lengths, length)
        places = (self._lines_of_rows()[:count] + lengths[:, None]).view(-1)
        attend = self._attend_by_products if self._is_plain else self._attend_to_rows
        masks = self._masks(lengths, length)
        for index, layer in enumerate(self._layers):
            qkv = self._project(layer, hidden, cosines, sines)
            self._write(index, places, qkv)
            query = qkv[:, : self._num_heads * self._head_size]
            attended = attend(index, query, masks[self._windows[index]])
            hidden = self._finish(layer, hidden, attended.reshape(count, -1))
        return self._logits(hidden)

    def _masks(self, lengths: torch.Tensor, length: int) -> dict[int | None, torch.Tensor]:
        """Return what each window adds to the scores of one token a row.

        `[rows, 1, 1, length]`, or for `_attend_by_products` `[rows * key heads, 1, length]`.
        """
        if self._is_plain:
            lengths = lengths[:, None].expand(-1, self._num_key_heads).reshape(-1, 1, 1)
        else:
            lengths = lengths[:, None, None, None]
        order = self._order_of(length)
        masks = {}
        for window in set(self._windows):
            seen = order <= lengths
            if window is not None:
                seen &= order > lengths - window
            masks[window] = torch.where(seen, self._seen, self._unseen)
        return masks

    def _attend_to_rows(self, index: int, query: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return what one token of each row attends to, `[rows, key heads, groups, size]`."""
        count, length = query.shape[0], mask.shape[-1]
        return F.scaled_dot_product_attention(
            query.view(count, self._num_key_heads, self._groups, self._head_size),
            self.cache.keys[index][:count, :, :length],
            self.cache.values[index][:count, :, :length],
            attn_mask=mask,
            scale=self._scale,
        )

    def _attend_by_products(
        self, index: int, query: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the same, `[rows * key heads, groups, size]`, which is quicker in fp32 on a CPU.

        Torch's own attention is made for many queries; one a row leaves two matrix products.
        """
        count, size, length = mask.shape[0], self._head_size, mask.shape[-1]
        memory, line = self.cache.memory[index], self.cache.length * size
        begin = self.cache.num_rows * self._num_key_heads * line
        keys = memory.as_strided((count, size, length), (line, 1, size))
        values = memory.as_strided((count, length, size), (line, size, 1), begin)
        query = query.reshape(count, self._groups, size)
        scores = torch.baddbmm(mask, query, keys, alpha=self._scale)
        return torch.bmm(scores.softmax(-1), values)

    def prefill(self, parts: Sequence[PromptPart]) -> torch.Tensor:
        """Compute parts of prompts one after another, without padding."""
        device = self.cache.device
        counts = [len(part.ids) for part in parts]
        ids = torch.tensor([token for part in parts for token in part.ids], device=device)
        positions = torch.tensor(
            [place for p in parts for place in range(p.start, p.start + len(p.ids))], device=device
        )
        rows = torch.tensor([part.row for part in parts], device=device)
        rows = rows.repeat_interleave(torch.tensor(counts, device=device))
        places = (self._lines_of_rows()[rows] + positions[:, None]).view(-1)
        longest = max(part.start + len(part.ids) for part in parts)
        lasts = torch.tensor(counts, device=device).cumsum(0) - 1
        hidden = torch.embedding(self._embedding, ids)
        cosines, sines = self._rotation(positions, longest)
        for index, layer in enumerate(self._layers):
            qkv = self._project(layer, hidden, cosines, sines)
            self._write(index, places, qkv)
            is_last = index == len(self._layers) - 1
            attended = self._attend(index, parts, qkv, last_only=is_last)
            if is_last:  # nothing but the last token of each part is needed from here on
                hidden = hidden[lasts]
            hidden = self._finish(layer, hidden, attended)
        return self._logits(hidden)

    def _lines_of_rows(self) -> torch.Tensor:
        """Return where each row's heads begin in a layer's memory, `[rows, 2 * key heads]`.

        First the heads of the keys, then those of the values, counted in vectors of one head.
        """
        shape = self.cache.num_rows, self.cache.length
        if self._lines_of != shape:
            heads = shape[0] * self._num_key_heads
            keys = self._order_of(heads).view(shape[0], -1)
            self._lines = torch.cat([keys, keys + heads], 1) * shape[1]
            self._lines_of = shape
        return self._lines

    def _attend(
        self, index: int, parts: Sequence[PromptPart], qkv: torch.Tensor, *, last_only: bool
    ) -> torch.Tensor:
        """Return what the tokens of each part attend to, `[T, heads * size]`."""
        width = self._num_heads * self._head_size
        results: list[torch.Tensor] = []
        begin = 0
        at = 0
        while at < len(parts):
            same = at + 1  # parts of one length and start are computed together
            shape = len(parts[at].ids), parts[at].start
            while same < len(parts) and (len(parts[same].ids), parts[same].start) == shape:
                same += 1
            size, (count, start) = same - at, shape
            query = qkv[begin : begin + size * count, :width]
            query = query.view(size, count, self._num_heads, self._head_size)
            rows = torch.tensor([part.row for part in parts[at:same]], device=qkv.device)
            keys, values = (
                block[index][rows, :, : start + count]
                for block in (self.cache.keys, self.cache.values)
            )
            if last_only:
                query = query[:, -1:]
            first = start + count - query.shape[1]
            attended = self._attend_once(index, query.transpose(1, 2), keys, values, first)
            results.append(attended.transpose(1, 2).reshape(-1, width))
            begin += size * count
            at = same
        return results[0] if len(results) == 1 else torch.cat(results)

    def _attend_once(
        self, index: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int
    ) -> torch.Tensor:
        """Attend with queries `[B, heads, Q, size]` of which the first has position `first`."""
        window, length = self._windows[index], keys.shape[2]
        count = query.shape[2]
        options: dict[str, Any] = {"scale": self._scale}
        if window is not None and length > window:
            distance = first + self._order_of(count)[:, None] - self._order_of(length)
            options["attn_mask"] = (distance >= 0) & (distance < window)
        elif first == 0 and count > 1:
            options["is_causal"] = True
        elif count > 1:
            options["attn_mask"] = first + self._order_of(count)[:, None] >= self._order_of(length)
        if self._groups > 1:
            options["enable_gqa"] = True
        return F.scaled_dot_product_attention(query, keys, values, **options)

    def _project(
        self, layer: _Layer, hidden: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        """Return rotated queries, rotated keys, and values, `[T, (heads + 2 key heads) * size]`."""
        qkv = layer.qkv(layer.first_norm(hidden))
        turned = qkv[:, : (self._num_heads + self._num_key_heads) * self._head_size]
        turned = turned.view(qkv.shape[0], -1, self._head_size)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = turned[:, : self._num_heads], turned[:, self._num_heads :]
            query.copy_(layer.query_norm(query))
            key.copy_(layer.key_norm(key))
        swapped = turned.roll(self._head_size // 2, -1)
        turned.mul_(cosines).addcmul_(swapped, sines)
        return qkv

    def _write(self, index: int, places: torch.Tensor, qkv: torch.Tensor) -> None:
        new = qkv[:, self._num_heads * self._head_size :].reshape(-1, self._head_size)
        self.cache.memory[index].view(-1, self._head_size).index_copy_(0, places, new)

    def _finish(self, layer: _Layer, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for what its attention gave; `hidden` is written to."""
        hidden = layer.output.add_to(hidden, attended)
        both = layer.gate_up(layer.second_norm(hidden))
        middle = F.silu(both[:, : self._middle]).mul_(both[:, self._middle :])
        return layer.down.add_to(hidden, middle)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(self._final_norm(hidden))

    def _rotation(self, positions: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines of positions, `[T, 1, size]`."""
        if len(self._cosines) < length:
            every = torch.arange(max(length, 2 * len(self._cosines)), device=positions.device)
            cosines, sines = self._rotary(self._embedding, position_ids=every[None])
            half = self._head_size // 2
            self._cosines = cosines[0, :, None].clone()
            self._sines = torch.cat([-sines[..., :half], sines[..., half:]], -1)[0, :, None].clone()
        return self._cosines[positions], self._sines[positions]

    def _order_of(self, count: int) -> torch.Tensor:
        """Return 0 .. count-1."""
        if len(self._order) < count:
            self._order = torch.arange(2 * count, device=self.cache.device)
        return self._order[:count]
