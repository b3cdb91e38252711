"""Inference workers on real Ray: rows over TCP, the same answers wherever they are computed."""

import asyncio
import os
import signal
import sys
import threading
import uuid

import numpy as np
import pytest
import torch

from bray_core.errors import (
    ClosedError,
    CodecError,
    ConfigError,
    DeadlineError,
    NotFoundError,
    ServiceError,
    SpecError,
    WorkerLostError,
)
from bray_core.process.event_loop import EventLoopThread
from bray_model import ModelConfig
from bray_model.batching.executor import BatchRequest, NonFiniteError
from bray_model.distributed.row_messages import encode_order, encode_request
from bray_server import Client

pytestmark = [pytest.mark.ray, pytest.mark.long]

NUM_WORKERS = 2


class Net(torch.nn.Module):
    """Exact in float32, so that results can be compared to the last bit."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2, bias=False)
        self.table = torch.nn.Embedding(4, 2)

    def forward(self, x, index):
        y = self.linear(x) + self.table(index)
        return {"y": y, "parts": (y.sum(-1), y * 2)}


def weights(value):
    return {
        "linear.weight": np.full((2, 3), value, np.float32),
        "table.weight": np.full((4, 2), 0, np.float32),
    }


def inputs(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-9, 9, (rows, 3)).astype(np.float32), rng.integers(0, 4, rows)


class Fatal(Net):
    """Ends its process in the middle of a batch, as often as the file has letters."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, x, index):
        left = self.path.read_text()
        if left and (index == 3).any():
            self.path.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x, index)


