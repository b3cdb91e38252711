"""Where the time goes, as a user sees it; evaluation; compiled modules."""

import random
import time

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.errors import ClosedError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.reporting.loop_timer import LoopTimer

LAYOUT = Layout(nested.spec({"x": np.zeros(2, np.float32)}))


class Constant:
    layout = LAYOUT

    def __init__(self, value=1.0, limit=10**9):
        self.value = value
        self.limit = limit

    def pop(self, timeout_s=None):
        if not self.limit:
            raise ClosedError("no more")
        self.limit -= 1
        return Packed(LAYOUT, LAYOUT.pack({"x": np.full((4, 2), self.value, "f4")}))


class Mean(Trainer):
    def loss(self, batch, step):
        return self.module(batch["x"]).square().mean(), {"x": batch["x"].mean()}


class Target:
    version = 0

    def publish(self, weights):
        return 1

    def checkpoint(self):
        pass


def make(kind=Mean, **arguments):
    torch.manual_seed(0)
    config = TrainerConfig(seed=3, **arguments.pop("config", {}))
    module = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5))
    return kind(module, Constant(), config=config, **arguments)


def test_each_phase_of_a_replay_is_recorded(recorded, tmp_path):
    trainer = make(
        model=Target(),
        directory=tmp_path,
        eval_buffer=Constant(),
        config={"checkpoint_every": 1, "eval_every": 1},
    )
    trainer.run(3)
    found = recorded()
    for phase in ("wait", "handle", "backward", "optimizer", "snapshot", "eval", "checkpoint"):
        count, total = found[f"trainer/{phase}_s"]
        assert count == 3, phase
        assert total > 0
    inside = sum(found[f"trainer/{phase}_s"][1] for phase in ("handle", "backward", "optimizer"))
    assert inside <= found["trainer/train_s"][1]
    shares = {k: v for k, v in trainer.progress().items() if k.startswith("share_")}
    assert set(shares) == {
        f"share_{name}"
        for name in ("wait", "handle", "backward", "optimizer", "publish", "eval", "checkpoint")
    }
    assert sum(shares.values()) == pytest.approx(1)


def test_the_largest_phase_is_said_first(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    timer = LoopTimer(torch.device("cpu"))
    assert timer.summary() == "nothing was trained on yet"
    assert timer.shares() == {}
    with timer.on_host("wait"):
        for _ in range(2):
            time.perf_counter()
    with timer.on_device("backward"):
        pass
    timer.finish_replay()
    assert timer.summary() == "limited by waiting for data 75%; forward and backward 25%"
    assert timer.shares()["share_wait"] == 0.75
    for _ in range(200):  # what was long ago does not count
        with timer.on_device("optimizer"):
            pass
        timer.finish_replay()
    assert timer.shares()["share_optimizer"] > 0.99


def test_a_trainer_says_what_limits_it():
    class Slow(Mean):
        def handle(self, replay):
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
            yield from super().handle(replay)

    trainer = make(Slow)
    trainer.run(2)
    assert trainer.summary().startswith("limited by making batches of replays")


def test_evaluation_on_its_own_buffer_leaves_training_as_it_was(recorded):
    class Drawing(Mean):
        def eval(self, batch):
            assert not torch.is_grad_enabled() or self.module.training
            figures = super().eval(batch)
            torch.rand(5)
            random.random()
            np.random.rand(3)
            return figures

    plain, evaluated = (
        make(
            Drawing,
            config={"eval_every": 2},
            **({"eval_buffer": Constant(7.0, limit=2)} if is_evaluated else {}),
        )
        for is_evaluated in (False, True)
    )
    for trainer in (plain, evaluated):
        trainer.run(7)  # the third finds its buffer closed
    assert evaluated.progress()["eval_x"] == 7
    assert evaluated.progress()["eval_loss"] > 0
    assert recorded()["trainer/eval_x"] == [2, 14]
    assert evaluated.progress()["loss"] == plain.progress()["loss"]
    for one, other in zip(plain.module.parameters(), evaluated.module.parameters(), strict=True):
        assert torch.equal(one, other)


def test_batches_of_an_evaluation_are_averaged():
    class Two(Mean):
        def handle_eval(self, replay):
            yield 1.0
            yield 3.0

        def eval(self, batch):
            return {"value": batch}

    trainer = make(Two, eval_buffer=Constant(), config={"eval_every": 1})
    trainer.run(1)
    assert trainer.progress()["eval_value"] == 2.0


def test_compile_compiles_the_modules_forward(monkeypatch):
    seen = []

    def compiled(function, *args, **kwargs):
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    trainer = make(config={"compile": True})
    trainer.run(1)
    assert len(seen) == 1
    assert list(trainer.module.state_dict()) == ["0.weight", "0.bias"], "the names stay"


@pytest.mark.slow
def test_a_compiled_module_learns_the_same():
    plain, compiled = (make(config={"compile": c, "learning_rate": 0.01}) for c in (False, True))
    for trainer in (plain, compiled):
        trainer.module[1].p = 0.0
        trainer.run(20)
    for one, other in zip(plain.module.parameters(), compiled.module.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.gpu
def test_transfers_overlap_with_the_step_on_a_gpu():
    """In a profiler's trace a copy to the device runs while a kernel of the step does."""
    from torch.profiler import ProfilerActivity, profile

    layout = Layout(nested.spec({"x": np.zeros(1 << 20, np.float32)}))

    ready = Packed(layout, layout.pack({"x": np.ones((64, 1 << 20), "f4")}))

    class Large(Constant):
        def pop(self, timeout_s=None):
            return ready

    class Busy(Trainer):
        def loss(self, batch, step):
            hidden = self.module.weight
            for _ in range(200):
                hidden = torch.tanh(hidden @ self.module.weight)
            return hidden.mean() + batch["x"].mean() * 0, {}

    trainer = Busy(nn.Linear(2048, 2048), Large(), config=TrainerConfig(device="cuda", prefetch=2))
    trainer.run(3)
    kinds = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
    with profile(activities=kinds, acc_events=True) as trace:  # else it warns
        trainer.run(5)
    spans = {"copy": [], "kernel": []}
    for event in trace.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kind = "copy" if "HtoD" in event.name else "kernel"
            spans[kind].append((event.time_range.start, event.time_range.end))
    overlap = sum(
        max(0, min(end, kernel_end) - max(start, kernel_start))
        for start, end in spans["copy"]
        for kernel_start, kernel_end in spans["kernel"]
    )
    assert overlap > 0.5 * sum(end - start for start, end in spans["copy"])
