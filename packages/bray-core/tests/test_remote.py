from __future__ import annotations

import os
import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bray_core import metrics
from bray_core.errors import (
    AlreadyExistsError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    WorkerLostError,
)

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Adder:
    def __init__(self, start: int) -> None:
        self.total = start

    def add(self, number: int) -> int:
        self.total += number
        metrics.record("adder/calls", 1, kind="count")
        return self.total

    def fail(self) -> None:
        raise ConfigError("not like this")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    from bray_core.remote import WorkerPool

    made = WorkerPool("adders", Adder, args=(10,), num_workers=2)
    yield made
    made.close()


def test_each_worker_has_an_instance_of_its_own(pool: Any) -> None:
    assert pool.call("add", 1, worker=0) == 11
    assert pool.call("add", 0, worker=1) == 10
    assert pool.call_all("add", 0) == [11, 10]
    assert len(set(pool.pids())) == 2


def test_exceptions_are_raised_as_themselves(pool: Any) -> None:
    with pytest.raises(ConfigError, match="not like this"):
        pool.call("fail")


def test_a_deadline_is_kept(pool: Any) -> None:
    with pytest.raises(DeadlineError, match=r"adders.*sleep.*within 0\.2 s"):
        pool.call("sleep", 1.0, worker=0, timeout_s=0.2)


def test_names_are_unique_and_can_be_looked_up(pool: Any) -> None:
    from bray_core.remote import WorkerPool

    with pytest.raises(AlreadyExistsError, match=r"'adders' exists already"):
        WorkerPool("adders", Adder, args=(0,))
    found = WorkerPool.get("adders")
    assert found.size == 2
    assert found.pids() == pool.pids()
    assert pickle.loads(pickle.dumps(pool)).pids() == pool.pids()
    with pytest.raises(NotFoundError, match="no pool named 'nobody'"):
        WorkerPool.get("nobody")


def test_metrics_are_gathered(pool: Any) -> None:
    pool.drain_metrics()
    pool.call_all("add", 0)
    (first, second) = pool.drain_metrics()
    assert first.name == second.name == "adder/calls"
    assert first.total + second.total == 2


def test_strategies_keep_their_promise(pool: Any) -> None:
    turns = Counter(pool.choose("round_robin") for _ in range(100))
    assert turns == {0: 50, 1: 50}
    assert len({pool.choose("hash", key="a") for _ in range(10)}) == 1
    keys = Counter(pool.choose("hash", key=str(i)) for i in range(1000))
    assert 400 < keys[0] < 600  # binomial: 6 standard deviations
    assert {pool.choose("local_first") for _ in range(4)} == {0, 1}
    pool._in_flight[0] = 5  # a busy worker is only taken when both draws hit it: 1 in 4
    loads = Counter(pool.choose("least_loaded") for _ in range(1000))
    pool._in_flight[0] = 0
    assert 170 < loads[0] < 330
    with pytest.raises(ConfigError, match="strategy: expected round_robin"):
        pool.choose("best")
    with pytest.raises(ConfigError, match="key: strategy 'hash' needs one"):
        pool.choose("hash")


def test_a_killed_worker_is_replaced() -> None:
    from bray_core.remote import WorkerPool

    made = WorkerPool("mortal", Adder, args=(0,))
    try:
        (pid,) = made.pids()
        pending = made.submit("sleep", 60)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="died"):
            made.result(pending)
        made.wait_ready(60)
        assert made.pids() != [pid]
        assert made.call("add", 1) == 1
    finally:
        made.close()


def test_nonsense_is_refused() -> None:
    from bray_core.remote import WorkerPool

    with pytest.raises(ConfigError, match="num_workers: expected 1 or more, got 0"):
        WorkerPool("none", Adder, num_workers=0)
    with pytest.raises(ConfigError, match="max_concurrency: expected 1 or more, got 0"):
        WorkerPool("none", Adder, max_concurrency=0)
