"""LSTM and GRU with resets against the papers' recursions, each episode alone, in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_algo.networks.recurrent import Recurrent

D, H, L = 3, 4, 2
KINDS = ["lstm", "gru"]
Arrays = list[np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def cell(kind: str, x: np.ndarray, state: Arrays, w: Arrays) -> Arrays:
    """One step of one layer for one sequence, gate by gate."""
    input_part = [w[0][g * H : (g + 1) * H] @ x + w[2][g * H : (g + 1) * H] for g in range(4)]
    state_part = [
        w[1][g * H : (g + 1) * H] @ state[0] + w[3][g * H : (g + 1) * H] for g in range(4)
    ]
    if kind == "gru":
        reset = sigmoid(input_part[0] + state_part[0])
        keep = sigmoid(input_part[1] + state_part[1])
        content = np.tanh(input_part[2] + reset * state_part[2])
        return [(1 - keep) * content + keep * state[0]]
    both = [a + b for a, b in zip(input_part, state_part, strict=True)]
    memory = sigmoid(both[1]) * state[1] + sigmoid(both[0]) * np.tanh(both[2])
    return [sigmoid(both[3]) * np.tanh(memory), memory]


def episode_alone(
    network: Recurrent, kind: str, x: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Run one episode `[T, D]` from a state `[S]`: outputs `[T, H]` and the state after it."""
    parts = state.reshape(-1, L, H)
    weights = {name: p.detach().numpy() for name, p in network.core.named_parameters()}
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    states = [[part[layer] for part in parts] for layer in range(L)]
    outputs = []
    for step in x:
        for layer in range(L):
            w = [weights[f"{name}_l{layer}"] for name in names]
            if kind == "gru":  # so that the loop over four gates has something to read
                w = [np.concatenate([part, np.zeros_like(part[:H])]) for part in w]
            states[layer] = cell(kind, step, states[layer], w)
            step = states[layer][0]
        outputs.append(step)
    after = np.array([[states[layer][part] for layer in range(L)] for part in range(len(parts))])
    return np.array(outputs), after.ravel()


def expected(
    network: Recurrent,
    kind: str,
    x: np.ndarray,
    state: np.ndarray,
    begins: np.ndarray,
    length: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    outputs, after = np.zeros((*x.shape[:2], H)), np.zeros_like(state)
    for b in range(x.shape[1]):
        cuts = [0, *[t for t in range(1, length[b]) if begins[t, b]], length[b]]
        for start, end in itertools.pairwise(cuts):
            before = np.zeros_like(state[b]) if begins[start, b] else state[b]
            outputs[start:end, b], after[b] = episode_alone(network, kind, x[start:end, b], before)
    return outputs, after


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(KINDS))
def test_equals_every_episode_alone(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    num_steps, num_columns = rng.integers(1, 8), rng.integers(1, 5)
    torch.manual_seed(seed)
    network = Recurrent(kind, D, H, L).double()  # type: ignore[arg-type]
    x = rng.normal(size=(num_steps, num_columns, D))
    state = rng.normal(size=(num_columns, network.state_size))
    begins = rng.random((num_steps, num_columns)) < rng.choice([0.0, 0.2, 1.0])
    length = rng.integers(1, num_steps + 1, size=num_columns)
    want, want_after = expected(network, kind, x, state, begins, length)
    x[np.arange(num_steps)[:, None] >= length] = np.nan  # padding may hold anything
    arguments = [torch.tensor(a) for a in (x, state, begins, length)]
    with torch.no_grad():
        for run in (network, network._packed):
            outputs, after = run(*arguments)
            assert np.allclose(outputs.numpy(), want)
            assert np.allclose(after.numpy(), want_after)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_cudnn_equals_the_steps(kind: str) -> None:
    network = Recurrent(kind, D, H, L).cuda()  # type: ignore[arg-type]
    x, begins = torch.randn(50, 9, D).cuda(), (torch.rand(50, 9) < 0.1).cuda()
    length = torch.randint(1, 51, (9,)).cuda()
    state = torch.randn(9, network.state_size).cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):  # else its products have three digits
        got, want = (run(x, state, begins, length) for run in (network, network._step_by_step))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_may_be_cut_anywhere(kind: str) -> None:
    network = Recurrent(kind, D, H, L)  # type: ignore[arg-type]
    x, begins = torch.randn(9, 5, D), torch.rand(9, 5) < 0.2
    whole, after = network(x, network.initial(5), begins)
    state, parts = network.initial(5), []
    for start, end in ((0, 1), (1, 5), (5, 9)):
        outputs, state = network(x[start:end], state, begins[start:end])
        parts.append(outputs)
    assert torch.allclose(torch.cat(parts), whole, atol=1e-6)
    assert torch.allclose(state, after, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_have_the_same_gradients_and_none_crosses_a_beginning(kind: str) -> None:
    network = Recurrent(kind, D, H, L).double()  # type: ignore[arg-type]
    x = torch.randn(6, 2, D, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, network.state_size, dtype=torch.float64, requires_grad=True)
    begins = torch.zeros(6, 2, dtype=torch.bool)
    begins[3, 0] = begins[0, 1] = True
    inputs = (x, state, *network.parameters())
    gradients = []
    for run in (network, network._packed):
        outputs, after = run(x, state, begins, None)
        gradients.append(torch.autograd.grad(outputs[4:].sum() + after.sum(), inputs))
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))
    assert not gradients[0][0][:3, 0].any()
    assert gradients[0][0][3:, 0].all()
    assert not gradients[0][1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_leaks_into_no_gradient(kind: str) -> None:
    network = Recurrent(kind, D, H)  # type: ignore[arg-type]
    x = torch.randn(4, 2, D)
    x[2:, 0] = torch.nan
    length = torch.tensor([2, 4])
    for run in (network, network._packed):
        outputs, after = run(x, network.initial(2), torch.zeros(4, 2, dtype=torch.bool), length)
        gradients = torch.autograd.grad(outputs.sum() + after.sum(), list(network.parameters()))
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_gates_begin_orthogonal_and_an_lstm_remembers() -> None:
    network = Recurrent("lstm", 8, 8)
    forget = network.core.weight_hh_l0[8:16]
    assert torch.allclose(forget @ forget.T, torch.eye(8), atol=1e-5)
    bias = network.core.bias_ih_l0 + network.core.bias_hh_l0
    assert bias.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    assert not Recurrent("gru", 8, 8).core.bias_ih_l0.any()


def test_bad_input_is_refused() -> None:
    network = Recurrent("gru", D, H)
    x, state = torch.zeros(5, 2, D), torch.zeros(2, H)
    with pytest.raises(ValueError, match="kind: expected 'lstm' or 'gru', got 'rnn'"):
        Recurrent("rnn", D, H)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_layers: expected positive numbers, got 3, 4, 0"):
        Recurrent("gru", D, H, 0)
    with pytest.raises(ValueError, match=r"x: expected \[T, B, 3\], got shape \(5, 2, 4\)"):
        network(torch.zeros(5, 2, 4), state)
    with pytest.raises(ValueError, match=r"state: expected shape \(2, 4\), got \(1, 4\)"):
        network(x, state[:1])
    with pytest.raises(
        ValueError, match=r"begins: expected bool \(5, 2\), got torch.bool \(2, 5\)"
    ):
        network(x, state, torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"begins: expected bool \(5, 2\), got torch.float32"):
        network(x, state, torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"length: expected 1 to T=5 valid steps, got \[0, 5\]"):
        network(x, state, None, torch.tensor([0, 5]))
