"""Forwards as CUDA graphs: what they answer, when weights change, and what is not captured."""

import numpy as np
import pytest
import torch

from bray_model import Model, ModelConfig
from bray_model.engines.forward_graphs import ForwardGraphs

TIMES = 8
"""Calls of one size: more than a graph waits for."""


class Draws(torch.nn.Module):
    """Answers at random."""

    def forward(self, rows):
        return rows + torch.rand_like(rows)


class Waits(torch.nn.Module):
    """Chooses by a value, for which the CPU has to wait."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, rows):
        return self.linear(rows) if float(rows.sum()) > 0 else -self.linear(rows)


class Named(torch.nn.Module):
    """Has inputs and outputs by name, of several types, and normalises."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.table = torch.nn.Embedding(5, 3)
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, rows):
        seen = self.norm(rows["numbers"]) + self.table(rows["kind"])
        return {"logits": self.linear(seen).float(), "best": self.linear(seen).argmax(-1)}


def rows_of(rng, count):
    numbers = rng.normal(size=(count, 3)).astype(np.float32)
    return {"numbers": numbers, "kind": rng.integers(0, 5, count)}


def graphs_of(model):
    return model._runtime.definition.engine._graphs._graphs


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which captures it")
def test_without_a_gpu_the_forward_itself_answers():
    asked = []
    graphs = ForwardGraphs(asked.append, [2])
    assert [graphs.run((np.zeros((size, 3), np.float32),)) for size in [1] + [2] * TIMES] == (
        [None] * (1 + TIMES)
    )
    assert not asked
    assert graphs._graphs == {2: None}, "it is tried once"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_answers_as_the_forward_with_each_version(precision):
    rng = np.random.default_rng(0)
    config = ModelConfig(
        device="cuda", pad_to=(4, 16), max_batch_size=16, precision=precision, cuda_graphs=True
    )
    with (
        Model(Named(), rows_of(rng, 2), config=config) as model,
        Model(Named(), rows_of(rng, 2)) as wanted,
    ):
        wanted.publish(model.weights()[1])
        for time in range(3 * TIMES):
            rows = rows_of(rng, (3, 16, 4, 9)[time % 4])
            got, want = model(rows, batch=True), wanted(rows, batch=True)
            close = {"atol": 1e-3} if precision == "fp32" else {"atol": 0.1, "rtol": 0.05}
            np.testing.assert_allclose(got["logits"], want["logits"], **close)
            assert got["best"].dtype == want["best"].dtype
            if time % TIMES == TIMES - 1:
                weights = {name: 0.5 * value for name, value in model.weights()[1].items()}
                kinds = {name: value.dtype for name, value in wanted.weights()[1].items()}
                weights = {name: value.astype(kinds[name]) for name, value in weights.items()}
                model.publish(weights)
                wanted.publish(weights)
        assert all(graphs_of(model).values())
        assert sorted(graphs_of(model)) == [4, 16]


@pytest.mark.gpu
@pytest.mark.parametrize("module", [Draws, Waits])
def test_what_draws_or_waits_goes_on_as_it_is(module):
    torch.manual_seed(0)
    with Model(
        module(),
        np.ones((1, 3), np.float32),
        config=ModelConfig(device="cuda", pad_to=(4,), cuda_graphs=True),
    ) as model:
        answers = [model(np.full((4, 3), sign, np.float32), batch=True) for sign in [1, -1] * TIMES]
        assert graphs_of(model) == {4: None}
    if module is Draws:
        assert len({answer.tobytes() for answer in answers}) == len(answers)
    else:
        assert len({answer.tobytes() for answer in answers}) == 2, "each sign has its own"
    # A capture that failed must not keep memory that other streams have used.
    held = torch.cuda.memory_allocated()
    other = torch.cuda.Stream()
    for _ in range(20):
        block = torch.ones(2**24, device="cuda")
        block.record_stream(other)
        del block
    torch.cuda.synchronize()
    torch.ones(2**24, device="cuda")  # it looks at what can be freed
    assert torch.cuda.memory_allocated() < held + 8 * 2**26


@pytest.mark.gpu
def test_several_threads_and_a_trainer_beside():
    """A graph is captured while another thread computes and allocates."""
    import threading

    is_over = threading.Event()
    module = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    copies, failures = [], []

    def train():
        try:
            weight = torch.randn(512, 512, device="cuda", requires_grad=True)
            while not is_over.is_set():
                (weight @ torch.ones(512, 512, device="cuda")).tanh().sum().backward()
                copies.append(float(weight.grad.abs().mean()))
                weight.grad = None
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(6):
            config = ModelConfig(
                device="cuda", pad_to=(1, 2, 4, 8, 16, 32), max_batch_size=32, cuda_graphs=True
            )
            with Model(module, np.ones((1, 3), np.float32), config=config) as model:
                for size in (1, 2, 4, 8, 16, 32) * TIMES:
                    model(np.ones((size, 3), np.float32), batch=True)
                assert all(graphs_of(model).values())
    finally:
        is_over.set()
        thread.join()
    assert not failures
    assert copies
