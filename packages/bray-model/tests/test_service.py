import re
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from bray_core.codec import decode, encode
from bray_core.errors import CapacityError, ConfigError, NotFoundError, ServiceError
from bray_core.json_body import JsonBody, write
from bray_model import Model
from bray_model.serving import service as service_module
from bray_model.serving.service import ModelService, make_service


class Greeter:
    """A stand-in for an installed actor class."""

    @classmethod
    def from_export(cls, config, model):
        return lambda session: (session, config, model)


@pytest.fixture
def model(exported):
    with Model(exported[0]) as model:
        yield model


async def test_the_bare_model_answers_a_row(model, observations, row):
    inputs = row(observations(3), 1)
    reply = decode(await make_service(model, None).tick(encode(list(inputs))))
    want = model(*inputs)
    assert reply["version"] == 0
    np.testing.assert_array_equal(reply["outputs"]["logits"], want["logits"])
    np.testing.assert_array_equal(reply["outputs"]["heads"][1], want["heads"][1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "bad_request: decode"),
        (b"\xc1\xff", "bad_request: decode"),
        (encode({"x": 1}), "bad_request: body: expected the list of the model's inputs, got dict"),
        (encode([]), r"bad_request: inputs\[0\]/alive: missing"),
        (encode([3, "x"]), r"bad_request: inputs\[0\]/alive: missing"),
        (b"[[0, 1]]", "Then say so: Content-Type: application/json"),
        (b"[" * 10**6, "expected at most .* bytes .*, got 1000000; is it JSON"),
    ],
)
async def test_a_bad_body_is_a_bad_request(model, body, message):
    with pytest.raises(ServiceError, match=message):
        await ModelService(model).tick(body)


async def test_a_row_in_json_gets_the_answer_of_one_in_the_codec(model, observations, row):
    inputs = list(row(observations(3), 1))
    coded = encode(inputs)
    text = JsonBody(write(inputs))
    service = ModelService(model)
    reply = await service.tick(coded)
    assert await service.tick(text) == reply
    assert list(await service.ticks([coded, text, coded])) == [reply] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[", "bad_request: decode: expected JSON"),
        (b"{}", "bad_request: inputs: expected a list of 2, got an object"),
        (b"[1, 2]", r"bad_request: inputs\[0\]: expected an object with"),
        (b'[{"alive": [null]}, []]', r"bad_request: inputs\[0\]/"),
    ],
)
async def test_bad_json_is_a_bad_request(model, text, message):
    with pytest.raises(ServiceError, match=message):
        await ModelService(model).tick(JsonBody(text))


async def test_a_full_queue_is_busy(model, observations, row, monkeypatch):
    async def full(*inputs):
        raise CapacityError("5 rows wait")

    monkeypatch.setattr(model, "infer", full)
    with pytest.raises(ServiceError, match=r"busy: 5 rows wait"):
        await ModelService(model).tick(encode(list(row(observations(1), 0))))


class OddIndex(torch.nn.Module):
    """Refuses a row whose index is beyond its table."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 2)

    def forward(self, index, scale):
        return self.table(index) * scale


async def test_calls_together_get_the_answers_of_each_alone():
    sizes = []
    model = Model(OddIndex(), (np.zeros(1, np.int64), np.ones((1, 1), np.float32)))
    engine = model._runtime.definition.engine
    run = engine.run
    engine.run = lambda inputs: (sizes.append(len(inputs[0])), run(inputs))[1]
    service = ModelService(model)
    rows = [[np.int64(i % 4), np.float32([i])] for i in range(10)]
    bodies = [encode(row) for row in rows]
    replies = await service.ticks(bodies)
    assert sizes == [10], "one batch"
    assert list(replies) == [await service.tick(body) for body in bodies]
    assert await service.ticks([]) == []
    for bad, words in [
        (b"nonsense", "bad_request: decode"),
        (encode([np.int64(1)]), r"bad_request: inputs\[1\]: missing"),
        (encode([np.int64(9), np.float32([0])]), "service_error: IndexError"),
    ]:
        mixed = [*bodies[:3], bad, *bodies[3:]]
        answers = list(await service.ticks(mixed))
        error = answers.pop(3)
        assert answers == list(replies), "only the bad one fails"
        assert isinstance(error, ServiceError)
        assert re.match(words, str(error))


async def test_calls_together_are_busy_together(model, observations, row, monkeypatch):
    async def full(*inputs, batch):
        raise CapacityError("5 rows wait")

    monkeypatch.setattr(model, "infer", full)
    bodies = [encode(list(row(observations(3), i))) for i in range(3)]
    assert [str(r) for r in await ModelService(model).ticks(bodies)] == ["busy: 5 rows wait"] * 3


def test_an_actor_is_looked_up_among_installed_entry_points(model, monkeypatch):
    entry = EntryPoint("greeter", f"{__name__}:Greeter", "bray.actors")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Greeter)
    monkeypatch.setattr(service_module, "entry_points", lambda group: [entry])
    factory = make_service(model, {"name": "greeter", "config": {"x": 1}})
    assert factory("s1") == ("s1", {"x": 1}, model)
    monkeypatch.setattr(EntryPoint, "load", lambda self: object)
    with pytest.raises(ConfigError, match=r"actor 'greeter': .*:Greeter: expected a classmethod"):
        make_service(model, {"name": "greeter", "config": {}})
    with pytest.raises(NotFoundError, match=r"actor 'os:system': not installed; installed: \['gre"):
        make_service(model, {"name": "os:system", "config": {}})
