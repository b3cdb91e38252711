"""Steps as CUDA graphs: the same weights as without, and what is not captured."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.step_graphs import StepGraphs

GRAPHED = 16
"""Rows of a batch that comes often."""
REPLAYS = 12
"""More than a graph waits for."""


class Ready:
    """A buffer of replays that are the same in each run."""

    def __init__(self, sizes):
        self.sizes, self.taken = sizes, 0

    def pop(self, timeout_s=None):
        size = self.sizes[self.taken % len(self.sizes)]
        rng = np.random.default_rng(self.taken)
        self.taken += 1
        tree = {
            "x": rng.normal(size=(size, 6)).astype(np.float32),
            "y": rng.normal(size=size).astype(np.float32),
        }
        layout = Layout(nested.spec({name: leaf[0] for name, leaf in tree.items()}))
        return Packed(layout, layout.pack(tree))


def network(*more):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), *more, nn.Linear(32, 1)]
    return nn.Sequential(*layers)


class Regression(Trainer):
    """Its loss reads nothing but tensors."""

    repeats = True

    def loss(self, batch, step):
        error = (self.module(batch["x"])[..., 0] - batch["y"]).square()
        return error.mean(), {"most": error.max()}

    def is_repeatable(self, batch):
        return self.repeats


class Waiting(Regression):
    """Chooses by a value, for which the CPU has to wait."""

    def loss(self, batch, step):
        loss, terms = super().loss(batch, step)
        return (loss if float(batch["x"].sum()) > 0 else 2 * loss), terms


def trained(kind=Regression, *, sizes=(GRAPHED,), repeats=True, module=None, **config):
    """Train on some replays; return the trainer and its figures."""
    config = TrainerConfig(device="cuda", seed=0, max_grad_norm=0.5, **config)
    trainer = kind(module or network(), Ready(sizes), config=config)
    trainer.repeats = repeats
    trainer.run(REPLAYS * len(sizes), checkpoint=False)
    return trainer


def graphs_of(trainer):
    """Return the graphs by the rows of their batch."""
    found = trainer._stepper._graphs._graphs
    return {shape[0][0][1][0]: graph for shape, graph in found.items()}


def assert_same_weights(one, other, **close):
    for name, value in one.module.state_dict().items():
        if "running" in name or "num_batches" in name:
            continue  # the batch that is compared as it is captured counts three times there
        np.testing.assert_allclose(
            value.cpu(), other.module.state_dict()[name].cpu(), err_msg=name, **close
        )


def test_without_a_graph_the_loss_itself_is_asked():
    """What no graph can be made of is tried once, and leaves no gradients."""
    weight = nn.Parameter(torch.ones(3))
    asked = []

    def backward(batch):
        asked.append(batch)
        if len(asked) > 1:
            raise RuntimeError("not in a graph")
        weight.grad = torch.ones(3)
        return {}, {}

    graphs = StepGraphs(backward, [weight])
    assert [graphs.run({"x": torch.ones(2)}) for _ in range(8)] == [None] * 8
    assert len(asked) <= 2
    assert weight.grad is None
    assert graphs.run({"x": "a word"}) is None


class Backward:
    """The gradient of a linear loss, computed again by what stands for a graph."""

    def __init__(self):
        self.weight = nn.Parameter(torch.ones(3))
        self.calls, self.batch = 0, None

    def __call__(self, batch):
        self.calls, self.batch = self.calls + 1, batch
        loss = (batch["x"] @ self.weight).sum()
        loss.backward()
        return {"": loss}, {"mean": batch["x"].mean()}


class Graph:
    """Stands for `torch.cuda.CUDAGraph`: its replay computes into the memory of the capture."""

    backward = None
    is_empty = False

    def capture_begin(self, **options):
        pass

    def capture_end(self):
        """What is kept is what the last call computed."""
        self.gradient, self.batch = self.backward.weight.grad, self.backward.batch

    def replay(self):
        if not self.is_empty:
            self.gradient.copy_(self.batch["x"].sum(0))


@pytest.fixture
def pretended(monkeypatch):
    class Stream:
        def wait_stream(self, other):
            pass

        def synchronize(self):
            pass

    backward = Backward()
    monkeypatch.setattr(Graph, "backward", backward)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return backward


def test_a_shape_is_captured_once_and_replayed_on_each_batch(pretended):
    """Not before it came four times; of more than four shapes the others go on without."""
    graphs = StepGraphs(pretended, [pretended.weight])
    for rows in range(1, 8):
        for time in range(6):
            batch = {"x": torch.rand(rows, 3)}
            found = graphs.run(batch)
            assert (found is not None) == (time >= 3 and rows <= 4)
            if found is not None:
                torch.testing.assert_close(pretended.weight.grad, batch["x"].sum(0))
            else:
                assert pretended.weight.grad is None
            pretended.weight.grad = None
    assert pretended.calls == 4 * 3, "to compare with, to warm up, and to capture"


def test_what_captured_nothing_is_not_used(pretended, monkeypatch):
    """Such as kernels that were launched on another device."""
    monkeypatch.setattr(Graph, "is_empty", True)
    graphs = StepGraphs(pretended, [pretended.weight])
    assert [graphs.run({"x": torch.ones(2, 3)}) for _ in range(8)] == [None] * 8
    assert pretended.weight.grad is None
    assert pretended.calls == 3


@pytest.mark.parametrize("repeats", [True, False])
def test_a_graph_stands_for_the_loss_where_the_trainer_says_so(repeats):
    """Its gradients are stepped on, and its losses and terms are the figures."""

    class Graphs:
        def run(self, batch):
            for parameter in trainer.module.parameters():
                parameter.grad = torch.ones_like(parameter)
            return {"": torch.tensor(7.0)}, {"most": torch.tensor(8.0)}

    trainer = Regression(network(), Ready([GRAPHED]), config=TrainerConfig(learning_rate=0.1))
    trainer.repeats, trainer._stepper._graphs = repeats, Graphs()
    trainer._stepper._is_plain = False  # on the CPU it would ask `gradients`
    before = trainer.module[0].weight.detach().clone()
    trainer.run(1, checkpoint=False)
    is_theirs = trainer.progress()["loss"] == 7.0 and trainer.progress()["most"] == 8.0
    assert is_theirs == repeats
    fell = torch.isclose(before - trainer.module[0].weight, torch.tensor(0.1), atol=1e-3)
    assert bool(fell.all()) == repeats, "Adam's first step is the rate, against the gradient"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("sizes", [(GRAPHED,), (GRAPHED, 7, GRAPHED)])
def test_weights_and_figures_are_those_without_graphs(precision, sizes):
    found = trained(sizes=sizes, precision=precision)
    wanted = trained(sizes=sizes, precision=precision, repeats=False)
    assert set(graphs_of(found)) == set(sizes)
    assert not graphs_of(wanted)
    close = {"atol": 2e-4} if precision == "fp32" else {"atol": 2e-2}
    assert_same_weights(found, wanted, **close)
    figures = (found.progress(), wanted.progress())
    for name in ("loss", "most", "grad_norm"):
        assert figures[0][name] == pytest.approx(figures[1][name], rel=0.02), name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Waiting, Regression])
def test_what_waits_or_draws_goes_on_as_it_is(kind):
    more = [] if kind is Waiting else [nn.Dropout(0.5)]
    trainer = trained(kind, module=network(*more))
    assert not graphs_of(trainer)
    assert trainer._stepper._graphs._is_refused, "it was tried, once"
    if kind is Waiting:
        assert_same_weights(trainer, trained(kind, repeats=False), atol=2e-4)


@pytest.mark.gpu
def test_weights_that_are_set_elsewhere_are_those_of_the_next_step():
    """`begin_anew` writes into the parameters; other memory for them means another graph."""
    weights = {name: value.numpy().copy() for name, value in network().state_dict().items()}
    trainers = [trained(), trained(repeats=False)]
    for trainer in trainers:
        trainer.begin_anew(weights)
        trainer.run(2, checkpoint=False)
        for parameter in trainer.module.parameters():
            parameter.data = parameter.data.clone()
        trainer.run(REPLAYS, checkpoint=False)
    assert len(trainers[0]._stepper._graphs._graphs) == 2
    assert_same_weights(*trainers, atol=5e-4)
