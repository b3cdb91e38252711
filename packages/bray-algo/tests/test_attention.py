"""Attention, the entity Transformer and pooling against plain loops, with absent entities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bray_algo.networks import entities
from bray_algo.networks.attention import Attention, EntityTransformer

D, HEADS = 6, 2


def attend(
    layer: Attention, query: np.ndarray, keys: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Softmax over the present keys, head by head, for one set."""

    def weight(part: nn.Linear) -> np.ndarray:
        return part.weight.detach().numpy()

    def bias(part: nn.Linear) -> np.ndarray:
        return part.bias.detach().numpy()

    q = query @ weight(layer.query).T + bias(layer.query)
    kv = keys @ weight(layer.key_value).T + bias(layer.key_value)
    mixed, size = np.zeros_like(q), D // HEADS
    for head in range(HEADS):
        own = slice(head * size, (head + 1) * size)
        for m in range(len(q)):
            scores = {
                n: q[m, own] @ kv[n, :D][own] / math.sqrt(size) for n in np.flatnonzero(present)
            }
            total = sum(math.exp(score) for score in scores.values())
            for n, score in scores.items():
                mixed[m, own] += math.exp(score) / total * kv[n, D:][own]
    out = mixed @ weight(layer.output).T + bias(layer.output)
    return out if present.any() else np.zeros_like(out)


@given(st.integers(0, 1000))
def test_attention_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    layer = Attention(D, HEADS).double()
    nn.init.normal_(layer.output.bias)
    query, keys = rng.normal(size=(3, 2, D)), rng.normal(size=(3, 4, D))
    present = rng.random((3, 4)) < 0.6
    present[0] = False
    want = [attend(layer, query[b], keys[b], present[b]) for b in range(3)]
    with torch.no_grad():
        got = layer(*(torch.tensor(a) for a in (query, keys, present)))
    assert np.allclose(got.numpy(), want)


def test_the_encoder_is_the_one_of_torch_where_all_are_present() -> None:
    network = EntityTransformer(D, size=D, num_layers=1, num_heads=HEADS, hidden=9)
    layer = network.layers[0]
    other = nn.TransformerEncoderLayer(
        D, HEADS, 9, dropout=0.0, batch_first=True, norm_first=True, activation="relu"
    )
    attention = layer.attention
    pairs = [
        (other.self_attn.in_proj_weight, [attention.query.weight, attention.key_value.weight]),
        (other.self_attn.in_proj_bias, [attention.query.bias, attention.key_value.bias]),
        (other.self_attn.out_proj.weight, [attention.output.weight]),
        (other.self_attn.out_proj.bias, [attention.output.bias]),
        (other.linear1.weight, [layer.mlp[0].weight]),
        (other.linear1.bias, [layer.mlp[0].bias]),
        (other.linear2.weight, [layer.mlp[2].weight]),
        (other.linear2.bias, [layer.mlp[2].bias]),
    ]
    for theirs, ours in pairs:
        theirs.data.copy_(torch.cat(ours))
    x = torch.randn(2, 5, D)
    with torch.no_grad():
        got = network(x, torch.ones(2, 5, dtype=torch.bool))
        want = network.norm(other(network.entry(x)))
    assert torch.allclose(got, want, atol=1e-5)


def test_the_absent_change_nothing_and_order_is_nothing() -> None:
    network = EntityTransformer(4, size=8, num_layers=2, num_heads=2)
    x = torch.randn(3, 5, 4)
    present = torch.ones(3, 5, dtype=torch.bool)
    present[:, 3:] = False
    x[:, 3:] = torch.nan
    got = network(x, present)
    assert torch.allclose(got[:, :3], network(x[:, :3], present[:, :3]), atol=1e-6)
    assert not got[:, 3:].any()
    order = torch.randperm(5)
    assert torch.allclose(network(x[:, order], present[:, order]), got[:, order], atol=1e-6)
    gradients = torch.autograd.grad(got.sum(), list(network.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_an_empty_set_is_zero_with_finite_gradients() -> None:
    network = EntityTransformer(4, size=8, num_heads=2)
    pool = entities.AttentionPool(8, num_heads=2)
    present = torch.tensor([[False, False], [True, False]])
    encoded = network(torch.randn(2, 2, 4), present)
    pooled = pool(encoded, present)
    assert not encoded[0].any()
    assert not pooled[0].any()
    assert pooled[1].any()
    parameters = [*network.parameters(), *pool.parameters()]
    gradients = torch.autograd.grad(pooled.square().sum(), parameters, allow_unused=True)
    assert all(g is None or torch.isfinite(g).all() for g in gradients)


@given(st.integers(0, 1000))
def test_pooling_against_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, present = rng.normal(size=(3, 4, 2)), rng.random((3, 4)) < 0.5
    rows = [[x[b, n] for n in range(4) if present[b, n]] for b in range(3)]
    x[~present] = np.nan
    data, there = torch.tensor(x), torch.tensor(present)
    nothing = np.zeros(2)
    for pool, reduce in (
        (entities.masked_sum, np.sum),
        (entities.masked_mean, np.mean),
        (entities.masked_max, np.max),
    ):
        want = [reduce(row, axis=0) if row else nothing for row in rows]  # type: ignore[operator]
        assert np.allclose(pool(data, there).numpy(), want)


def test_attention_pooling_is_attention_of_its_queries() -> None:
    pool = entities.AttentionPool(D, HEADS, num_queries=3)
    x, present = torch.randn(2, 4, D), torch.tensor([[True] * 4, [True, False, True, False]])
    want = pool.attention(pool.queries.expand(2, 3, D), x, present)
    x[~present] = torch.nan
    assert torch.equal(pool(x, present), want.reshape(2, 3 * D))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="num_heads: expected a divisor of size=6, got 4"):
        Attention(6, 4)
    with pytest.raises(ValueError, match="hidden: expected positive numbers, got 0"):
        EntityTransformer(0)
    with pytest.raises(ValueError, match="num_queries: expected a positive number, got 0"):
        entities.AttentionPool(4, num_queries=0)
    network = EntityTransformer(4, size=8)
    with pytest.raises(ValueError, match=r"present: expected bool \(2, 3\) for .* got torch.float"):
        network(torch.zeros(2, 3, 4), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"present: expected bool \(2, 3\)"):
        entities.masked_max(torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
