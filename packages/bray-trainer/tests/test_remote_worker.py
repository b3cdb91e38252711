"""The trainer's own process: what it answers, and what happens when it dies."""

import os
import pickle
import signal
import sys
import uuid

import numpy as np
import pytest
from torch import nn

from bray_core import metrics, nested, protocols
from bray_core.errors import AlreadyExistsError, WorkerLostError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig

pytestmark = pytest.mark.ray

LAYOUT = Layout(nested.spec({"x": np.zeros(3, np.float32)}))


class Endless:
    layout = LAYOUT

    def pop(self, timeout_s=None):
        return Packed(LAYOUT, LAYOUT.empty(2))


class Counting(Trainer):
    goal = 0

    def loss(self, batch, step):
        if self.goal < 0:
            raise ValueError("my fault")
        return self.module(batch["x"]).square().mean(), {}

    def should_pause(self):
        return self.replays >= self.goal

    def set_goal(self, goal, *, by=0):
        self.goal = goal + by
        return self.replays

    def weight(self):
        return self.module.weight.detach().numpy().copy()

    def state_dict(self):
        return {"goal": self.goal}

    def load_state_dict(self, state):
        self.goal = state["goal"]


@pytest.fixture
def make(ray_cluster, tmp_path):
    import ray.cloudpickle

    from bray_trainer.remote import RemoteTrainer

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = []

    def make(name=None):
        def factory():
            config = TrainerConfig(checkpoint_every=5)
            return Counting(nn.Linear(3, 1), Endless(), config=config, directory=tmp_path)

        made.append(RemoteTrainer(name or f"t-{uuid.uuid4().hex[:8]}", factory, num_cpus=0))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def kill(trainer):
    (pid,) = trainer._pool.pids()
    os.kill(pid, signal.SIGKILL)
    trainer._pool.wait_ready(60)
    assert trainer._pool.pids() != [pid]


def test_the_same_methods_and_those_of_the_user(make):
    trainer = make()
    assert isinstance(trainer, protocols.TrainerProtocol)
    assert trainer.wait(0), "it stands still"
    assert trainer.progress()["replays"] == 0
    assert trainer.call("set_goal", 3, by=4) == 0
    trainer.start()
    assert trainer.wait(60)
    assert trainer.progress()["replays"] == 7
    assert trainer.call("set_goal", 10**9) == 7
    trainer.start()
    while trainer.progress()["replays"] == 7:
        assert not trainer.wait(0.02)
    trainer.stop()
    assert trainer.wait(0)
    assert trainer.progress()["replays"] > 7
    trainer.call("set_goal", -1)
    trainer.start()
    with pytest.raises(ValueError, match="my fault"):
        trainer.wait(60)
    trainer.stop()  # whoever waited has been told
    with pytest.raises(AlreadyExistsError, match=trainer._pool.name):
        make(trainer._pool.name)
    copy = pickle.loads(pickle.dumps(trainer))
    trainer.close()
    with pytest.raises(WorkerLostError):
        copy.wait(60)


@pytest.mark.long
def test_it_may_die_while_it_trains_or_stands_still(make, tmp_path):
    trainer = make()
    trainer.call("set_goal", 10**9)
    trainer.start()
    while not (saved := list(tmp_path.glob("replay-*.pt"))):
        assert not trainer.wait(0.02)
    before = trainer.progress()["replays"]
    kill(trainer)
    assert trainer.progress()["replays"] >= before, "the last figures, not those of a fresh one"
    assert not trainer.wait(0.05)
    reached = trainer.call("set_goal", 0)
    assert reached >= int(saved[0].stem.partition("-")[2]), "it resumed, though nobody had waited"
    assert trainer.wait(60)

    paused_at = trainer.progress()["replays"]
    kill(trainer)
    assert trainer.wait(0), "a pause is not ended by a death"
    assert trainer.progress()["replays"] == paused_at
    trainer.call("set_goal", 10**9)
    trainer.start()  # resumes, its goal too
    assert trainer.wait(60)
    assert trainer.progress()["replays"] == paused_at + 1

    trainer.call("set_goal", 10**9)
    trainer.start()
    assert not trainer.wait(0.05)
    kill(trainer)
    with pytest.raises(WorkerLostError, match="replaced before the stop: what came after its last"):
        trainer.stop()
    trainer.stop()


@pytest.mark.long
def test_it_begins_anew_also_where_it_is_being_replaced(make, tmp_path):
    trainer = make()
    trainer.call("set_goal", 10**9)
    trainer.start()
    while not list(tmp_path.glob("replay-*.pt")):
        assert not trainer.wait(0.02)
    os.kill(trainer._pool.pids()[0], signal.SIGKILL)
    anew = {"weight": np.full((1, 3), 50, np.float32), "bias": np.zeros(1, np.float32)}
    trainer.begin_anew(anew)
    trainer.wait(0)
    while trainer._lost_at is not None or trainer.call("weight").max() < 10:
        assert not trainer.wait(0.02)
    trainer.stop()


@pytest.mark.long
def test_it_begins_anew_also_where_it_is_lost_before_a_checkpoint_says_so(make, tmp_path):
    trainer = make()
    trainer.call("set_goal", 7)
    trainer.start()
    assert trainer.wait(60)
    anew = {"weight": np.full((1, 3), 50, np.float32), "bias": np.zeros(1, np.float32)}
    trainer.begin_anew(anew)
    kill(trainer)  # it was told, but there was no replay yet
    trainer.start()
    assert trainer.wait(60)
    assert trainer.progress()["replays"] == 8
    assert trainer.call("weight").max() > 10
    assert trainer._anew is None, "once"


@pytest.mark.long
def test_every_loss_is_counted_also_before_it_began_again(make, tmp_path):
    trainer = make()
    trainer.call("set_goal", 10**9)
    metrics.drain()
    trainer.start()
    while not list(tmp_path.glob("replay-*.pt")):
        assert not trainer.wait(0.02)
    kill(trainer)
    trainer._lose(["dead"])  # as `wait` finds it
    assert trainer._states()[0][0] == "new"
    trainer._count_losses(trainer._states())
    kill(trainer)  # before it began
    while trainer._lost_at is not None:
        assert not trainer.wait(0.02)
    trainer.stop()
    kill(trainer)  # while it stands still
    trainer.start()
    assert not trainer.wait(0.05)
    restarts = [s for s in metrics.drain() if s.name == "trainer/restarts"]
    assert sum(s.total for s in restarts) == 3
