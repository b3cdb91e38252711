"""The gated Transformer-XL: parts against plain loops, and cutting a sequence changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bray_algo.networks.transformer_xl import (
    GatedTransformerXL,
    GRUGate,
    Memory,
    RelativeAttention,
)

D, HEADS = 4, 2


def network_of(memory_length: int, seed: int = 0, num_layers: int = 2) -> GatedTransformerXL:
    torch.manual_seed(seed)
    network = GatedTransformerXL(3, D, num_layers, HEADS, memory_length).double()
    for parameter in network.parameters():  # so that every part matters
        nn.init.normal_(parameter, std=0.7)
    return network


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-10)


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def test_relative_attention_against_loops() -> None:
    torch.manual_seed(0)
    memory_length, num_steps = 3, 4
    layer = RelativeAttention(D, HEADS, memory_length).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    both = torch.randn(1, memory_length + num_steps, D, dtype=torch.float64)
    visible = torch.rand(1, num_steps, memory_length + num_steps) < 0.5
    distance = torch.zeros(num_steps, memory_length + num_steps, dtype=torch.long)
    want = np.zeros((num_steps, D))
    size = D // HEADS
    for t in range(num_steps):
        for j in range(memory_length + num_steps):
            distance[t, j] = memory_length + t - j
            visible[0, t, j] &= 0 <= memory_length + t - j <= memory_length
        visible[0, t, memory_length + t] = True
        mixed = np.zeros(D)
        for head in range(HEADS):
            own, scores = slice(head * size, (head + 1) * size), {}
            query = (array(layer.query.weight) @ array(both[0, memory_length + t]))[own]
            for j in np.flatnonzero(visible[0, t].numpy()):
                far = memory_length + t - j
                waves = [far / 10_000 ** (i / D) for i in range(0, D, 2)]
                r = np.array([*map(math.sin, waves), *map(math.cos, waves)])
                key = (array(layer.key.weight) @ array(both[0, j]))[own]
                place = (array(layer.position.weight) @ r)[own]
                scores[j] = (query + array(layer.content_bias)[head]) @ key
                scores[j] += (query + array(layer.position_bias)[head]) @ place
            total = sum(math.exp(s / math.sqrt(size)) for s in scores.values())
            for j, score in scores.items():
                value = array(layer.value.weight) @ array(both[0, j]) + array(layer.value.bias)
                mixed[own] += math.exp(score / math.sqrt(size)) / total * value[own]
        want[t] = array(layer.output.weight) @ mixed + array(layer.output.bias)
    got = layer(both, visible, distance)
    assert np.allclose(array(got)[0], want, atol=1e-6)  # waves are float32


def test_the_gate_against_its_equations() -> None:
    gate = GRUGate(3, bias=2.0).double()
    x, y = torch.randn(2, 3, dtype=torch.float64)
    w_r, w_z, w_g = array(gate.from_y.weight).reshape(3, 3, 3)
    u_r, u_z = array(gate.from_x.weight).reshape(2, 3, 3)
    a, b = array(x), array(y)
    r = 1 / (1 + np.exp(-(w_r @ b + u_r @ a)))
    z = 1 / (1 + np.exp(-(w_z @ b + u_z @ a - 2.0)))
    h = np.tanh(w_g @ b + array(gate.from_reset.weight) @ (r * a))
    assert np.allclose(array(gate(x, y)), (1 - z) * a + z * h)
    shut = GRUGate(3, bias=50.0)
    assert torch.allclose(shut(x.float(), y.float()), x.float())


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_cutting_a_sequence_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory_length, num_steps = int(rng.integers(1, 8)), 8
    network = network_of(memory_length, seed)
    x = torch.tensor(rng.normal(size=(num_steps, 3, 3)))
    begins = torch.tensor(rng.random((num_steps, 3)) < rng.choice([0.0, 0.2]))
    with torch.no_grad():
        whole, after = network(x, network.initial(3), begins)
        memory, parts, start = network.initial(3), [], 0
        while start < num_steps:
            end = start + int(rng.integers(1, 4))
            outputs, memory = network(x[start:end], memory, begins[start:end])
            parts.append(outputs)
            start = end
    assert close(torch.cat(parts), whole)
    assert torch.equal(memory.valid, after.valid)
    assert close(memory.steps[_rows(memory)], after.steps[_rows(after)])


def _rows(memory: Memory) -> torch.Tensor:
    return memory.valid[:, None].expand(memory.steps.shape[:3])


def test_an_episode_sees_nothing_of_the_one_before() -> None:
    network = network_of(memory_length=10)
    x = torch.randn(6, 1, 3, dtype=torch.float64)
    begins = torch.zeros(6, 1, dtype=torch.bool)
    begins[2] = True
    with torch.no_grad():
        outputs, memory = network(x, network.initial(1), begins)
        alone, after = network(x[2:], network.initial(1))
    assert close(outputs[2:], alone)
    assert memory.valid.tolist() == after.valid.tolist() == [[False] * 6 + [True] * 4]


def test_within_the_memory_everything_is_seen_and_beyond_nothing() -> None:
    network = network_of(memory_length=2, num_layers=1)
    x = torch.randn(6, 1, 3, dtype=torch.float64, requires_grad=True)
    outputs, _ = network(x, network.initial(1))
    (gradient,) = torch.autograd.grad(outputs[4].sum(), x)
    seen = gradient.abs().sum((1, 2)) > 0
    assert seen.tolist() == [False, False, True, True, True, False]


def test_ragged_columns_keep_their_own_last_steps() -> None:
    network = network_of(memory_length=3)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    x[2:, 0] = torch.nan
    outputs, memory = network(x, network.initial(2), None, torch.tensor([2, 5]))
    short, after = network(x[:2, :1], network.initial(1))
    assert close(outputs[:2, :1], short)
    assert not outputs[2:, 0].any()
    assert close(memory.steps[:1], after.steps)
    assert memory.valid.tolist() == [[False, True, True], [True, True, True]]
    gradients = torch.autograd.grad(outputs.sum(), list(network.parameters()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert not memory.steps.requires_grad


def test_a_shut_gate_leaves_every_layer_the_identity() -> None:
    network = GatedTransformerXL(3, D, 3, HEADS, 2, gate_bias=1e3)
    x = torch.randn(4, 2, 3)
    outputs, memory = network(x, network.initial(2))
    assert torch.allclose(outputs, network.entry(x))
    assert torch.allclose(memory.steps[:, 2].transpose(0, 1), network.entry(x[2:]))


def test_bad_input_is_refused() -> None:
    network = GatedTransformerXL(3, D, 1, HEADS, 2)
    memory = network.initial(2)
    with pytest.raises(ValueError, match="memory_length: expected positive numbers, got 3, 1, 0"):
        GatedTransformerXL(3, D, 1, HEADS, 0)
    with pytest.raises(ValueError, match="an even size that the heads divide, got 5, 1"):
        GatedTransformerXL(3, 5, 1, 1, 1)
    with pytest.raises(ValueError, match=r"x: expected \[T, B, 3\], got shape \(5, 2, 4\)"):
        network(torch.zeros(5, 2, 4), memory)
    with pytest.raises(ValueError, match=r"memory.steps: expected shape \(1, 1, 2, 4\), got \(2"):
        network(torch.zeros(5, 1, 3), memory)
    with pytest.raises(ValueError, match=r"begins: expected bool \(5, 2\), got torch.bool \(5,\)"):
        network(torch.zeros(5, 2, 3), memory, torch.zeros(5, dtype=torch.bool))
