"""Replays popped ahead: none lost, none too many, the order kept."""

import threading
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bray_core import nested
from bray_core.errors import BrayError, ClosedError, ConfigError, DeadlineError
from bray_core.layout import Layout, Packed
from bray_trainer import Trainer, TrainerConfig, to_torch
from bray_trainer.prefetcher import Prefetcher

LAYOUT = Layout(nested.spec({"x": np.float32(0)}))
OTHER = Layout(nested.spec({"y": np.int64(0)}))


def packed(number, layout=LAYOUT):
    leaf = next(iter(layout.spec))
    return Packed(layout, layout.pack({leaf: np.full(2, number, layout.spec[leaf].dtype)}))


def number_of(replay):
    return int(next(iter(replay.tree.values()))[0])


class Counting:
    """A buffer whose batches are 0, 1, 2, … up to a limit that a test may raise."""

    def __init__(self, limit=10**9, layout=LAYOUT):
        self.layout = layout
        self.limit = limit
        self.next = 0
        self.changed = threading.Condition()

    def allow(self, limit):
        with self.changed:
            self.limit = limit
            self.changed.notify_all()

    def pop(self, timeout_s=None):
        with self.changed:
            if not self.changed.wait_for(lambda: self.next < self.limit, timeout_s):
                raise DeadlineError("nothing is there")
            self.next += 1
            self.changed.notify_all()
            return packed(self.next - 1, self.layout)

    def wait_popped(self, number):
        with self.changed:
            assert self.changed.wait_for(lambda: self.next >= number, 30)


class Seeing(Trainer):
    """Notes which batches it saw."""

    def __init__(self, buffer, directory=None, **config):
        self.seen = []
        self.noted = threading.Condition()
        super().__init__(
            nn.Linear(1, 1), buffer, config=TrainerConfig(**config), directory=directory
        )

    def handle(self, replay):
        is_one = isinstance(replay, Packed)
        with self.noted:
            self.seen.append(
                number_of(replay) if is_one else {n: number_of(part) for n, part in replay.items()}
            )
            self.noted.notify_all()
        yield from super().handle(replay)

    def wait_seen(self, count):
        with self.noted:
            assert self.noted.wait_for(lambda: len(self.seen) >= count, 30)

    def loss(self, batch, step):
        return self.module(torch.ones(1, 1)).mean(), {}

    def should_pause(self):
        return len(self.seen) % 3 == 0


class Late(Seeing):
    """Trains on no replay before the next one is popped."""

    def loss(self, batch, step):
        self.buffer.wait_popped(step + 2)  # never, if the loop itself popped
        return super().loss(batch, step)


def test_the_next_replay_is_popped_while_the_loop_trains():
    trainer = Late(Counting())
    trainer.start()
    assert trainer.wait(30)
    assert trainer.seen == [0, 1, 2]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_so_many_are_popped_ahead_and_none_is_lost_at_a_pause(prefetch):
    trainer = Seeing(Counting(), prefetch=prefetch)
    for _ in range(3):
        trainer.start()
        assert trainer.wait(30)
        assert trainer.buffer.next <= len(trainer.seen) + prefetch
    assert trainer.seen == list(range(9))


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_run_pops_as_many_as_it_trains_on(prefetch):
    trainer = Seeing(Counting(), prefetch=prefetch)
    for total in (1, 3, 7):
        trainer.run(total - trainer.replays)
        assert trainer.buffer.next == total
    trainer.start()
    assert trainer.wait(30)
    left = trainer.buffer.next - len(trainer.seen)
    trainer.run(left + 2)  # takes first what was popped ahead
    assert trainer.buffer.next == len(trainer.seen)
    assert trainer.seen == list(range(len(trainer.seen)))


def test_what_was_popped_ahead_is_in_the_checkpoint(tmp_path):
    source = Counting()
    first = Seeing(source, tmp_path, prefetch=2)
    first.start()
    assert first.wait(30)
    second = Seeing(source, tmp_path, prefetch=2)
    second.start()
    assert second.wait(30)
    assert first.seen + second.seen == list(range(6))


def test_a_checkpoint_with_replays_of_another_layout_is_refused(tmp_path):
    trainer = Late(Counting(), tmp_path)
    trainer.start()
    assert trainer.wait(30)
    with pytest.raises(BrayError, match=r"does not fit this trainer: buffer: holds no batches of"):
        Seeing(Counting(layout=OTHER), tmp_path).start()


def test_of_several_buffers_one_replay_each_and_none_is_lost(tmp_path):
    buffers = {"old": Counting(), "new": Counting(2, OTHER)}
    first = Seeing(buffers, tmp_path)
    first.start()
    buffers["old"].wait_popped(3)  # its third waits for one of the other
    first.stop()
    second = Seeing(buffers, tmp_path)
    second.start()
    assert not second.wait(0)
    buffers["new"].allow(10**9)
    assert second.wait(30)
    seen = first.seen + second.seen
    assert seen == [{"old": n, "new": n} for n in range(len(seen))]
    assert len(seen) == 5


