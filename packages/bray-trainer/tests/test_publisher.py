"""Publishing beside the loop: the newest wins, a pause flushes, an error ends the run."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.errors import DeadlineError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.distributed.rank_worker import RankWorker

LAYOUT = Layout(nested.spec({"x": np.float32(0)}))


class Endless:
    layout = LAYOUT

    def __init__(self):
        self.versions = []

    def pop(self, timeout_s=None):
        return Packed(LAYOUT, LAYOUT.pack({"x": np.ones(2, "f4")}))

    def set_policy_version(self, version):
        self.versions.append(version)


class Target:
    """A model that may be slow, or fail."""

    def __init__(self, version=0, error=None):
        self.version = version
        self.error = error
        self.weights = []
        self.threads = set()
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def publish(self, weights):
        self.entered.set()
        assert self.may_go_on.wait(30)
        if self.error is not None:
            raise self.error
        self.threads.add(threading.current_thread().name)
        self.weights.append({name: array.copy() for name, array in weights.items()})
        self.version += 1
        return self.version

    def checkpoint(self):
        self.saved = self.version


class Stepping(Trainer):
    """Its only weight, without a step, is 0; each step adds 1."""

    pause_after = 10**9

    def make_optimizer(self):
        return torch.optim.SGD(self.module.parameters(), lr=1.0)

    def loss(self, batch, step):
        return -sum(parameter.sum() for parameter in self.module.parameters()), {}

    def should_pause(self):
        return self.replays >= self.pause_after


def one(value=0.0):
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def make(model, module=None, buffer=None, directory=None, **config):
    config = TrainerConfig(**config)
    module = module or one()
    return Stepping(module, buffer or Endless(), model=model, config=config, directory=directory)


def published(target, name="weight"):
    return [float(weights[name][0, 0]) for weights in target.weights]


def test_the_loop_goes_on_while_a_version_is_on_its_way_and_the_newest_is_next():
    target = Target()
    target.may_go_on.clear()
    trainer = make(target)
    trainer.pause_after = 6
    trainer.start()
    assert target.entered.wait(30)
    while trainer.replays < 6:
        assert not trainer.wait(0.005), "it waits at the pause until all is published"
    target.may_go_on.set()
    assert trainer.wait(30)
    first, last = published(target)
    assert last == 6, "the newest, at the pause"
    assert first < 6
    assert trainer.progress()["version"] == target.version == 2
    assert target.threads == {"trainer-publish"}


def test_a_pause_a_stop_a_run_and_a_checkpoint_have_the_newest_weights(tmp_path):
    target = Target()
    trainer = make(target, directory=tmp_path, checkpoint_every=5)
    for replays in (1, 2, 7):
        trainer.run(replays - trainer.replays)
        assert published(target)[-1] == replays
        assert target.saved == target.version
    trainer.pause_after = 9
    trainer.start()
    assert trainer.wait(30)
    assert published(target)[-1] == 9


def test_every_so_many_replays_or_seconds():
    target = Target()
    make(target, publish_every=3).run(7)
    assert published(target) == [3, 6]
    target = Target()
    make(target, publish_every=None, publish_interval_s=1e-9).run(4)
    assert published(target) == [1, 2, 3, 4], "`run` leaves out none, so that it is repeatable"
    target = Target()
    make(target, publish_every=None, publish_interval_s=1e9).run(4)
    assert published(target) == []


def test_what_was_trained_in_the_background_is_published_at_a_stop_and_a_pause():
    target = Target()
    trainer = make(target, publish_every=1000)
    trainer.pause_after = 2
    trainer.start()
    assert trainer.wait(30)
    assert published(target) == [2]
    trainer.stop()
    trainer.run(0)
    assert published(target) == [2], "nothing is newer"
    trainer.pause_after = 10**9
    trainer.start()
    while trainer.replays < 3:
        trainer.wait(0.01)
    trainer.stop()
    assert published(target) == [2, trainer.replays]
    assert trainer.policy_version == target.version == 2


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_one_in_the_place_of_a_lost_trainer_publishes_at_once(tmp_path, has_checkpoint):
    """Who played the replay that was lost with it waits for a version, and plays none before."""
    target = Target()
    first = make(target, directory=tmp_path)
    first.run(2, checkpoint=has_checkpoint)
    second = RankWorker(lambda: make(target, directory=tmp_path), 0, 1, None, 30.0)
    assert second.replace() == "training"
    assert second.stop() == "paused"
    begun = 2 if has_checkpoint else 0
    assert published(target)[2] == begun
    assert len(set(published(target)[3:])) == len(published(target)[3:]), "once"


@pytest.mark.parametrize("is_waiting", [False, True])
def test_what_publishing_fails_with_ends_the_run(is_waiting):
    class Lockstep(Endless):
        """Has one replay a version, so that without a version none comes."""

        popped = 0

        def pop(self, timeout_s=None):
            if is_waiting and self.popped > target.version:
                raise DeadlineError("waits for a version")
            self.popped += 1
            return super().pop(timeout_s)

    target = Target(error=ValueError("disk full"))
    trainer = make(target, buffer=Lockstep())
    for _ in range(2):
        trainer.start()
        with pytest.raises(ValueError, match="disk full"):
            trainer.wait(30)
        trainer.buffer.popped = 0
    with pytest.raises(ValueError, match="disk full"):
        trainer.run(1)


def test_each_module_goes_to_its_own_model():
    actor, critic = Target(3), Target(8)
    trainer = make(
        {"actor": actor, "critic": critic},
        {"actor": one(1.0), "critic": one(10.0), "teacher": one(100.0)},
    )
    trainer.run(1)
    assert (published(actor), published(critic)) == ([2.0], [11.0])
    assert trainer.progress()["version"] == 4, "the first one's"


def test_buffers_are_told_of_each_version():
    target, buffer = Target(7), Endless()
    trainer = make(target, buffer=buffer)
    trainer.run(1)
    trainer.run(1)
    assert buffer.versions == [7, 8, 9]


def test_what_is_published_is_a_copy_of_one_moment_whatever_its_dtypes():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    target = Target()
    trainer = make(target, module)
    trainer.run(1)
    for name, tensor in module.state_dict().items():
        array = target.weights[0][name]
        assert array.dtype == tensor.numpy().dtype
        assert np.array_equal(array, tensor.numpy())
