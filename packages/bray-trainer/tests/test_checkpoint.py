"""Checkpoints: whole or absent, and what is in them comes back."""

import collections
import os
import random
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from bray_core import nested
from bray_core.errors import BrayError, CapacityError, ConfigError, FormatError, SpecError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig
from bray_trainer.checkpoints import checkpoint, random_state

LAYOUT = Layout(nested.spec({"x": np.zeros(2, np.float32)}))


class Endless:
    layout = LAYOUT

    def pop(self, timeout_s=None):
        return Packed(LAYOUT, LAYOUT.pack({"x": np.ones((4, 2), np.float32)}))


class Noisy(Trainer):
    """Has dropout, momentum, a schedule, a running mean, and a state of its own."""

    seen = ()

    def loss(self, batch, step):
        loss = (self.module(batch["x"]) - 1).square().mean()
        self.seen = (*self.seen, loss.item())
        return loss, {}

    def make_optimizer(self):
        return torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)

    def make_scheduler(self):
        return torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def make(directory, width=3, kind=Noisy, **settings):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Dropout(0.5))
    config = TrainerConfig(**{"seed": 7, **settings})
    return kind(module, Endless(), config=config, directory=directory)


def rewrite(path, change):
    """Write a checkpoint again, changed."""
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def test_a_checkpoint_has_a_format_and_one_without_is_read(tmp_path):
    make(tmp_path).run(2)
    (path,) = tmp_path.glob("*.pt")
    assert torch.load(path, weights_only=True)["format"] == checkpoint.FORMAT
    rewrite(path, lambda state: state.pop("format"))
    trainer = make(tmp_path)
    trainer.run(1)
    assert trainer.replays == 3
    assert len(trainer.seen) == 3


def test_a_checkpoint_of_a_newer_format_is_refused_and_stays(tmp_path):
    make(tmp_path, checkpoint_every=1).run(2)
    newest = max(tmp_path.glob("*.pt"))
    rewrite(newest, lambda state: state.update(format=99))
    before = newest.read_bytes()
    trainer = make(tmp_path)
    words = rf"{newest}: has format 99, this version reads up to 1: a newer version of bray wrote"
    with pytest.raises(FormatError, match=words):
        trainer.run(1)  # the checkpoint before is whole, and not what the user means
    assert newest.read_bytes() == before
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_a_file_that_is_no_checkpoint_is_passed_over(tmp_path, caplog):
    make(tmp_path, checkpoint_every=1).run(2)
    torch.save([1, 2], max(tmp_path.glob("*.pt")))
    trainer = make(tmp_path)
    trainer.run(0)
    assert trainer.replays == 1
    assert "expected a checkpoint's dict, got list" in caplog.text


def test_a_schedule_that_is_new_begins_and_one_that_is_gone_is_forgotten(tmp_path, caplog):
    class Constant(Noisy):
        def make_scheduler(self):
            return None

    def rate_after(kind, replays):
        made = make(tmp_path, kind=kind)
        made.run(replays)
        return made.optimizer.param_groups[0]["lr"]

    assert rate_after(Constant, 3) == 0.1
    assert rate_after(Noisy, 2) == pytest.approx(0.1 * 0.9**2)
    assert "the checkpoint has no schedule of the learning rate: it begins" in caplog.text
    assert rate_after(Noisy, 1) == pytest.approx(0.1 * 0.9**3)
    assert rate_after(Constant, 1) == 0.1


