"""What a mixture passes on to its buffers."""

import asyncio
import pickle

import numpy as np
import pytest

from bray_buffer import (
    Buffer,
    BufferConfig,
    Mixture,
    ReplayBuffer,
    ReplayConfig,
    Reservoir,
    ReservoirConfig,
)
from bray_core import nested
from bray_core.errors import ClosedError, ConfigError, DeadlineError, SpecError
from bray_core.layout import Packed
from bray_core.nested import ArraySpec

SPEC = nested.spec({"x": np.int64(0), "policy_version": np.int64(0)})


def row(x, version=0):
    return {"x": np.array(x), "policy_version": np.array(version)}


def make(seed=0, weights=(1.0, 1.0)):
    queue = Buffer(SPEC, BufferConfig(batch_size=1, max_policy_lag=1))
    reservoir = Reservoir(SPEC, ReservoirConfig(capacity=4, batch_size=1))
    return queue, reservoir, Mixture({"q": (queue, weights[0]), "r": (reservoir, weights[1])}, seed)


def x(batch):
    return int(batch.tree["x"][0])


async def test_a_coroutine_waits_for_the_drawn_buffer(numbers):
    queue, reservoir, mixture = make(weights=(1.0, 0.0))
    reservoir.push(row(9))
    popping = asyncio.create_task(mixture.pop_async())
    while not queue._lock.num_waiting:  # noqa: ASYNC110  nothing tells of a waiter
        await asyncio.sleep(0)
    queue.push(row(1))
    assert x(await popping) == 1
    with pytest.raises(DeadlineError, match=r"mixture: 'q' waited 0.0 s: buffer: no batch"):
        await mixture.pop_async(0)
    mixture.set_weights({"q": 0.0, "r": 1.0})  # what was owed by q is not waited for
    assert x(await mixture.pop_async(0)) == 9
    mixture.close()
    with pytest.raises(ClosedError, match="mixture: 'r': reservoir: closed"):
        await mixture.pop_async()
    assert [batch async for batch in mixture] == list(mixture) == []


async def test_a_cancelled_pop_is_owed():
    queue, reservoir, mixture = make(weights=(1.0, 0.0))
    popping = asyncio.create_task(mixture.pop_async())
    while not queue._lock.num_waiting:  # noqa: ASYNC110  nothing tells of a waiter
        await asyncio.sleep(0)
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    mixture.set_weights({"q": 1e-9, "r": 1.0})
    reservoir.push(row(9))
    queue.push(row(1))
    assert [x(mixture.pop(0)) for _ in range(3)] == [1, 9, 9]


def test_the_policy_version_goes_to_all():
    queue, _, mixture = make()
    mixture.set_policy_version(5)
    queue.push(row(1, version=3), row(2, version=4))
    assert mixture.stats()["q/stale"] == 1


def test_content_and_state_of_all_come_back(tmp_path):
    def filled(seed):
        queue, reservoir, mixture = make(seed)
        queue.push(*map(row, range(20)))
        reservoir.push(*map(row, range(100, 120)))
        return mixture

    first = filled(1)
    first.set_weights({"q": 2.0, "r": 1.0})
    first.pop(0)
    first.save(tmp_path / "mixture")
    assert sorted(path.name for path in (tmp_path / "mixture").iterdir()) == ["q", "r"]
    again = make(2)[2]
    assert again.load(tmp_path / "mixture") == first.stats()["q/queued"] + 4
    again.load_state_dict(first.state_dict())
    assert [x(first.pop(0)) for _ in range(15)] == [x(again.pop(0)) for _ in range(15)]


def test_nonsense_is_refused():
    queue, _, mixture = make()
    with pytest.raises(ConfigError, match="push to one of its buffers instead: q, r"):
        mixture.push(row(1))
    with pytest.raises(ConfigError, match="'q' does not draw by priority"):
        mixture.update_priorities(np.array([1]), np.array([1.0]))
    with pytest.raises(SpecError, match="keys: expected those of batches of q, r"):
        mixture.update_priorities(np.array([1 << 50]), np.array([1.0]))
    with pytest.raises(SpecError, match=r"expected the states of \['q', 'r'\], got"):
        mixture.load_state_dict({"policy_version": 3})
    with pytest.raises(ConfigError, match=r"names that files can have, got '../x'"):
        Mixture({"../x": (queue, 1.0)})
    other = Buffer({**SPEC, "y": SPEC["x"]}, BufferConfig(batch_size=1))
    message = "one layout, got .* from 'q' and .* from 'o': the leaf 'y' differs"
    with pytest.raises(ConfigError, match=message):
        Mixture({"q": (queue, 1.0), "o": (other, 1.0)})


