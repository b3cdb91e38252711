"""The loop around the steps: waiting, stopping, pausing, errors, what is reported."""

import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested, protocols
from bray_core.errors import BrayError, ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Layout, Packed
from bray_core.process.held_interrupts import held_interrupts
from bray_trainer import Trainer, TrainerConfig

T = 3
SPEC = nested.spec(
    {
        "x": np.zeros((T, 2), np.float32),
        "policy_version": np.zeros(T, np.int64),
        "length": np.array(T, np.int32),
    }
)
LAYOUT = Layout(SPEC)


class Source:
    """A buffer that hands over what a test puts in; waits, and is closed, as real ones."""

    layout = LAYOUT

    def __init__(self, number=0):
        self.replays = [replay() for _ in range(number)]
        self.changed = threading.Condition()
        self.closed = False

    def put(self, packed):
        with self.changed:
            self.replays.append(packed)
            self.changed.notify_all()

    def pop(self, timeout_s=None):
        with self.changed:
            if not self.changed.wait_for(lambda: self.replays or self.closed, timeout_s):
                raise DeadlineError("nothing is there")
            if self.closed:
                raise ClosedError("closed")
            return self.replays.pop(0)

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Target:
    version = 5

    def publish(self, weights):
        self.version += 1
        return self.version


class Mean(Trainer):
    pause_after = 10**9

    def loss(self, batch, step):
        return self.module(batch["x"]).square().mean(), {"step": float(step)}

    def should_pause(self):
        return self.replays >= self.pause_after


def replay(versions=(0, 0), lengths=(T, T)):
    block = LAYOUT.empty(len(versions))
    views = LAYOUT.views(block)
    views["x"][...] = 1
    views["policy_version"][...] = np.array(versions)[:, None]
    views["length"][...] = lengths
    return Packed(LAYOUT, block)


def make(source, kind=Mean, model=None, directory=None, **settings):
    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    return kind(module, source, model=model, config=TrainerConfig(**settings), directory=directory)


def test_it_is_a_trainer():
    assert isinstance(make(Source()), protocols.TrainerProtocol)


def test_stop_is_quick_while_it_waits():
    trainer = make(Source())
    trainer.start()
    started = time.monotonic()
    trainer.stop()
    assert time.monotonic() - started < 2
    assert trainer.wait(0)


def test_stop_finishes_the_replay_at_hand(tmp_path):
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Mean):
        def loss(self, batch, step):
            entered.set()
            assert go_on.wait(30)
            return super().loss(batch, step)

    trainer = make(Source(3), Slow, directory=tmp_path)
    trainer.start()
    assert entered.wait(30)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(trainer.stop)
        assert trainer._stopping.wait(30)
        go_on.set()
        stopping.result(30)
    assert trainer.replays == 1
    assert [path.name for path in tmp_path.iterdir()] == ["replay-000000001.pt"]


def test_a_closed_buffer_ends_it(tmp_path):
    source = Source(2)
    trainer = make(source, directory=tmp_path)
    trainer.pause_after = 2
    trainer.start()
    assert trainer.wait(30)
    trainer.pause_after = 10**9
    trainer.start()
    assert not trainer.wait(0.01)
    source.close()
    assert trainer.wait(30)
    trainer.stop()
    with pytest.raises(ClosedError):
        trainer.run(1)


def test_no_replay_in_time_is_an_error_that_says_what_the_buffer_said():
    trainer = make(Source(), pop_timeout_s=0.01)
    message = r"trainer: no replay in 0.01 s: nothing is there"
    with pytest.raises(DeadlineError, match=message):
        trainer.run(1)
    trainer.start()
    with pytest.raises(DeadlineError, match=message):
        trainer.wait(30)


