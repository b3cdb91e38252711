"""Choosing the next token of each row from its logits, with the log-probability of the choice."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

_BLOCK = 128
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 1e-30, 1e30
"""Temperatures beyond are taken for these: in float32 they would be 0 and infinite, and 0/0 is no
number. Both ends are as near to certainty and to chance as can be told apart."""
_BELOW_ONE = torch.tensor(1 - 2.0**-53, dtype=torch.float64)
"""The product of any number and this is less than the number: no row's last token is passed."""


class SamplingRows(NamedTuple):
    """How each of `[N]` rows is sampled; `Sampling` explains the fields."""

    temperature: npt.NDArray[np.float64]
    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]

    def at(self, rows: npt.NDArray[np.int64]) -> SamplingRows:
        """Return some of the rows."""
        return SamplingRows(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows]
        )


class Sampled(NamedTuple):
    """What was sampled, `[N]` each; a row whose logits are not finite has NaN."""

    ids: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float64]
    raw_logprobs: npt.NDArray[np.float64]


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    uniforms: npt.NDArray[np.float64],
    adjusted: torch.Tensor | None = None,
) -> Sampled:
    """Sample one token of each row by inverting the cumulative distribution.

    One uniform number a row is enough, so that the choice depends on nothing but the row.

    Args:
        logits: `[N, V]`.
        rows: How each row is sampled.
        uniforms: One number in [0, 1) for each row, `[N]`.
        adjusted: Logits that are sampled from, `[N, V]`, where requests added something to them;
            raw log-probabilities are of `logits`.
    """
    greedy = rows.temperature == 0
    if greedy.all():
        return _greedy(logits, adjusted)
    shifted = _shifted(logits)
    chosen = shifted if adjusted is None else _shifted(adjusted)
    plain = adjusted is None and bool((rows.temperature == 1).all())
    filtered = (rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0)
    scaled = chosen
    if not plain:
        bounded = rows.temperature.clip(_LEAST_TEMPERATURE, _MOST_TEMPERATURE)
        divisors = np.where(greedy, 1.0, bounded)
        scaled = chosen / _column(divisors, shifted)
    ids, logprobs = _draw(scaled, _column(uniforms, shifted, torch.float64))
    if filtered.any():
        few = np.flatnonzero(filtered)
        index = torch.from_numpy(few).to(shifted.device)
        part = rows.at(few)
        drawn = _draw_filtered(scaled[index], part, _column(uniforms[few], shifted, torch.float64))
        ids[index], logprobs[index] = drawn
    if greedy.any():
        mask = torch.from_numpy(greedy).to(shifted.device)
        ids = torch.where(mask, _argmax(chosen), ids)
        logprobs = torch.where(mask, torch.zeros_like(logprobs), logprobs)
    if plain and not filtered.any():
        raw = logprobs
    else:
        raw = _at(shifted, ids) - shifted.exp().sum(-1).double().log()
    return _to_numpy(ids, logprobs, raw)


def _shifted(logits: torch.Tensor) -> torch.Tensor:
    """Return logits of which the largest of each row is 0."""
    wide = logits.float()
    return wide - wide.amax(-1, keepdim=True)


def _greedy(logits: torch.Tensor, adjusted: torch.Tensor | None) -> Sampled:
    """Return the most probable tokens: each is certain under the distribution sampled from."""
    wide = logits.float()
    if adjusted is None:
        ids = _argmax(wide)
        shifted = wide - wide.gather(-1, ids[:, None])
        raw = shifted.exp_().sum(-1).double().log().neg()
    else:
        ids = _argmax(adjusted.float())
        shifted = _shifted(wide)
        raw = _at(shifted, ids) - shifted.exp().sum(-1).double().log()
    return _to_numpy(ids, raw * 0, raw)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type == "cpu":  # numpy's is twenty times as quick as torch's
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _draw(scaled: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from softmax(scaled), whose largest is near 0; `uniforms` is `[N, 1]`."""
    weights = scaled.exp()
    if weights.shape[-1] <= 2 * _BLOCK:
        ids, total = _invert(weights, uniforms)
    else:
        # Sums over blocks first, then within the block that was hit: a running sum over the whole
        # vocabulary takes thirty times as long.
        weights = F.pad(weights, (0, -weights.shape[-1] % _BLOCK))
        blocks = weights.view(len(weights), -1, _BLOCK)
        sums = blocks.sum(-1)
        hit, total = _invert(sums, uniforms)
        below = sums.double().cumsum(-1).gather(-1, hit) - sums.gather(-1, hit).double()
        block = blocks.gather(1, hit[..., None].expand(-1, 1, _BLOCK))[:, 0]
        inner = (uniforms * total - below) / block.double().sum(-1, keepdim=True)
        within, _ = _invert(block, inner.clamp(0.0, 1.0))
        ids = hit * _BLOCK + within
    ids = ids.clamp(max=scaled.shape[-1] - 1)  # where NaN left no order
    return ids[:, 0], scaled.gather(-1, ids)[:, 0].double() - total[:, 0].log()


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the running sums pass a share of their total, `[N, 1]`, and the total."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.minimum(uniforms, _BELOW_ONE.to(uniforms.device)) * total
    return torch.searchsorted(cumulative, target, right=True), total


def _draw_filtered(
    scaled: torch.Tensor, rows: SamplingRows, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample from what top-k, top-p and min-p leave of softmax(scaled)."""
    values, order = scaled.sort(dim=-1, stable=True, descending=True)
    ranks = torch.arange(values.shape[-1], device=values.device)
    width = values.shape[-1]
    top_k = np.where(rows.top_k > 0, np.minimum(rows.top_k, width), width)
    keep = ranks < _column(top_k, values, torch.int64)
    weights = torch.where(keep, values.exp(), 0.0).double()
    share = weights / weights.sum(-1, keepdim=True)
    before = share.cumsum(-1) - share
    keep &= before < _column(np.where(rows.top_p < 1, rows.top_p, np.inf), values, torch.float64)
    keep &= share >= _column(rows.min_p, values, torch.float64) * share[:, :1]
    keep[:, 0] = True
    picked, logprobs = _draw(values.masked_fill(~keep, -torch.inf), uniforms)
    return order.gather(-1, picked[:, None])[:, 0], logprobs


def top_tokens(logits: torch.Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """Return the `count` most probable tokens of each row, with their raw log-probabilities."""
    values, ids = logits.float().log_softmax(-1).topk(min(count, logits.shape[-1]), dim=-1)
    return [
        tuple(zip(row_ids, row_values, strict=True))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _at(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, ids[:, None])[:, 0].double()


def _column(
    values: npt.NDArray[np.generic], like: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device, dtype or like.dtype)[:, None]


def _to_numpy(ids: torch.Tensor, logprobs: torch.Tensor, raw: torch.Tensor) -> Sampled:
    return Sampled(ids.cpu().numpy(), logprobs.cpu().numpy(), raw.cpu().numpy())
