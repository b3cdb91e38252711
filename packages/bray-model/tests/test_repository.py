"""Exports that come, change and go below a served folder."""

import ctypes
import gc
import json
import logging
import resource
import shutil
import threading
import weakref
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

from bray_core.codec import decode, encode
from bray_core.errors import (
    ConfigError,
    ExportError,
    NotFoundError,
    ServiceError,
    VersionNotFoundError,
)
from bray_model import Model, ModelConfig
from bray_model.serving import service as service_module
from bray_model.serving.repository import ExportRepository
from bray_model.serving.service import service_of
from bray_model.serving.shared_publishing import SharedPublisher

ROW = np.ones(2, np.float32)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """number → an export whose output is that number, and whose version is it."""
    folder = tmp_path_factory.mktemp("exports")
    with Model(torch.nn.Linear(2, 1), np.zeros((1, 2), np.float32), name="constant") as model:
        for number in (1, 2, 3):
            weights = {"weight": np.zeros((1, 2), np.float32), "bias": np.float32([number])}
            model.publish(weights)
            model.export(folder / str(number))
    with Model(torch.nn.Linear(3, 1), np.zeros((1, 3), np.float32), name="constant") as model:
        model.export(folder / "wider")
    return folder


def copy(source, target):
    """As a user may: beside it, then renamed."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)


def open_at(path):
    return ExportRepository(path, lambda manifest: ModelConfig())


def answer(repository, name="constant"):
    model, _ = repository.get(name).current
    return float(model(ROW)[0]), model.version


@pytest.mark.long
def test_an_export_is_replaced(exports, tmp_path):
    copy(exports / "1", tmp_path / "e")
    repository = open_at(tmp_path / "e")
    served = repository.get("constant")
    assert answer(repository) == (1.0, 1)
    old = weakref.ref(served.model)
    copy(exports / "2", tmp_path / "e")
    repository.scan()
    assert answer(repository) == (2.0, 2)
    assert repository.get("constant") is served, "sessions that hold it go on with the new one"
    gc.collect()
    assert old() is None, "the old one is freed"
    copy(exports / "1", tmp_path / "e")
    repository.scan()
    assert answer(repository) == (1.0, 1), "also back to an older one"
    repository.close()


def test_versions_and_names_stand_side_by_side(exports, tmp_path):
    for number in ("1", "2"):
        copy(exports / number, tmp_path / "constant" / number)
    copy(exports / "wider", tmp_path / "other")
    manifest = tmp_path / "other/manifest.json"
    manifest.write_text(manifest.read_text().replace('"constant"', '"other"'))
    repository = open_at(tmp_path)
    assert repository.names == ["constant", "other"]
    assert answer(repository) == (2.0, 2)
    assert float(repository.version("constant", "1")(ROW)[0]) == 1.0
    with pytest.raises(VersionNotFoundError, match=r"version '9' is not served; served: \[1, 2\]"):
        repository.version("constant", "9")
    with pytest.raises(
        NotFoundError, match=r"model 'x': not served; served: \['constant', 'other'\]"
    ):
        repository.get("x")
    copy(exports / "3", tmp_path / "constant/3")
    repository.scan()
    assert answer(repository) == (3.0, 3)
    shutil.rmtree(tmp_path / "constant/3")
    repository.scan()
    assert answer(repository) == (3.0, 3), "it may be away only to be replaced"
    repository.scan()
    assert answer(repository) == (2.0, 2)
    for _ in range(2):
        shutil.rmtree(tmp_path / "constant", ignore_errors=True)
        repository.scan()
    repository.scan()
    assert answer(repository) == (2.0, 2), "the last of a name stays"
    repository.close()


def test_what_cannot_be_opened_changes_nothing(exports, tmp_path, caplog):
    copy(exports / "1", tmp_path / "e")
    repository = open_at(tmp_path / "e")
    copy(exports / "2", tmp_path / "new")
    graph = (tmp_path / "new/model.onnx").read_bytes()
    (tmp_path / "new/model.onnx").write_bytes(graph[:100])
    shutil.rmtree(tmp_path / "e")
    (tmp_path / "new").rename(tmp_path / "e")
    with caplog.at_level(logging.WARNING):
        repository.scan()
        repository.scan()
    (words,) = (r.getMessage() for r in caplog.records if r.name.startswith("bray"))
    assert "model.onnx: its 100 bytes do not have the checksum" in words, "said once"
    assert answer(repository) == (1.0, 1)
    (tmp_path / "e/model.onnx").write_bytes(graph)  # the copy is whole now
    repository.scan()
    assert answer(repository) == (2.0, 2)
    repository.close()


def test_another_signature_is_served_apart_from_sessions_of_the_old_one(exports, tmp_path):
    copy(exports / "1", tmp_path / "e")
    repository = open_at(tmp_path / "e")
    before = repository.get("constant")
    copy(exports / "wider", tmp_path / "e")
    repository.scan()
    assert repository.get("constant") is not before
    assert repository.get("constant").signature.inputs[0].shape == (3,)
    assert before.model(ROW)[0] == 1.0
    repository.close()


def test_two_exports_of_one_version_are_refused(exports, tmp_path, caplog):
    copy(exports / "1", tmp_path / "a")
    repository = open_at(tmp_path)
    copy(exports / "1", tmp_path / "b")
    repository.scan()
    assert "is constant version 1, as is" in caplog.text
    assert answer(repository) == (1.0, 1)
    repository.close()
    with pytest.raises(ConfigError, match=r"is constant version 1, as is .*/a: remove one"):
        open_at(tmp_path)


def test_an_export_of_a_taken_version_holds_up_no_other(exports, tmp_path, monkeypatch):
    copy(exports / "2", tmp_path / "a")
    repository = open_at(tmp_path)
    copy(exports / "2", tmp_path / "b")
    copy(exports / "2", tmp_path / "c")
    opened = []
    opening = repository._open
    monkeypatch.setattr(repository, "_open", lambda one: opened.append(one.name) or opening(one))
    repository.scan()
    repository.scan()
    assert not opened, "nobody could ask it"
    copy(exports / "3", tmp_path / "d")
    repository.scan()
    assert answer(repository) == (3.0, 3)
    shutil.rmtree(tmp_path / "a")
    for _ in range(3):
        repository.scan()
    assert set(repository.exports()) == {tmp_path / "b", tmp_path / "d"}
    assert opened == ["d", "b"]
    repository.close()


def test_weights_go_to_the_export_that_is_served_of_two_with_one_version(exports, tmp_path):
    copy(exports / "1", tmp_path / "models" / "1")
    (tmp_path / "shared").mkdir()
    weights = {"weight": np.zeros((1, 2), np.float32), "bias": np.float32([20])}
    publisher = SharedPublisher(
        tmp_path / "models", tmp_path / "shared", lambda manifest: ModelConfig()
    )
    assert publisher.publish("constant", weights) == 2
    copy(exports / "2", tmp_path / "models" / "2")  # which the serving processes do not take up
    assert publisher.publish("constant", weights) == 3
    assert len(list((tmp_path / "shared").iterdir())) == 1
    publisher.close()


@pytest.mark.long
def test_weights_that_were_published_keep_their_number(exports, tmp_path, caplog):
    """An export that comes later has a higher one, or is not taken up."""
    copy(exports / "1", tmp_path / "1")
    repository = open_at(tmp_path)
    published = {"weight": np.zeros((1, 2), np.float32), "bias": np.float32([20])}
    assert repository.get("constant").publish(published) == 2
    copy(exports / "2", tmp_path / "2")
    repository.scan()
    assert answer(repository) == (20.0, 2)
    assert "is constant version 2, as is" in caplog.text
    copy(exports / "3", tmp_path / "3")
    shutil.rmtree(tmp_path / "2")
    repository.scan()
    assert answer(repository) == (3.0, 3)
    assert float(repository.version("constant", "2")(ROW)[0]) == 20.0
    repository.close()


def test_nothing_and_broken_at_the_start(exports, tmp_path):
    with pytest.raises(NotFoundError, match="neither an export"):
        open_at(tmp_path)
    copy(exports / "1", tmp_path / "e")
    manifest = tmp_path / "e/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 7}))
    with pytest.raises(ExportError, match="expected format 1, got 7"):
        open_at(tmp_path)


def test_folders_that_begin_with_a_dot_are_not_served(exports, tmp_path):
    copy(exports / "1", tmp_path / "e")
    copy(exports / "2", tmp_path / ".e.tmp/new")
    repository = open_at(tmp_path)
    assert len(repository.exports()) == 1
    repository.close()


def test_it_follows_by_itself(exports, tmp_path):
    copy(exports / "1", tmp_path / "e")
    repository = open_at(tmp_path / "e")
    taken = threading.Event()
    scan = repository.scan
    repository.scan = lambda: (scan(), repository.get("constant").version == 2 and taken.set())
    repository.follow()
    copy(exports / "2", tmp_path / "e")
    assert taken.wait(30)
    assert answer(repository) == (2.0, 2)
    repository.close()


class Greeter:
    """A stand-in for an installed actor class."""

    @classmethod
    def from_export(cls, config, model):
        return lambda session: (session, config["word"], model)


def test_sessions_follow_the_newest_export(exports, tmp_path, monkeypatch):
    entry = EntryPoint("greeter", "somewhere:Greeter", "bray.actors")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Greeter)
    monkeypatch.setattr(service_module, "entry_points", lambda group: [entry])

    def serve(number, word):
        copy(exports / number, tmp_path / "e")
        manifest = tmp_path / "e/manifest.json"
        content = json.loads(manifest.read_text())
        content["actor"] = {"name": "greeter", "config": {"word": word}}
        manifest.write_text(json.dumps(content))

    serve("1", "hello")
    repository = open_at(tmp_path / "e")
    sessions = service_of(repository, None)
    _, _, first = sessions("a")
    serve("2", "hello")
    repository.scan()
    _, word, model = sessions("b")
    assert (word, model is first, first.version) == ("hello", True, 2), "both with the new one"
    serve("3", "goodbye")
    repository.scan()
    _, word, model = sessions("c")
    assert (word, model.version) == ("goodbye", 3)
    assert first.version == 2, "a session of another actor goes on as it was"
    repository.close()


@pytest.mark.parametrize(
    ("actor", "words"),
    [
        ({"name": "absent", "config": {}}, "actor 'absent': not installed"),
        ({"name": "greeter", "config": {}}, "no word"),
        (None, "its manifest names no actor"),
    ],
)
def test_an_actor_that_cannot_be_made_leaves_sessions_with_the_one_before(
    exports, tmp_path, monkeypatch, caplog, actor, words
):
    class Exacting:
        @classmethod
        def from_export(cls, config, model):
            if "word" not in config:
                raise ConfigError("actor.config: no word")
            return lambda session: (session, config["word"], model)

    entry = EntryPoint("greeter", "somewhere:Exacting", "bray.actors")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Exacting)
    monkeypatch.setattr(service_module, "entry_points", lambda group: [entry])

    def serve(number, actor):
        copy(exports / number, tmp_path / number)
        manifest = tmp_path / number / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "actor": actor}))

    serve("1", {"name": "greeter", "config": {"word": "hello"}})
    repository = open_at(tmp_path)
    sessions = service_of(repository, None)
    serve("2", actor)
    with caplog.at_level(logging.WARNING):
        repository.scan()
        _, word, model = sessions("a")
        sessions("b")
    assert (word, model.version) == ("hello", 1)
    (said,) = (r.getMessage() for r in caplog.records if r.name.startswith("bray"))
    assert said.startswith("constant version 2: sessions stay with the policy before: "), "once"
    assert words in said
    serve("3", {"name": "greeter", "config": {"word": "goodbye"}})
    repository.scan()
    _, word, model = sessions("c")
    assert (word, model.version) == ("goodbye", 3)
    repository.close()


async def test_stateless_calls_follow_the_newest_export_whatever_its_inputs(exports, tmp_path):
    copy(exports / "2", tmp_path / "e")
    repository = open_at(tmp_path / "e")
    service = service_of(repository, None)
    assert decode(await service.tick(encode([ROW])))["outputs"] == [2.0]
    copy(exports / "wider", tmp_path / "e")
    repository.scan()
    assert decode(await service.tick(encode([np.ones(3, np.float32)])))["version"] == 0
    with pytest.raises(ServiceError, match=r"expected float32 \(3,\)"):
        await service.tick(encode([ROW]))
    repository.close()


class Speaker:
    """Another one, whose sessions say the word of their policy."""

    def __init__(self, word):
        self.word = word

    @classmethod
    def from_export(cls, config, model):
        return lambda session: cls(config["word"].encode())

    async def start(self, body):
        return self.word

    async def tick(self, body):
        return self.word

    end = abort = tick


async def test_a_policy_put_beside_several_is_played_at_once(exports, tmp_path, monkeypatch):
    entry = EntryPoint("speaker", "somewhere:Speaker", "bray.actors")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Speaker)
    monkeypatch.setattr(service_module, "entry_points", lambda group: [entry])

    def put(name, actor="speaker"):
        copy(exports / "1", tmp_path / name)
        manifest = tmp_path / name / "manifest.json"
        content = {**json.loads(manifest.read_text()), "name": name}
        content["actor"] = {"name": actor, "config": {"word": name, "agents": [f"{name}_*"]}}
        manifest.write_text(json.dumps(content))

    put("hunter")
    put("runner")
    repository = open_at(tmp_path)
    sessions = service_of(repository, None)
    with pytest.raises(ServiceError, match=r"\['hunter', 'runner'\].*hunter_\*, runner_\*\), got"):
        await sessions("a").start(encode({"policy": "guard"}))
    put("guard")
    put("other", actor="absent")
    repository.scan()
    assert await sessions("a").start(encode({"policy": "guard"})) == b"guard"
    assert await sessions("a").start(encode({"agent": "guard_3"})) == b"guard"
    assert await sessions("a").start(encode({"agent": "runner_3"})) == b"runner"
    with pytest.raises(NotFoundError, match="actor 'absent': not installed"):
        await sessions("a").start(encode({"policy": "other"}))
    repository.close()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's heap")
def test_deleted_versions_give_their_memory_back(exports, tmp_path):
    def put(number):
        copy(exports / "1", tmp_path / "constant" / str(number))
        manifest = tmp_path / "constant" / str(number) / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": number}))

    put(1)
    repository = open_at(tmp_path)
    before = resident_bytes()
    for number in range(2, 82):
        put(number)
    repository.scan()
    held = resident_bytes() - before
    models = [weakref.ref(model) for model in repository.models("constant")]
    for number in range(1, 81):
        shutil.rmtree(tmp_path / "constant" / str(number))
    for _ in range(3):
        repository.scan()
    assert [model() is None for model in models] == [True] * 80 + [False]
    assert resident_bytes() - before < 0.5 * held
    repository.close()