def test_what_is_mixed_are_batches():
    """Buffers of other segments fit together if their batches do."""
    queue = make()[0]
    other = Buffer(
        nested.spec({"y": np.int64(0)}),
        BufferConfig(batch_size=1),
        transform=lambda batch: {"x": batch["y"], "policy_version": batch["y"] * 0},
    )
    other.push({"y": np.array(5)})
    mixture = Mixture({"q": (queue, 0.0), "o": (other, 1.0)})
    assert mixture.batch_layout == mixture.layout == queue.layout
    assert x(mixture.pop(0)) == 5


def test_what_is_drawn_keeps_pace_with_what_is_inserted():
    held = {"queued": 10.0, "dropped": 0.0}

    class Held:
        layout = Buffer(SPEC, BufferConfig(batch_size=1)).layout

        def stats(self):
            return held

        def pop(self, timeout_s=None):
            return Packed(self.layout, np.zeros((4, self.layout.nbytes), np.uint8))

        async def pop_async(self, timeout_s=None):
            return self.pop()

    mixture = Mixture({"a": (Held(), 1.0)}, samples_per_insert=2.0)
    mixture.pop(0)  # of what was there before
    with pytest.raises(DeadlineError, match=r"mixture: no batch after 0.0 s: too little"):
        mixture.pop(0)
    held["dropped"] = 3.0  # 6 rows are due: two batches begin before they are drawn
    assert [len(mixture.pop(0).block) for _ in range(2)] == [4, 4]
    with pytest.raises(DeadlineError, match="samples_per_insert=2"):
        asyncio.run(mixture.pop_async(0.01))
    held["queued"] = 12.0
    assert len(asyncio.run(mixture.pop_async(0)).block) == 4
    held.update(queued=1.0, dropped=0.0)  # in a worker that took the place of one that died
    with pytest.raises(DeadlineError, match="samples_per_insert=2"):
        mixture.pop(0)
    held["queued"] = 3.0
    assert len(mixture.pop(0).block) == 4
    with pytest.raises(ConfigError, match="samples_per_insert: expected a number above 0, got 0"):
        Mixture({"a": (Held(), 1.0)}, samples_per_insert=0)


class Handle:
    """Stands for a buffer of another process: it travels as its name."""

    layout = Buffer(SPEC, BufferConfig(batch_size=1)).layout

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return Handle, (self.name,)


def test_a_mixture_of_handles_travels():
    mixture = Mixture({"a": (Handle("one"), 1.0), "b": (Handle("two"), 3.0)}, 7, 2.0)
    copy = pickle.loads(pickle.dumps(mixture))
    assert [copy._draw() for _ in range(20)] == [mixture._draw() for _ in range(20)]
    assert copy._buffers["b"].name == "two"
    assert (copy._shares, copy._rate) == (mixture._shares, 2.0)


def test_priorities_go_to_the_replay_that_a_batch_came_from():
    floats, number = ArraySpec(np.dtype("float32"), (4,)), ArraySpec(np.dtype("int32"), ())
    flags = ArraySpec(np.dtype("bool"), (4,))
    spec = {"observation": floats, "final_observation": ArraySpec(np.dtype("float32"), ())}
    spec |= {
        "action": floats,
        "reward": floats,
        "terminated": flags,
        "truncated": flags,
        "length": number,
    }
    config = ReplayConfig(capacity=64, batch_size=4, sampler="prioritized", unit="transition")
    replays = {name: ReplayBuffer(spec, config) for name in ("near", "far")}
    for first, replay in zip((0, 10), replays.values(), strict=True):
        one = nested.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec)
        replay.push(
            {**one, "reward": np.arange(first, first + 4, dtype=np.float32), "length": np.int32(4)}
        )
    mixture = Mixture({name: (replay, 1.0) for name, replay in replays.items()}, seed=1)

    for _ in range(20):  # the third step of the first, and the second of the other, count alone
        batch = mixture.pop(0).tree
        mixture.update_priorities(batch["key"], np.isin(batch["reward"], [2, 11]).astype(float))
    seen = {float(reward) for _ in range(20) for reward in mixture.pop(0).tree["reward"]}
    assert {2.0, 11.0} <= seen
    assert all(replay.stats()["stale_priorities"] == 0 for replay in replays.values())
    drawn = [float(reward) for _ in range(20) for reward in mixture.pop(0).tree["reward"]]
    assert sum(reward in (2.0, 11.0) for reward in drawn) > 70, "of 80"