def test_an_interrupted_run_has_the_losses_of_a_whole_one(tmp_path):
    whole = make(None)
    whole.run(12)
    for _ in range(4):
        part = make(tmp_path)
        part.run(3)
    assert part.seen == whole.seen
    assert (part.replays, part.steps) == (12, 12)
    assert part.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    for one, other in zip(
        part.module.state_dict().values(), whole.module.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_new_learning_rate_counts_and_the_optimisers_state_goes_on(tmp_path):
    class Plain(Noisy):
        def make_optimizer(self):
            return torch.optim.Adam(self.module.parameters(), lr=self.config.learning_rate)

        def make_scheduler(self):
            return None

    def make_plain(learning_rate):
        config = TrainerConfig(learning_rate=learning_rate)
        return Plain(nn.Linear(2, 3), Endless(), config=config, directory=tmp_path)

    make_plain(0.1).run(3)
    again = make_plain(0.01)
    again.run(1)
    assert again.optimizer.param_groups[0]["lr"] == 0.01
    assert [int(state["step"]) for state in again.optimizer.state.values()] == [4, 4]


def test_a_cut_anywhere_and_a_changed_byte_in_a_tensor_fall_back(tmp_path, caplog):
    trainer = make(tmp_path)
    trainer.run(1)
    trainer.run(1)
    newest = max(tmp_path.iterdir())
    whole = newest.read_bytes()
    weight = trainer.module[0].weight.detach().numpy().tobytes()
    place = whole.index(weight)
    changed = whole[:place] + bytes(len(weight)) + whole[place + len(weight) :]
    for broken in (changed, *(whole[:end] for end in range(0, len(whole), len(whole) // 40))):
        newest.write_bytes(broken)
        state = checkpoint.load_newest(tmp_path)
        assert state is not None
        assert state["replays"] == 1
    assert f"checkpoint {newest} cannot be read, trying the one before" in caplog.text


def test_a_trial_whose_checkpoints_are_all_broken_is_not_begun_again(tmp_path):
    make(tmp_path).run(1)
    for file in tmp_path.iterdir():
        file.write_bytes(b"")
    trainer = make(tmp_path)
    with pytest.raises(BrayError, match=r"none of the 1 in .* can be read: move them away"):
        trainer.start()
    with pytest.raises(BrayError, match="can be read"):  # nor at the second try
        trainer.run(1)


def test_a_run_may_leave_its_checkpoint_to_a_later_one(tmp_path):
    trainer = make(tmp_path, checkpoint_every=3)
    trainer.run(2, checkpoint=False)
    assert not list(tmp_path.iterdir())
    trainer.run(2, checkpoint=False)
    assert len(list(tmp_path.iterdir())) == 1, "that of the third replay"
    trainer.run(0)
    again = make(tmp_path)
    again.run(0)
    assert (again.replays, again.steps) == (trainer.replays, trainer.steps)


def test_a_checkpoint_of_another_module_is_refused(tmp_path):
    make(tmp_path).run(1)
    message = r"the newest in .* does not fit this trainer: .*size mismatch.*choose another dir"
    with pytest.raises(BrayError, match=rf"(?s){message}"):
        make(tmp_path, width=5).start()


def test_a_checkpoint_is_late_after_its_interval(tmp_path):
    """Where replays take minutes, a crash costs minutes and not hundreds of replays."""
    trainer = make(tmp_path, checkpoint_every=100, checkpoint_interval_s=1000)
    trainer.run(2, checkpoint=False)
    assert not list(tmp_path.iterdir())
    trainer._written_s -= 1000
    trainer.run(3, checkpoint=False)
    assert [path.name for path in tmp_path.iterdir()] == ["replay-000000003.pt"]
    with pytest.raises(ConfigError, match="checkpoint_interval_s"):
        TrainerConfig(checkpoint_interval_s=0)


def test_one_follows_when_it_begins_anew(tmp_path):
    """Else a trainer in the place of one that is killed would have forgotten that it did."""
    trainer = make(tmp_path, checkpoint_every=100)
    trainer.begin_anew({name: w.numpy() for name, w in trainer.module.state_dict().items()})
    assert trainer.owes_anew
    trainer.run(3, checkpoint=False)
    assert not trainer.owes_anew
    assert [path.name for path in tmp_path.iterdir()] == ["replay-000000001.pt"]


def test_the_newest_are_kept_and_no_partial_one(tmp_path):
    make(tmp_path, checkpoint_every=1, keep_checkpoints=2).run(5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "replay-000000004.pt",
        "replay-000000005.pt",
    ]


@pytest.mark.parametrize(
    ("value", "path", "got"),
    [
        ({"returns": collections.deque([1.0])}, "state/own/returns", "collections.deque"),
        ([1, np.float64(2)], r"state/own\[1\]", "numpy.float64"),
        ({"a": (np.zeros(2),)}, r"state/own/a\[0\]", "numpy.ndarray"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, value, path, got):
    with pytest.raises(SpecError, match=rf"checkpoint: {path}: expected .* got {got}: convert it"):
        checkpoint.save(tmp_path, 1, {"own": value}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_the_global_generators_come_back():
    random_state.seed_all(3)
    random.gauss(0, 1)
    np.random.standard_normal()
    state = random_state.random_state()

    def draw():
        return random.gauss(0, 1), np.random.standard_normal(), torch.rand(()).item()

    first = draw()
    assert draw() != first
    random_state.set_random_state(state)
    assert draw() == first
    random_state.seed_all(3)
    seeded = draw()
    random_state.seed_all(3)
    assert draw() == seeded


WRITER = """
import sys, torch
from pathlib import Path
from bray_trainer.checkpoints import checkpoint
print("ready", flush=True)
for number in range(1, 10**6):
    state = {"replays": number, "w": torch.full((50_000,), float(number))}
    checkpoint.save(Path(sys.argv[1]), number, state, keep=2)
"""


@pytest.mark.long
def test_a_writer_killed_at_any_moment_leaves_whole_ones(tmp_path):
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        with writer, writer.stdout:
            writer.stdout.readline()
            while checkpoint.count(tmp_path) < 2:
                assert writer.poll() is None
            os.kill(writer.pid, signal.SIGKILL)
        state = checkpoint.load_newest(tmp_path)
        assert state is not None
        assert torch.equal(state["w"], torch.full((50_000,), float(state["replays"])))
        newest = max(path for path in tmp_path.iterdir() if path.name.startswith("replay-"))
        assert newest.name == f"replay-{state['replays']:09d}.pt", "the newest itself is whole"
        for file in tmp_path.iterdir():
            file.unlink()


@pytest.mark.parametrize("room", [0, 1_000, 20_000])
def test_a_full_disk_is_told_in_words_and_leaves_nothing(tmp_path, room):
    """Torch says nothing of the disk: only that a file is shorter than it has to be."""
    small, large = {"x": torch.zeros(8)}, {"x": torch.zeros(10_000)}
    checkpoint.save(tmp_path, 1, small, keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(CapacityError, match=r"checkpoint: .*000002\.pt: cannot be written: Fi"):
            checkpoint.save(tmp_path, 2, large, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["replay-000000001.pt"]
    assert checkpoint.load_newest(tmp_path)["x"].shape == (8,)


def test_a_folder_may_be_a_string(tmp_path):
    trainer = make(str(tmp_path))
    trainer.run(1)
    assert (tmp_path / "replay-000000001.pt").is_file()
