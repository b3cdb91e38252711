"""Clones share one worker: its thread, its lock, its memory for engines."""

import asyncio
import errno
import os
import random
import threading

import numpy as np
import onnxruntime
import pytest
import torch

from bray_core import metrics
from bray_core.errors import (
    AlreadyExistsError,
    ClosedError,
    CodecError,
    ConfigError,
    NotFoundError,
    SpecError,
    VersionNotFoundError,
)
from bray_core.process.event_loop import EventLoopThread
from bray_model import Model, ModelConfig, Retention

ROW = np.ones(2, np.float32)
NBYTES = 4 * 1001


class Scale(torch.nn.Module):
    """Answers x times a weight, and other weights beside it, to show mixed versions."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(()))
        self.b = torch.nn.Parameter(torch.zeros(1000))

    def forward(self, x):
        ones = torch.ones(x.shape[0])
        seen = torch.stack([ones * self.a, ones * self.b[0], ones * self.b[-1]], 1)
        return {"y": x * self.a, "seen": seen}


def scale(value):
    return {"a": np.float32(value), "b": np.full(1000, value, np.float32)}


def value(model):
    seen = np.unique(model(ROW)["seen"])
    assert len(seen) == 1
    return seen[0]


def loads():
    return {s.name: s.value for s in metrics.drain()}.get("model/version_loads", 0)


@pytest.fixture
def make(tmp_path):
    """Settings → a model with the versions 1 to 6 on disk, of which 6 is current."""
    models = []

    def build(module=None, **settings):
        config = ModelConfig(**{"retention": Retention(keep_last=100), **settings})
        model = Model(Scale(), ROW[None], name="demo", config=config, directory=tmp_path)
        models.append(model)
        for number in range(model.version + 1, 7):
            model.publish(scale(number))
            model.checkpoint()
        return model

    yield build
    for model in models:
        model.close()


def test_a_version_on_disk_is_linked_at_once_and_read_when_it_is_asked(make, tmp_path):
    model = make()
    metrics.drain()
    clone = model.clone(3, "old")
    linked = tmp_path / "clones" / "old" / "versions" / "3.safetensors"
    assert linked.samefile(tmp_path / "versions" / "3.safetensors"), "nothing was copied"
    assert clone.version == 3
    assert loads() == 0
    assert [value(clone), value(clone), value(model)] == [3.0, 3.0, 6.0]
    assert loads() == 1


def test_what_is_only_in_memory_is_shared(make):
    model = make()
    model.publish(scale(7))
    with Model(Scale(), ROW[None]) as plain, model.clone(name="now") as clone:
        assert clone.weights()[1] is model.weights()[1]
        assert plain.clone().weights()[1] is plain.weights()[1]
        with pytest.raises(VersionNotFoundError, match=r"holds version 0 only, and has no direct"):
            plain.clone(4)
        assert clone.checkpoint().parts[-4:] == ("clones", "now", "versions", "7.safetensors")


def test_the_file_outlives_the_parents_retention(make, tmp_path):
    model = make(retention=Retention(keep_last=2))
    clone = model.clone(5, "old")
    for number in range(7, 10):
        model.publish(scale(number))
        model.checkpoint()
    assert not (tmp_path / "versions" / "5.safetensors").exists()
    assert value(clone) == 5.0
    with pytest.raises(VersionNotFoundError, match=r"version 5: not in .*; it has \[8, 9\]"):
        model.clone(5)


def test_clones_share_one_thread_and_the_memory_for_engines(make):
    model = make(cache_bytes=2 * NBYTES)
    clones = {number: model.clone(number, f"v{number}") for number in range(1, 7)}
    order = random.Random(0).choices(range(1, 7), k=60)
    recent, misses = [], 0
    metrics.drain()

    async def ask():
        nonlocal recent, misses
        for number in order:
            answer = await clones[number].infer(ROW)
            assert (answer.version, answer.outputs["seen"].tolist()) == (number, [number] * 3)
            misses += number not in recent
            recent = [*(n for n in recent if n != number), number][-2:]
            assert model._executor._engines.num_engines <= 2

    asyncio.run(ask())
    assert loads() == misses > 20
    threads = [t for t in threading.enumerate() if t.name.startswith("bray-model-demo")]
    assert len(threads) == 1


@pytest.mark.parametrize("inline", [False, True])
def test_batches_never_mix_versions(make, inline):
    """Two loops ask the model and its clones; two of them are published to all the while."""
    model = make(cache_bytes=3 * NBYTES, inline_below_us=10**9 if inline else 0, max_batch_size=8)
    clones = [model.clone(number, f"v{number}") for number in range(1, 6)]
    done = threading.Event()
    answered = []

    async def ask(asked):
        while not done.is_set():
            answer = await asked.infer(ROW)
            assert answer.outputs["seen"].tolist() == [float(answer.version)] * 3
            answered.append((asked.name, answer.version))
            await asyncio.sleep(0)

    async def many():
        await asyncio.gather(*(ask(asked) for asked in [model, *clones] for _ in range(3)))

    runners = [EventLoopThread("one"), EventLoopThread("other")]
    futures = [runner.submit(many()) for runner in runners]
    while len(answered) < 2000 and not any(future.done() for future in futures):
        for published in (model, clones[0]):
            published.publish(scale(published.version + 1))
        assert value(clones[0]) == clones[0].version
    done.set()
    for runner, future in zip(runners, futures, strict=True):
        future.result(30)
        runner.stop()
    assert {version for name, version in answered if name == "v3"} == {3}
    assert len({version for name, version in answered if name == "demo"}) > 5


def test_clones_of_clones_are_separate_too(make, tmp_path):
    model = make()
    child = model.clone(4, "child")
    child.publish(scale(50))
    child.checkpoint()
    grandchild, other = child.clone(name="grandchild"), child.clone(4, "other")
    folder = tmp_path / "clones/child/clones/grandchild/versions"
    assert folder.joinpath("5.safetensors").samefile(
        tmp_path / "clones/child/versions/5.safetensors"
    )
    assert (grandchild.version, value(grandchild), value(other)) == (5, 50.0, 4.0)
    grandchild.publish(scale(60))
    child.publish(scale(70))
    assert [value(m) for m in (model, child, grandchild, other)] == [6.0, 70.0, 60.0, 4.0]


def test_a_clone_keeps_versions_of_its_own(make):
    model = make()
    clone = model.clone(2, "rival")
    assert clone.publish(scale(30)) == 3
    clone.checkpoint()
    assert clone.load(2) == 2
    assert value(clone) == 2.0
    assert clone.publish(scale(40)) == 4
    assert value(clone) == 40.0
    with pytest.raises(VersionNotFoundError, match=r"version 6: not in .*rival.* it has \[2, 3\]"):
        clone.load(6)
    assert [model.load(3), value(model)] == [3, 3.0]


def test_names(make):
    model = make()
    for name in ("../up", "a/b", "", ".hidden", "a b", 7, "a" * 101):
        for use in (
            lambda name=name: model.clone(1, name),
            lambda name=name: model.get_clone(name),
        ):
            with pytest.raises(ConfigError, match=r"name: expected letters, digits, '.'"):
                use()
    first = model.clone(1, "rival")
    with pytest.raises(AlreadyExistsError, match=r"has a clone 'rival' already: get_clone looks"):
        model.clone(2, "rival")
    assert model.get_clone("rival") is first
    with pytest.raises(NotFoundError, match=r"clone 'other': model 'demo' has \['rival'\]"):
        model.get_clone("other")
    assert [model.clone().name for _ in range(3)] == ["demo-v6", "demo-v6-2", "demo-v6-3"]
    with Model(Scale(), ROW[None], name="../a model") as odd:
        assert odd.clone().name == "a-model-v0"


def test_a_name_that_is_taken_on_disk_is_found_again_after_a_restart(make, tmp_path):
    model = make()
    model.clone(2, "kept")
    clone = model.clone(3, "moved")
    clone.publish(scale(33))
    clone.checkpoint()
    model.close()
    (tmp_path / "clones" / "a file of the user").touch()
    again = make()
    with pytest.raises(AlreadyExistsError, match="'kept'"):
        again.clone(5, "kept")
    with pytest.raises(NotFoundError, match=r"has \['kept', 'moved'\]"):
        again.get_clone("lost")
    kept, moved = again.get_clone("kept"), again.get_clone("moved")
    assert (kept.version, value(kept)) == (2, 2.0)
    assert (moved.version, value(moved), moved.publish(scale(9))) == (4, 33.0, 5)
    assert again.get_clone("moved") is moved


def test_what_an_unnamed_clone_has_on_disk_goes_with_it(make, tmp_path):
    model = make()
    with model.clone() as now:
        assert not (tmp_path / "clones").exists(), "the current version is in memory"
        now.checkpoint()
        assert (tmp_path / "clones" / "demo-v6").is_dir()
    with model.clone(2) as old, model.clone(2, "named") as named:
        assert (old.name, value(old), value(named)) == ("demo-v2", 2.0, 2.0)
    assert [folder.name for folder in (tmp_path / "clones").iterdir()] == ["named"]
    assert value(model.get_clone("named")) == 2.0


def test_closing_a_clone_frees_its_share(make):
    model = make(cache_bytes=10 * NBYTES)
    clones = [model.clone(number, f"v{number}") for number in range(1, 6)]
    assert [value(clone) for clone in clones] == [1.0, 2.0, 3.0, 4.0, 5.0]
    for clone in clones[:4]:
        clone.close()
        clone.close()
    assert model._executor._engines.num_engines == 2, "that of the fifth, and one for the next"
    assert len(model._clones._by_name) == 1
    with pytest.raises(ClosedError, match="model 'v1': closed"):
        clones[0](ROW)
    assert value(clones[4]) == 5.0
    assert value(model.get_clone("v1")) == 1.0


async def test_closing_the_model_closes_its_clones(make):
    model = make(max_wait_us=60_000_000)
    clone = model.clone(3, "child")
    grandchild = clone.clone(name="grandchild")
    waiting = [asyncio.ensure_future(asked.infer(ROW)) for asked in (model, clone, grandchild)] + [
        asyncio.ensure_future(clone.wait_version(9))
    ]
    await asyncio.sleep(0)
    model.close()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
    assert [type(result) for result in results] == [ClosedError] * 4
    for closed in (model, clone, grandchild):
        uses = (lambda m=closed: m(ROW), lambda m=closed: m.publish(scale(9)), closed.clone)
        for use in (*uses, lambda m=closed: m.get_clone("x")):
            with pytest.raises(ClosedError, match="closed"):
                use()


async def test_closing_a_clone_leaves_the_others(make):
    model = make()
    child = model.clone(3, "child")
    child.clone(name="grandchild")
    child.close()
    assert (await model.infer(ROW)).version == 6
    with model.clone(3, "next") as after:
        assert (await after.infer(ROW)).version == 3


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV])
def test_without_hard_links_the_file_is_copied(make, monkeypatch, code):
    model = make()

    def refuse(*paths):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    assert value(model.clone(3, "copied")) == 3.0


async def test_a_broken_file_fails_its_clone_alone(make, tmp_path):
    model = make()
    broken, whole = model.clone(2, "broken"), model.clone(3, "whole")
    file = tmp_path / "clones/broken/versions/2.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-5])
    results = await asyncio.gather(
        broken.infer(ROW), whole.infer(ROW), model.infer(ROW), return_exceptions=True
    )
    assert isinstance(results[0], CodecError)
    assert "2.safetensors: not a whole safetensors file" in str(results[0])
    assert [answer.version for answer in results[1:]] == [3, 6]
    file.write_bytes(content)
    assert value(broken) == 2.0


def test_a_file_of_another_module_is_told(make, tmp_path):
    model = make()
    clone = model.clone(2, "odd")
    with Model(torch.nn.Linear(2, 1), ROW[None], directory=tmp_path / "other") as other:
        file = other.checkpoint()
    (tmp_path / "clones/odd/versions/2.safetensors").unlink()
    file.rename(tmp_path / "clones/odd/versions/2.safetensors")
    with pytest.raises(SpecError, match=r"version 2 in .*odd.* is of another module: weights/"):
        clone(ROW)


def test_exports_clone_as_well(tmp_path, monkeypatch):
    """The same sessions, other weights."""
    module = torch.nn.Linear(2, 2)
    with Model(module, ROW[None]) as origin:
        origin.export(tmp_path / "export")
    sessions = []
    made = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda *args, **kwargs: sessions.append(1) or made(*args, **kwargs),
    )
    config = ModelConfig(cache_bytes=2 * 24)
    with Model(tmp_path / "export", directory=tmp_path / "trial", config=config) as model:
        for number in range(1, 6):
            model.publish(
                {
                    "weight": np.full((2, 2), number, np.float32),
                    "bias": np.zeros(2, np.float32),
                }
            )
            model.checkpoint()
        clones = [model.clone(number) for number in range(1, 6)]
        for _ in range(2):
            assert [clone(ROW).tolist() for clone in clones] == [[2.0 * n] * 2 for n in range(1, 6)]
        assert model._executor._engines.num_engines <= 2
        assert clones[2].clone()(ROW).tolist() == [6.0, 6.0]
    assert len(sessions) == 2, "as exported, and with its weights as inputs"


def test_an_export_of_a_clone_holds_its_version(make, tmp_path):
    clone = make().clone(2, "old")
    assert clone.export(tmp_path / "export").version == 2
    with Model(tmp_path / "export") as exported:
        assert (exported.version, value(exported)) == (2, 2.0)