def test_an_interrupt_that_is_held_ends_a_wait_and_what_was_trained_is_kept(tmp_path):
    class Interrupted(Source):
        def pop(self, timeout_s=None):
            if not self.replays:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                self.pop = super().pop  # once
                raise DeadlineError("nothing is there")
            return super().pop(timeout_s)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    trainer = make(Interrupted(1), directory=tmp_path, pop_timeout_s=60)
    with pytest.raises(KeyboardInterrupt), held_interrupts() as held:
        trainer.run(3)
    signal.signal(signal.SIGINT, before)
    assert not held.is_torn
    trainer.run(0)
    assert [path.name for path in tmp_path.iterdir()] == ["replay-000000001.pt"]


def test_an_error_is_raised_to_each_who_waits_and_by_stop_only_if_nobody_did(caplog):
    class Faulty(Mean):
        def loss(self, batch, step):
            raise ValueError("my fault")

    seen, unseen = make(Source(1), Faulty), make(Source(1), Faulty)
    seen.start()
    for _ in range(2):
        with pytest.raises(ValueError, match="my fault"):
            seen.wait(30)
    seen.stop()
    assert "Traceback" in caplog.text
    unseen.start()
    assert unseen._thread.is_idle(30)
    with pytest.raises(ValueError, match="my fault"):
        unseen.stop()
    unseen.stop()
    unseen.start()  # and it may be tried again
    assert not unseen.wait(0.01)
    unseen.stop()


def test_what_one_replay_reports(recorded):
    trainer = make(Source(), model=Target(), max_grad_norm=1.0)
    trainer.buffer.put(replay(versions=(3, 5), lengths=(1, 3)))
    trainer.run(1)
    found = recorded()
    assert found["trainer/frames"] == [1, 4]
    assert found["trainer/policy_lag_versions"] == [1, 5 - (3 + 3 * 5) / 4]
    assert found["trainer/policy_version"] == [1, 6]
    assert found["trainer/step"] == [1, 0]
    for name in ("loss", "grad_norm", "wait_s", "train_s", "publish_s", "steps"):
        count, total = found[f"trainer/{name}"]
        assert count == 1
        assert total > 0
    progress = trainer.progress()
    assert (progress["lag"], progress["version"]) == (0.5, 6)
    assert progress["steps_per_s"] > 0


def test_the_time_of_a_long_wait_is_reported_whole(recorded):
    source = Source()
    trainer = make(source)
    trainer.pause_after = 1
    trainer.start()
    assert not trainer.wait(0.5)  # longer than a slice
    source.put(replay())
    assert trainer.wait(30)
    assert recorded()["trainer/wait_s"][1] > 0.45


def test_segments_without_lengths_or_versions_are_fine(recorded):
    layout = Layout(nested.spec({"x": np.zeros(2, np.float32)}))
    source = Source()
    source.put(Packed(layout, layout.empty(2)))
    make(source, model=Target()).run(1)
    assert not {"trainer/frames", "trainer/policy_lag_versions"} & set(recorded())


def test_a_replay_may_give_no_batch_and_terms_may_be_absent_from_some():
    class Sometimes(Mean):
        def handle(self, replay):
            return [*super().handle(replay)] * self.replays

        def loss(self, batch, step):
            return super().loss(batch, step)[0], {"odd": 2.0} if step % 2 else {}

    trainer = make(Source(4), Sometimes)
    trainer.run(1)
    expected = {"replays": 1, "steps": 0, "version": 0, "steps_per_s": 0}
    assert {k: v for k, v in trainer.progress().items() if "share_" not in k} == expected
    trainer.run(3)
    assert trainer.steps == 6
    assert trainer.progress()["odd"] == 2.0


def test_a_gradient_that_is_not_finite_is_not_published():
    class Root(Mean):
        def loss(self, batch, step):
            return self.module(batch["x"] * 0).sub(
                self.module.bias.detach()
            ).square().sqrt().mean(), {}

    target = Target()
    trainer = make(Source(1), Root, model=target, max_grad_norm=1.0)
    with pytest.raises(BrayError, match=r"not finite in replay 1: loss=0, grad_norm=nan"):
        trainer.run(1)
    assert target.version == 5


