"""A replay's files in the trial's folder, where its workers die or are of another number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray.replay_content import ReplayContent
from bray_buffer import ReplayBuffer, ReplayConfig
from bray_buffer.remote import RemoteBuffer
from bray_core.errors import NotFoundError, SpecError, WorkerLostError
from bray_core.nested import ArraySpec


class Pool:
    """A pool of workers that hold a number each, in a file of that text."""

    def __init__(self, *held: int) -> None:
        self.held = list(held)
        self.size = len(held)

    def submit(self, method: str, path: Path, worker: int) -> Any:
        return method, path, worker

    def result(self, ref: Any, timeout_s: float) -> int:
        method, path, worker = ref
        if self.held[worker] < 0:
            raise WorkerLostError(f"worker {worker} died")
        if method == "save":
            path.write_text(str(self.held[worker]))
        elif path.exists():
            self.held[worker] = int(path.read_text())
        else:
            raise NotFoundError(f"path: no file {path}")
        return self.held[worker]


def remote_buffer(pool: Any) -> RemoteBuffer:
    buffer = RemoteBuffer.__new__(RemoteBuffer)
    buffer._pool = pool
    return buffer


def test_workers_that_had_none_begin_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no file .*0\.buffer"):
        remote_buffer(Pool(0, 0)).load(tmp_path)
    remote_buffer(Pool(3)).save(tmp_path)
    more = Pool(0, 0)
    assert remote_buffer(more).load(tmp_path) == 3
    assert more.held == [3, 0]


def test_the_others_write_theirs_where_a_worker_dies(tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match="worker 0 died"):
        remote_buffer(Pool(-1, 4)).save(tmp_path)
    assert (tmp_path / "1.buffer").read_text() == "4"


class Trial:
    """A trial that goes on."""

    is_settled = True

    def __init__(self, path: Path) -> None:
        self.path = path


def test_files_of_workers_that_are_no_more_are_told_of_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial: Any = Trial(tmp_path)
    folder = tmp_path / "buffers" / "replay"
    two = remote_buffer(Pool(3, 4))
    ReplayContent(two, trial, "replay", is_local=False, num_workers=2).save()
    content = ReplayContent(remote_buffer(Pool(0)), trial, "replay", is_local=False)
    content.restore()
    assert f"{folder}/1.buffer is lost" in caplog.text
    content.save()
    assert [path.name for path in folder.iterdir()] == ["0.buffer"]


class Lost:
    """A buffer whose process is gone."""

    def save(self, path: Path) -> None:
        raise WorkerLostError("pool replay: the worker died")

    def load(self, path: Path) -> int:
        return 0


def test_a_run_ends_well_where_its_replay_is_lost_as_it_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trial: Any = Trial(tmp_path)
    ReplayContent(Lost(), trial, "replay", is_local=False).save()
    assert "was to hold is lost: pool replay: the worker died" in caplog.text


def segments_of(steps: int) -> ReplayBuffer:
    """Return an empty replay of segments of so many steps."""
    number = ArraySpec(np.dtype(np.float32), (steps,))
    return ReplayBuffer({"reward": number}, ReplayConfig(capacity=10, batch_size=1))


def test_segments_of_another_length_are_refused_with_what_to_do(tmp_path: Path) -> None:
    trial: Any = Trial(tmp_path)
    held = segments_of(8)
    held.push({"reward": np.zeros(8, np.float32)})
    ReplayContent(held, trial, "replay", is_local=True).save()
    other = ReplayContent(segments_of(16), trial, "replay", is_local=True)
    cure = f"the same steps_per_collect, or delete {tmp_path}/buffers/replay to begin with an empty"
    with pytest.raises(SpecError, match=re.escape(cure)):
        other.restore()