class Sum(torch.nn.Module):
    """Adds up what a session brings."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x, total):
        return {"y": self.scale * x + total, "total": self.scale * x + total}


class Player:
    """What an actor worker does with a handle."""

    def __init__(self, model):
        self.model = model
        self.loop = EventLoopThread("player")

    def infer(self):
        answer = self.loop.run(self.model.infer(np.ones(3, np.float32), np.array(0)), 60)
        return answer.outputs["y"].tolist(), answer.version

    def wait_version(self, version):
        return self.loop.run(self.model.wait_version(version, 30.0))

    def has_torch(self):
        return "torch" in sys.modules

    def publish(self, weights):
        return self.model.publish(weights)


@pytest.fixture(scope="module")
def make(ray_cluster):
    import ray.cloudpickle

    from bray_model.remote import RemoteModel

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    made = []

    def make(placement, num_workers=1, module=None, example=None, state=None, **config):
        config = ModelConfig(max_batch_size=8, reject_non_finite=True, **config)
        made.append(
            RemoteModel(
                f"m-{uuid.uuid4().hex[:8]}",
                module or Net(),
                example or (np.zeros((1, 3), np.float32), np.zeros(1, np.int64)),
                state=state,
                config=config,
                placement=placement,
                num_workers=num_workers,
            )
        )
        return made[-1]

    yield make
    for model in made:
        model.close()


@pytest.fixture(scope="module", params=["workers", "proxy"])
def model(make, request):
    return make(request.param, NUM_WORKERS)


@pytest.fixture(scope="module")
def caller(make):
    return make("caller")


@pytest.fixture
def player(ray_cluster):
    from bray_core.remote.pool import WorkerPool

    pools = []

    def player(model):
        pools.append(WorkerPool(f"p-{uuid.uuid4().hex[:8]}", Player, args=(model,)))
        return pools[-1]

    yield player
    for pool in pools:
        pool.close()


def same(got, wanted):
    np.testing.assert_array_equal(got["y"], wanted["y"])
    assert isinstance(got["parts"], tuple)
    for part, other in zip(got["parts"], wanted["parts"], strict=True):
        assert part.dtype == other.dtype
        np.testing.assert_array_equal(part, other)


async def test_answers_are_the_same_wherever_they_are_computed(model, caller):
    rng = np.random.default_rng(1)
    for each in (model, caller):
        rng = np.random.default_rng(1)
        each.publish(
            {
                "linear.weight": rng.integers(-9, 9, (2, 3)).astype(np.float32),
                "table.weight": rng.integers(-9, 9, (4, 2)).astype(np.float32),
            }
        )
    assert model.signature == caller.signature
    x, index = inputs(50)
    rows = list(zip(x, index, strict=True))
    wanted = await asyncio.gather(*[caller.forward(a, np.array(b)) for a, b in rows])
    for got, one in zip(
        await asyncio.gather(*[model.forward(a, np.array(b)) for a, b in rows]), wanted, strict=True
    ):
        same(got, one)
        got["y"][:] = 0  # the caller's own
    for count in (1, 8, 50):  # 50 is more than a batch
        part = x[:count], index[:count]
        same(await model.forward(*part, batch=True), await caller.forward(*part, batch=True))
    same(await asyncio.to_thread(model, x[0], np.array(index[0])), wanted[0])
    same(await asyncio.to_thread(lambda: model(x, index, batch=True)), caller(x, index, batch=True))


async def test_a_caller_is_answered_with_what_it_published(model):
    """Whichever worker answers, and however far behind it is."""
    row = np.ones(3, np.float32), np.array(0)
    first = model.version
    for version in range(first + 1, first + 31):
        assert model.publish(weights(version)) == version == model.version
        answers = await asyncio.gather(*[model.infer(*row) for _ in range(6)])
        for answer in answers:
            assert answer.version == version
            assert answer.outputs["y"].tolist() == [3.0 * version] * 2
    assert await model.wait_version(version, 1.0) == version
    with pytest.raises(DeadlineError, match=rf"version {version + 1}: not published within 0.01"):
        await model.wait_version(version + 1, 0.01)


async def test_what_fails_fails_with_the_same_error_and_alone(model, caller):
    x, index = inputs(3)
    good = model.forward(x[0], np.array(index[0]))
    bad_shape = model.forward(x[0, :2], np.array(0))
    not_finite = model.forward(np.full(3, np.nan, np.float32), np.array(0))
    beyond = model.forward(x[1], np.array(7))
    got = await asyncio.gather(good, bad_shape, not_finite, beyond, return_exceptions=True)
    assert set(got[0]) == {"y", "parts"}
    calls = (
        caller.forward(x[0, :2], np.array(0)),
        caller.forward(np.full(3, np.nan, np.float32), np.array(0)),
        caller.forward(x[1], np.array(7)),
    )
    for error, call, kind in zip(
        got[1:], calls, (SpecError, NonFiniteError, IndexError), strict=True
    ):
        with pytest.raises(kind) as wanted:
            await call
        assert type(error) is kind
        assert str(error) == str(wanted.value)
    with pytest.raises(SpecError, match="expected at least one row, got a batch of 0"):
        await model.forward(*(leaf[:0] for leaf in inputs(1)), batch=True)


def test_a_worker_checks_what_comes_and_who_asks(model):
    address = model._attached()._link.worker(0)
    token = model._attached().blueprint.token
    for other in (None, "guess"):
        with pytest.raises(ServiceError, match="unauthorized"), Client(address, other) as client:
            client.call(b"")
    workers = model._attached().workers()

    def ask(body):
        return workers.run(workers.ask(body))

    with pytest.raises(
        SpecError, match=r"inputs\[0\]: expected float32 \(3,\), got float32 \(2,\)"
    ):
        ask(encode_request(BatchRequest([np.zeros(2, np.float32), np.array(0)]), None, 0))
    with pytest.raises(CodecError, match="inputs: expected the leaves"):
        ask(encode_request(BatchRequest([np.zeros(3, np.float32)]), None, 0))
    with pytest.raises(CodecError, match="expected inputs, wait, drop or end"):
        ask(encode_order(nonsense=1))
    with pytest.raises(NotFoundError, match="has no clone 'nobody'"):
        ask(encode_request(BatchRequest([np.zeros(3, np.float32), np.array(0)]), "nobody", 0))
    assert token not in repr(model)


def test_other_processes_need_no_torch(model, player):
    pool = player(model)
    version = model.publish(weights(2))
    assert pool.call("wait_version", version) >= version
    assert pool.call("infer") == ([6.0, 6.0], version)
    assert not pool.call("has_torch")
    assert pool.call("publish", weights(4)) == version + 1, "that needs the module"
    assert pool.call("infer") == ([12.0, 12.0], version + 1)
    assert asyncio.run(model.wait_version(version + 1, 30)) == version + 1


async def test_a_clone_is_served_by_the_same_workers(model, player):
    version = model.publish(weights(5))
    pids = model.pids()
    clone = model.clone(name=f"five-{version}")
    deeper = clone.clone(name=f"five-again-{version}")
    model.publish(weights(6))
    row = np.ones(3, np.float32), np.array(0)
    for handle in (clone, deeper, model.get_clone(clone.name)):
        answers = await asyncio.gather(*[handle.infer(*row) for _ in range(8)])
        assert {(answer.version, answer.outputs["y"][0]) for answer in answers} == {(version, 15.0)}
    assert (await model.infer(*row)).outputs["y"][0] == 18.0
    assert model.pids() == pids
    pool = player(clone)
    assert pool.call("infer") == ([15.0, 15.0], version)
    assert not pool.call("has_torch")
    for handle in (clone, deeper):
        await asyncio.to_thread(handle.close)
    with pytest.raises(NotFoundError, match=f"has no clone '{clone.name}'"):
        await model.get_clone(clone.name).infer(*row)


def test_workers_killed_in_the_middle_are_replaced_and_no_request_fails(model):
    """One of two, then both at once; requests are under way all the time."""
    version = model.publish(weights(3))
    stop, failures, counts = threading.Event(), [], []

    def play():
        count = 0
        while not stop.is_set():
            try:
                assert model(np.ones(3, np.float32), np.array(0))["y"].tolist() == [9.0, 9.0]
                count += 1
            except Exception as error:  # noqa: BLE001  reported below
                failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        before = model.pids()
        for victims in (before[:1], None):
            for pid in model.pids() if victims is None else victims:
                os.kill(pid, signal.SIGKILL)
            model._workers.wait_ready(60)
            assert asyncio.run(model.infer(np.ones(3, np.float32), np.array(0))).version == version
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not set(before) & set(model.pids())
    assert min(counts) > 0
    # Both dead at once: the second try may have met the second one's death.
    assert all(isinstance(error, WorkerLostError) for error in failures), failures
    assert len(failures) <= len(threads)


def test_a_request_whose_worker_dies_over_it_is_tried_once_more(make, tmp_path):
    path = tmp_path / "deaths"
    path.write_text("x")
    model = make("workers", module=Fatal(path))
    model.publish(weights(1))
    fatal = np.ones(3, np.float32), np.array(3)
    assert model(*fatal)["y"].tolist() == [3.0, 3.0], "by the worker that replaced the dead one"
    path.write_text("xx")
    with pytest.raises(WorkerLostError, match="inference worker 0 died"):
        model(*fatal)
    assert model(*fatal)["y"].tolist() == [3.0, 3.0], "later requests are answered"


def test_a_session_stays_with_the_worker_that_has_its_state(make):
    example = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32)
    state = {"inputs[1]": "outputs/total"}
    model = make("proxy", 2, Sum(), example, state)
    x = np.ones(1, np.float32)
    names = [f"s{i}" for i in range(6)]

    def add(name, handle=model):
        return float(asyncio.run(handle.infer(x, session=name)).outputs["y"][0])

    for turn in (1, 2, 3):
        assert [add(name) for name in names] == [turn] * 6
    assert model(x, session="s0")["y"].tolist() == [4.0]
    clone = model.clone()
    assert [add("s0", clone), add("s0", clone), add("s0")] == [1, 2, 5]
    model.end_session("s0")
    model.end_session("nobody")
    assert add("s0") == 1
    with pytest.raises(ConfigError, match="session='s1': a session asks one row at a time"):
        model(x[None], batch=True, session="s1")
    with pytest.raises(SpecError, match=r"inputs\[0\]: expected float32 \(1,\)"):
        model(np.zeros(2, np.float32), session="s1")
    for pid in model.pids():
        os.kill(pid, signal.SIGKILL)
    for name in names:
        with pytest.raises(WorkerLostError, match=f"state of session '{name}': its next call"):
            add(name)
    assert [add(name) for name in names] == [1] * 6


def test_a_deadline_holds_while_a_worker_stands_still(make):
    model = make("workers", timeout_s=0.2)
    model(np.ones(3, np.float32), np.array(0))
    workers = model._attached().workers()
    workers._timeout_s = 0.5
    (pid,) = model.pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineError, match=r"no answer within 0\.5 s"):
            model(np.ones(3, np.float32), np.array(0))
    finally:
        os.kill(pid, signal.SIGCONT)
    model.close()
    with pytest.raises(ClosedError):
        model(np.ones(3, np.float32), np.array(0))


async def test_closing_fails_those_who_wait(make):
    model = make("workers")
    row = np.ones(3, np.float32), np.array(0)
    await model.infer(*row)
    os.kill(model.pids()[0], signal.SIGSTOP)  # ended by the close
    waiting = [
        asyncio.ensure_future(model.infer(*row)),
        asyncio.ensure_future(asyncio.to_thread(model, *row)),
        asyncio.ensure_future(model.wait_version(9)),
    ]
    cancelled = asyncio.ensure_future(model.infer(*row))
    workers = model._attached().workers()
    while workers._in_flight[0] < 4:  # noqa: ASYNC110  no event tells
        await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.to_thread(model.close)
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, ClosedError)
        assert str(error) == f"model {model.name!r}: closed"
    with pytest.raises(asyncio.CancelledError):
        await cancelled


def test_nonsense_is_refused(make):
    with pytest.raises(ConfigError, match="placement: expected one of caller, workers, proxy, got"):
        make("here")
    with pytest.raises(ConfigError, match="num_workers: expected 1 or more, got 0"):
        make("workers", 0)
    with pytest.raises(ConfigError, match="num_workers=2: placement 'caller' has no workers"):
        make("caller", 2)


def test_an_inference_worker_that_does_not_come_back_is_told_with_the_time(monkeypatch):
    from bray_model import remote

    def get(name):
        raise DeadlineError(f"pool {name}: no answer within 0.0967 s")

    monkeypatch.setattr(remote.WorkerPool, "get", get)
    monkeypatch.setattr(remote, "_REPLACED_S", 0.0)
    message = "^model 'demo': inference worker 1 is not back after 0 s: does the cluster still have"
    with pytest.raises(WorkerLostError, match=message):
        remote._Link(None, "demo").worker(1)