def test_a_loss_that_is_no_scalar_is_refused():
    class Wide(Mean):
        def loss(self, batch, step):
            return self.module(batch["x"]), {}

    with pytest.raises(SpecError, match=r"loss: expected a scalar, got shape \(2, 3, 1\): reduce"):
        make(Source(1), Wide).run(1)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (
            lambda loss: loss,
            r"loss: expected `return loss, terms`, got a Tensor: write `loss, \{\}`",
        ),
        (lambda loss: None, "loss: expected `return loss, terms`, got a NoneType"),
        (lambda loss: (loss, {}, 1), "loss: expected `return loss, terms`, got a tuple of 3"),
        (lambda loss: (loss, None), "terms by name, .* got a NoneType: write `loss, {}`"),
        (lambda loss: (loss, loss), "terms by name, .* got a Tensor: write `loss, {}`"),
        (lambda loss: (loss * math.nan, {"loss": 0.5}), "not finite in replay 1: loss=nan"),
        (lambda loss: ({"actor": loss}, {}), "loss: 'actor': expected one tensor"),
        (lambda loss: (0.5, {}), "loss: expected a tensor, got 0.5"),
        (lambda loss: (loss.detach(), {}), "depends on what is trained, got a constant: leave out"),
        (lambda loss: (loss, {"kl": "low"}), "loss: kl: expected a number, got 'low'"),
        (lambda loss: (loss, {"a b": 0.5}), "loss: expected a term's name of letters.*'a b'"),
        (lambda loss: (loss, {7 / 2: 0.5, "": 0.5}), "loss: expected a term's name .*, got ''"),
    ],
)
def test_what_a_loss_must_not_return_is_refused(returned, words):
    class Wrong(Mean):
        def loss(self, batch, step):
            return returned(self.module(batch["x"]).mean())

    with pytest.raises(BrayError, match=words):
        make(Source(1), Wrong).run(1)


def test_eval_switches_the_module_and_back():
    class Modes(Mean):
        def loss(self, batch, step):
            return torch.tensor(float(self.module.training)), {}

    trainer = make(Source(), Modes)
    trainer.module.train()
    assert trainer.eval({}) == {"loss": 0.0}
    assert trainer.module.training


def test_the_schedule_goes_by_replays():
    class Halving(Mean):
        def make_scheduler(self):
            return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)

    trainer = make(Source(4), Halving, learning_rate=1.0)
    trainer.run(4)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.25


def test_a_replay_that_becomes_no_batches_is_told():
    class Silent(Mean):
        def handle(self, replay):
            return None

    with pytest.raises(SpecError, match=r"Silent.handle: expected an iterable of .*got None"):
        make(Source(4), Silent).run(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, "device: 'gpu' is none of torch's"),
        ({"device": "cuda:77"}, r"device: got 'cuda:77', but torch finds \d+ CUDA devices"),
        ({"accumulate": 1.5}, r"accumulate: expected a whole number, got 1\.5"),
        ({"pop_timeout_s": 0}, "pop_timeout_s: expected more than 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: expected more than 0, got nan"),
        (
            {"precision": "bf61"},
            "expected one of fp32, bf16, fp16, got 'bf61', did you mean 'bf16'",
        ),
        ({"seed": -1}, r"seed: expected 0 to 9.0072e\+15, got -1"),
        ({"seed": 2**70}, r"seed: expected 0 to 9.0072e\+15, got 11805"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(Source(), **settings)


def test_arguments_of_another_kind():
    module = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match=r"module: expected a torch.nn.Module, got type"):
        Mean(nn.Linear, Source())
    with pytest.raises(ConfigError, match=r"buffer: expected a buffer with `pop`, got object"):
        Mean(module, object())
    with pytest.raises(ConfigError, match=r"model: expected a model with `publish`, got Linear"):
        Mean(module, Source(), model=module)
