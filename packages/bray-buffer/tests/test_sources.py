"""Samples of a source come once an epoch, in one order, and go on where they were left."""

import asyncio
import importlib
import json
import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bray_buffer.sources import SequenceSource, SourceBuffer, SourceConfig
from bray_core.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    SpecError,
    WorkerLostError,
)


def sample(number):
    return {"x": np.int64(number), "y": np.full(2, number, np.float32)}


class Files:
    """Units of several samples, numbered through, as files are."""

    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(self, sizes, broken=()):
        self._sizes, self._broken = sizes, broken
        self.num_units = len(sizes)

    def read(self, units):
        for unit in units:
            yield from self.read_one(unit)

    def read_one(self, unit):
        start = sum(self._sizes[:unit])
        for number in range(start, start + self._sizes[unit]):
            if number in self._broken:
                yield SpecError(f"{self.describe(unit)}: sample {number} is broken")
            else:
                yield {"x": np.array([number]), "y": np.full((1, 2), number, np.float32)}

    def describe(self, unit):
        return f"file {unit}"


def make(source, **config):
    config.setdefault("num_workers", 0)
    config.setdefault("batch_size", 3)
    return SourceBuffer(source, SourceConfig(**config))


def drain(buffer):
    """The batches' numbers; checks that the leaves of a sample belong together."""
    got = []
    for batch in buffer:
        tree = batch.tree
        assert (tree["y"] == tree["x"][:, None]).all()
        got.append(tree["x"].tolist())
    return got


def flat(got):
    return [number for batch in got for number in batch]


sizes = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(sum)
configs = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 6),
        "epochs": st.integers(1, 3),
        "drop_last": st.booleans(),
        "shuffle": st.booleans(),
        "shuffle_size": st.sampled_from([1, 2, 5, 100]),
        "seed": st.integers(0, 3),
    }
)


def kinds(sizes):
    """The same samples as files, as a sequence and as a stream."""
    samples = [sample(number) for number in range(sum(sizes))]
    return {"files": Files(sizes), "sequence": samples, "stream": lambda: iter(samples)}


@given(sizes, configs, st.sampled_from(["files", "sequence", "stream"]))
def test_each_epoch_has_each_sample_once(sizes, config, kind):
    total, size = sum(sizes), config["batch_size"]
    got = drain(make(kinds(sizes)[kind], **config))
    per_epoch = total // size if config["drop_last"] else math.ceil(total / size)
    assert len(got) == per_epoch * config["epochs"]
    for epoch in range(config["epochs"]):
        batches = got[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(batch) == size for batch in batches[:-1])
        numbers = flat(batches)
        assert len(set(numbers)) == len(numbers) == min(total, per_epoch * size)
        if not config["shuffle"]:
            assert numbers == list(range(len(numbers)))


@given(
    sizes, configs, st.sampled_from(["files", "sequence", "stream"]), st.integers(0, 30), st.data()
)
def test_it_goes_on_with_exactly_the_next_sample(sizes, config, kind, taken, data):
    whole = drain(make(kinds(sizes)[kind], **config))
    taken = min(taken, len(whole))
    first = make(kinds(sizes)[kind], **config)
    before = [first.pop().tree["x"].tolist() for _ in range(taken)]
    state = json.loads(json.dumps(first.state_dict()))
    again = make(kinds(sizes)[kind], **config)
    for _ in range(data.draw(st.integers(0, min(2, len(whole))))):
        again.pop()  # it may have begun
    again.load_state_dict(state)
    assert before + drain(again) == whole


@given(sizes, configs, st.sampled_from(["files", "sequence", "stream"]), st.integers(1, 4))
def test_shards_are_disjoint_and_complete(sizes, config, kind, size):
    config = {**config, "drop_last": False, "epochs": 1}
    buffer = make(kinds(sizes)[kind], **config)
    shares = [flat(drain(buffer.shard(rank, size))) for rank in range(size)]
    assert sorted(flat(shares)) == list(range(sum(sizes)))
    if kind != "files":
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(max_examples=15)
@given(sizes, configs, st.sampled_from(["files", "sequence", "stream"]), st.integers(1, 4))
def test_the_order_is_that_of_the_seed_however_many_read(sizes, config, kind, num_workers):
    alone = drain(make(kinds(sizes)[kind], **config))
    assert drain(make(kinds(sizes)[kind], **config, num_workers=num_workers)) == alone