def test_its_tensors_are_by_the_names_of_the_buffers():
    class Both(Seeing):
        def loss(self, batch, step):
            assert batch["a"]["x"].tolist() == [step] * 2
            assert batch["b"]["y"].tolist() == [step] * 2
            return super().loss(batch, step)

    Both({"a": Counting(), "b": Counting(layout=OTHER)}).run(2)


def test_reuse_only_while_none_is_ready_and_its_rate_is_recorded(recorded):
    source = Counting(2)
    trainer = Seeing(source, max_reuse=3)
    trainer.start()
    assert trainer.wait(30)
    assert trainer.seen == [0, 1, 1]
    trainer.start()
    trainer.wait_seen(4)
    assert not trainer.wait(0.05)  # the last may be used once more only
    source.allow(3)
    assert trainer.wait(30)
    assert trainer.seen == [0, 1, 1, 1, 2, 2]
    assert recorded()["trainer/reuse"] == [2, 1 + 3]


def test_what_may_be_used_again_is_in_the_checkpoint(tmp_path):
    first = Seeing(Counting(1), tmp_path, max_reuse=5)
    first.start()
    assert first.wait(30)
    second = Seeing(Counting(0), tmp_path, max_reuse=5)
    second.start()
    second.wait_seen(2)
    assert not second.wait(0.05)
    second.stop()
    assert (first.seen, second.seen) == ([0, 0, 0], [0, 0])


def test_the_error_of_a_pop_comes_after_the_replays_before_it():
    class Failing(Counting):
        def pop(self, timeout_s=None):
            if self.next == 2:
                raise ValueError("broken")
            return super().pop(timeout_s)

    trainer = Seeing(Failing(), prefetch=5)
    for _ in range(2):
        trainer.start()
        with pytest.raises(ValueError, match="broken"):
            trainer.wait(30)
        assert trainer.seen == [0, 1]


@given(
    st.integers(0, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from(["give", "take", "close", "save"]), max_size=16),
)
@settings(max_examples=20, deadline=None)
def test_any_order_of_what_happens_loses_and_doubles_nothing(prefetch, max_reuse, actions):
    """Against a plain list: fresh ones in their order, each at most `max_reuse` times."""
    source = Counting(0)

    def new():
        config = TrainerConfig(prefetch=prefetch, max_reuse=max_reuse)
        return Prefetcher({"": source}, lambda packed: packed, config)

    prefetcher, taken = new(), deque()
    prefetcher.open()
    for action in actions:
        if action == "give":
            source.allow(source.limit + 1)
        elif action == "close":
            prefetcher.close()
            prefetcher.open()
        elif action == "save":
            with prefetcher.held():
                state = prefetcher.state_dict()
            prefetcher.close()
            prefetcher = new()
            prefetcher.load_state_dict(state)
            prefetcher.open()
        elif prefetcher.wait(0.0):
            taken.append(number_of(prefetcher.take()))
    while len(set(taken)) < source.limit:
        assert prefetcher.wait(30)
        taken.append(number_of(prefetcher.take()))
    prefetcher.close()
    assert sorted(set(taken)) == list(range(source.limit))
    assert list(taken) == sorted(taken)
    assert all(taken.count(number) <= max_reuse for number in taken)


def test_a_closed_buffer_is_raised():
    class Closed(Counting):
        def pop(self, timeout_s=None):
            raise ClosedError("closed")

    for prefetch in (0, 1):
        with pytest.raises(ClosedError):
            Seeing(Closed(), prefetch=prefetch).run(1)


def test_time_major_views():
    layout = Layout(
        nested.spec({"o": {"a": np.zeros((3, 2), "f4")}, "n": np.zeros(3, "i4"), "s": np.int64(0)})
    )
    tree = {
        "o": {"a": np.arange(24, dtype="f4").reshape(4, 3, 2)},
        "n": np.arange(12, dtype="i4").reshape(4, 3),
        "s": np.arange(4),
    }
    tensors = to_torch(Packed(layout, layout.pack(tree)), time_major=("o", "n"))
    assert np.array_equal(tensors["o"]["a"].numpy(), tree["o"]["a"].swapaxes(0, 1))
    assert np.array_equal(tensors["n"].numpy(), tree["n"].T)
    assert tensors["s"].tolist() == [0, 1, 2, 3]
    with pytest.raises(BrayError, match=r"time_major: no leaf 'z': expected some of \['n', 'o'"):
        to_torch(Packed(layout, layout.pack(tree)), time_major=("z",))


def test_bad_prefetch():
    with pytest.raises(ConfigError, match="prefetch: expected 0 or more, got -1"):
        TrainerConfig(prefetch=-1)
