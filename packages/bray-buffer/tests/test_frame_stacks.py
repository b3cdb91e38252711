"""Frame stacks come back exactly as they were pushed, from a quarter of the memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_buffer import ReplayBuffer, ReplayConfig
from bray_core import nested
from bray_core.errors import ConfigError, SpecError

T = 6


def replay(stacks: Any, axis: int, **settings: Any) -> ReplayBuffer:
    config = ReplayConfig(frame_stack={"observation/image": axis}, **settings)
    return ReplayBuffer(nested.spec(stacks(0, axis)), config)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_transitions_have_their_stacks(axis, n, stacks):
    store = replay(stacks, axis, unit="transition", capacity=4 * T + 1, batch_size=200, n_step=n)
    segments: dict[int, Any] = {}
    for first in range(0, 10 * T, T):  # the ring wraps within segments
        segments[first] = stacks(first, axis)
        store.push(segments[first])
    batch: Any = store.pop(0).tree
    assert set(batch["action"].tolist()) == set(range(6 * T, 10 * T))
    for row, step in enumerate(batch["action"].tolist()):
        segment, at = segments[step // T * T], step % T
        images = [*segment["observation"]["image"], segment["final_observation"]["image"]]
        assert np.array_equal(batch["observation"]["image"][row], images[at])
        following = min(at + n, T)
        assert np.array_equal(batch["next_observation"]["image"][row], images[following])
        assert batch["next_observation"]["speed"][row] == step - at + following
        assert batch["reward"][row] == pytest.approx(
            sum(0.99**ahead for ahead in range(following - at))
        )


@pytest.mark.parametrize("large", [0, 2048])
@pytest.mark.parametrize("axis", [0, -1])
def test_sequences_have_their_stacks(axis, large, stacks, monkeypatch):
    monkeypatch.setattr("bray_buffer.replay.columns._LARGE", large)  # both ways to fill a batch
    store = replay(
        stacks, axis, unit="sequence", capacity=20, batch_size=100, sequence_length=3, burn_in=2
    )
    segments = {first: stacks(first, axis) for first in range(0, 7 * T, T)}
    for segment in segments.values():
        store.push(segment)
    batch: Any = store.pop(0).tree
    for row in range(100):
        valid = batch["mask"][row]
        steps = batch["action"][row][valid]
        segment, at = segments[steps[0] // T * T], steps % T
        images = segment["observation"]["image"]
        assert np.array_equal(batch["observation"]["image"][row][valid], images[at])
        assert not batch["observation"]["image"][row][~valid].any()
        following = [*images, segment["final_observation"]["image"]][at[-1] + 1]
        assert np.array_equal(batch["final_observation"]["image"][row], following)


def test_an_episode_may_end_with_any_final_observation(stacks):
    segment = stacks(0, 0)
    segment["terminated"][-1] = True
    segment["final_observation"]["image"][...] = 0
    store = replay(stacks, 0, unit="transition", capacity=T, batch_size=50)
    store.push(segment)
    batch: Any = store.pop(0).tree
    last = batch["action"] == T - 1
    assert not batch["next_observation"]["image"][last].any()
    assert (batch["discount"] == 0).tolist() == last.tolist()


def test_stacks_that_do_not_overlap_are_refused(stacks):
    segment = stacks(0, 0)
    segment["observation"]["image"][3] += 1
    store = replay(stacks, 0, unit="transition", capacity=T, batch_size=1)
    with pytest.raises(SpecError, match=r"segment/observation/image: the frames of step 3 do not"):
        store.push(stacks(5, 0), segment)
    assert store.stats()["queued"] == 0


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ({"observation": 0}, r"expected leaves of \['observation/image', 'observation/speed'\]"),
        (
            {"observation/image": 3},
            r"observation/image: expected an axis of uint8 \(3, 4, 2\), got",
        ),
        ({"observation/speed": 0}, r"observation/speed: expected an axis of int64 \(\), got 0"),
    ],
)
def test_leaves_that_cannot_be_stacks_are_refused(stack, message, stacks):
    config = ReplayConfig(unit="transition", capacity=9, batch_size=1, frame_stack=stack)
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(nested.spec(stacks(0, 0)), config)


def test_memory_is_that_of_single_frames(stacks):
    """2,048 stacks of 3 frames of 96 × 96 are 56 MB, twice that with next observations."""
    shape, steps = (96, 96), 64
    segment = stacks(0, 0, shape, steps)
    config = ReplayConfig(
        unit="transition", capacity=2048, batch_size=1, frame_stack={"observation/image": 0}
    )
    before = resident()
    store = ReplayBuffer(nested.spec(segment), config)
    for _ in range(3 * 2048 // steps):
        store.push(segment)
    used = resident() - before
    frames = 2048 * 96 * 96
    assert frames * 0.9 < used < frames * 1.6  # 1 + (2 K - 1) / 64 of it, and other leaves


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