DEADLY = """
import os
import numpy as np

class Deadly:
    units_per_read = 1
    is_shuffled_by_order = False

    def __init__(self, sizes):
        self._sizes = sizes
        self.num_units = len(sizes)

    def read(self, units):
        for unit in units:
            if unit == self.num_units - 1:
                os._exit(1)
            start = sum(self._sizes[:unit])
            for number in range(start, start + self._sizes[unit]):
                yield {"x": np.array([number])}

    def describe(self, unit):
        return f"file {unit}"
"""
"""Kills the process that reads its last unit; a module, for processes import what they run."""


def test_processes_read_the_same_and_one_that_dies_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "deadly_source.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    deadly = importlib.import_module("deadly_source").Deadly
    sizes, ahead = [3, 1, 2, 4, 0, 2, 5, 3], 2 * 2
    buffer = make(deadly(sizes), num_workers=2, workers="processes", batch_size=1)
    got = []

    def take_all():
        for batch in buffer:
            got.extend(batch.tree["x"].tolist())

    with pytest.raises(WorkerLostError, match="a process that reads it died"):
        take_all()
    buffer.close()
    assert got == list(range(len(got)))
    assert len(got) >= sum(sizes[: -1 - ahead])


def test_epochs_and_seeds_differ_and_every_order_is_possible():
    def order(seed, epochs=1, source=range(3)):
        samples = [sample(number) for number in source]
        return flat(drain(make(samples, shuffle=True, seed=seed, epochs=epochs)))

    first = order(0, epochs=2, source=range(50))
    assert first[:50] != first[50:]
    orders = [tuple(order(seed)) for seed in range(600)]
    counts = [orders.count(one) for one in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 100 - 46  # Binomial(600, 1/6): 5 standard deviations are 46


def test_a_window_mixes_what_comes_from_several_units():
    got = flat(drain(make(Files([10] * 10), shuffle=True, shuffle_size=50, batch_size=10)))
    assert all(len({number // 10 for number in got[i : i + 10]}) > 2 for i in range(0, 100, 10))


def test_progress():
    buffer = make([sample(number) for number in range(10)], epochs=2, batch_size=4)
    seen = []
    for _ in buffer:
        seen.append(tuple(buffer.progress().values()))
    assert seen == [(0, 4, 0.4), (0, 8, 0.8), (1, 10, 0), (1, 14, 0.4), (1, 18, 0.8), (2, 20, 0)]
    assert math.isnan(make(lambda: iter([sample(1)])).progress()["fraction"])
    assert buffer.stats() == {"popped": 20, "skipped": 0}


def test_a_broken_sample_is_named_or_skipped(recorded):
    good = [sample(0), sample(1)]
    broken = [*good, {"x": np.int64(2), "y": np.zeros(3, np.float32)}, sample(3)]
    cases = (
        (broken, r"sample 2: y: expected float32 \(1, 2\), got float32 \(1, 3\)"),
        (lambda: iter(broken), r"sample 2: y: expected float32 \(1, 2\)"),
        (Files([2, 2], broken=[2]), "file 1: sample 2 is broken"),
    )
    for source, message in cases:
        buffer = make(source, batch_size=1)
        with pytest.raises(SpecError, match=message):
            drain(buffer)
        with pytest.raises(SpecError, match=message):  # it does not go on as if nothing had been
            buffer.pop()
        skipping = make(source, on_error="skip", batch_size=2)
        assert drain(skipping) == [[0, 1], [3]]
        assert skipping.stats()["skipped"] == 1
    assert recorded()["buffer/skipped_samples"] == 3


def test_a_users_code_that_raises_is_quoted():
    class Items(list):
        def __getitem__(self, number):
            if number == 1:
                raise OSError("disk on fire")
            return super().__getitem__(number)

    items = Items(sample(number) for number in range(3))
    with pytest.raises(SpecError, match="sample 1: OSError: disk on fire"):
        drain(make(items))
    assert drain(make(items, on_error="skip")) == [[0, 2]]

    def stream():
        yield sample(0)
        raise OSError("disk on fire")

    with pytest.raises(SpecError, match="stream, in read 0: OSError: disk on fire"):
        drain(make(stream, epochs=2))
    assert drain(make(stream, on_error="skip")) == [[0]]


async def test_waiting_closing_and_coroutines():
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        yield sample(0)
        begun.set()
        go_on.wait(30)
        yield sample(1)

    buffer = make(slow, num_workers=1, batch_size=2)
    with pytest.raises(DeadlineError, match=r"source: no batch within 0 s: its workers are still"):
        buffer.pop(0)
    begun.wait(30)
    popping = asyncio.create_task(buffer.pop_async())
    while not buffer._lock.num_waiting:  # noqa: ASYNC110  nothing tells of a waiter
        await asyncio.sleep(0)
    go_on.set()
    assert (await popping).tree["x"].tolist() == [0, 1]
    assert [batch async for batch in buffer] == []

    go_on.clear()
    begun.clear()
    stuck = make(slow, num_workers=1, batch_size=2)
    popping = asyncio.create_task(stuck.pop_async())
    await asyncio.to_thread(begun.wait, 30)
    stuck.close()  # while its worker is stuck
    with pytest.raises(ClosedError, match="source: closed"):
        await popping
    go_on.set()
    with pytest.raises(ClosedError, match="source: closed"):
        stuck.pop()


def test_reading_ahead_is_bounded():
    read = []

    class Noting(Files):
        def read_one(self, unit):
            read.append(unit)
            return super().read_one(unit)

    buffer = make(Noting([2] * 50), num_workers=2, batch_size=2)
    for number in range(10):
        buffer.pop()
        assert max(read) <= number + 1 + 2 * 2
    buffer.close()


def test_no_end_and_no_samples():
    forever = make([sample(number) for number in range(2)], epochs=None, batch_size=3)
    assert [forever.pop().tree["x"].tolist() for _ in range(3)] == [[0, 1]] * 3
    with pytest.raises(SpecError, match="expected at least one sample, got none"):
        make([])
    with pytest.raises(SpecError, match="expected at least one sample, got none"):
        make(lambda: iter([]))
    with pytest.raises(SpecError, match=r"a whole epoch gave no batch: .* batch_size=3"):
        make([sample(0)], epochs=None, drop_last=True).pop()
    config, layout = SourceConfig(batch_size=1, epochs=None), make([sample(0)]).layout
    empty = SourceBuffer(Files([0, 0]), config, layout=layout)
    with pytest.raises(SpecError, match="gave no batch: there is no sample from file 0 on"):
        empty.pop()


def test_a_transform():
    buffer = SourceBuffer(
        [sample(number) for number in range(4)],
        SourceConfig(batch_size=2),
        transform=lambda batch: {"z": batch["x"] * 2},
    )
    assert [batch.tree["z"].tolist() for batch in buffer.shard(1, 2)] == [[2, 6]]


def test_another_order_is_refused():
    samples = [sample(number) for number in range(4)]
    state = make(samples, shuffle=True).state_dict()
    with pytest.raises(SpecError, match="another order of samples: expected seed=1, got 0"):
        make(samples, shuffle=True, seed=1).load_state_dict(state)
    with pytest.raises(SpecError, match=r"expected shard=\[1, 2\], got \[0, 1\]"):
        make(samples, shuffle=True).shard(1, 2).load_state_dict(state)
    for cursor in (None, {"epoch": 1}, {**state["cursor"], "row": -1}):
        with pytest.raises(SpecError, match="source: expected a position"):
            make(samples, shuffle=True).load_state_dict({**state, "cursor": cursor})


def test_nonsense_is_refused():
    once = (sample(number) for number in range(3))
    with pytest.raises(ConfigError, match="an iterator can be read once, got epochs=2"):
        make(once, epochs=2)
    assert drain(make(once)) == [[0, 1, 2]]
    with pytest.raises(ConfigError, match="a stream cannot be read by several processes"):
        make(lambda: iter([sample(0)]), workers="processes", num_workers=2)
    with pytest.raises(ConfigError, match=r"expected a source, a sequence, .* got int"):
        make(3)
    with pytest.raises(ConfigError, match="a list of dicts, say"):
        make({"x": np.zeros(3)})
    with pytest.raises(ConfigError, match="rank: expected 0 to 1 of size=2, got 2"):
        make([sample(0)]).shard(2, 2)
    with pytest.raises(ConfigError, match="nothing can be pushed to a source"):
        make([sample(0)]).push(sample(1))
    for settings_, message in (
        ({"batch_size": 0}, "batch_size: expected 1 or more, got 0"),
        ({"epochs": 0}, "epochs: expected 1 or more, got 0"),
        ({"num_workers": -1}, "num_workers: expected 0 or more, got -1"),
        ({"workers": "thread"}, "workers: expected one of threads, processes, got 'thread', did"),
        ({"on_error": "skipp"}, "on_error: expected one of raise, skip, got 'skipp', did you"),
    ):
        with pytest.raises(ConfigError, match=message):
            SourceConfig(**{"batch_size": 1, **settings_})


def test_the_source_itself_can_be_given():
    assert drain(make(SequenceSource([sample(5)]))) == [[5]]
