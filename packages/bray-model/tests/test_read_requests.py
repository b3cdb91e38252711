"""Requests of the Open Inference Protocol that are answered together: by the bytes as alone."""

import json
import random

import numpy as np
import pytest
import torch

from bray_core.errors import DeadlineError, ServiceError
from bray_model import Model, ModelConfig
from bray_model.serving.open_inference_pages import OpenInferencePages
from bray_model.serving.repository import ExportRepository
from bray_server import PageRequest

INFER = "/v2/models/exact/infer"


class Exact(torch.nn.Module):
    """Doubles and compares: the same in a batch of any size, on any machine."""

    def forward(self, row):
        return {"twice": row + row, "is_positive": row > 0}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact") / "export"
    with Model(Exact(), np.zeros((1, 3), np.float32), name="exact") as model:
        model.export(folder)
    repository = ExportRepository(folder, lambda manifest: ModelConfig(max_batch_size=8))
    yield OpenInferencePages(repository, max_reply_bytes=1000)
    repository.close()


def message(pick):
    """A request that is nearly always right, of some rows, in JSON or binary."""
    rows = pick.choice([1, 1, 1, 2, 5])
    values = np.array([[pick.randrange(-9, 9) for _ in range(3)] for _ in range(rows)], np.float32)
    if pick.random() < 0.1:
        values[0, 0] = np.inf
    tensor = {"name": "inputs[0]", "datatype": "FP32", "shape": [rows, 3]}
    content, tail, headers = {"inputs": [tensor]}, b"", {}
    if pick.random() < 0.5 or not np.isfinite(values).all():
        tail = values.tobytes()
        tensor["parameters"] = {"binary_data_size": len(tail)}
    else:
        tensor["data"] = values.reshape(-1).tolist()
    if pick.random() < 0.3:
        content["id"] = f"id {pick.randrange(100)}"
    if pick.random() < 0.3:
        content["parameters"] = {"binary_data_output": True}
    if pick.random() < 0.3:
        content["outputs"] = [{"name": "outputs/twice"}]
    if pick.random() < 0.1:
        tensor[pick.choice(["name", "datatype", "shape"])] = "wrong"
    if pick.random() < 0.1:
        content["parameters"] = {"timeout": 10_000_000}
    head = json.dumps(content).encode()
    if tail:
        headers[b"inference-header-content-length"] = b"%d" % len(head)
    return PageRequest("POST", INFER, headers, head + tail)


async def alone(pages, request):
    """The reply to a request, or its error as text."""
    try:
        return shown(await pages.answer(request.again(request.body)))
    except ServiceError as error:
        return str(error)


def shown(reply):
    """A reply, or an error, as it can be compared."""
    if isinstance(reply, ServiceError):
        return str(reply)
    return reply.status, reply.content_type, dict(reply.headers), reply.body


def three_plain(pages):
    """Three requests that may be answered together."""
    pick = random.Random(0)
    return [one for one in (message(pick) for _ in range(20)) if pages.group(one) is not None][:3]


@pytest.mark.parametrize("seed", range(3))
async def test_replies_are_those_that_each_gets_alone(pages, seed):
    pick = random.Random(seed)
    requests = [message(pick) for _ in range(60)]
    plain = [request for request in requests if pages.group(request) is not None]
    assert 30 < len(plain) < 60
    assert len({pages.group(request) for request in plain}) == 1
    replies = await pages.answer_together(plain)
    assert [shown(reply) for reply in replies] == [await alone(pages, one) for one in plain]


@pytest.mark.parametrize(
    "request_",
    [
        PageRequest("GET", INFER, {}, b""),
        PageRequest("POST", INFER, {}, b"no JSON"),
        PageRequest("POST", INFER, {b"content-encoding": b"gzip"}, b"{}"),
        PageRequest("POST", INFER, {}, b" " * 70_000),
        PageRequest("POST", "/v2/models/exact/versions/0/infer", {}, b"{}"),
        PageRequest("POST", "/v2/models/nobody/infer", {}, b"{}"),
        PageRequest("GET", "/v2", {}, b""),
    ],
    ids=["method", "nonsense", "encoding", "long", "version", "nobody", "other"],
)
def test_what_is_not_plain_is_answered_alone(pages, request_):
    assert pages.group(request_) is None
    assert pages.group(request_) is None  # and is not read again


async def test_a_bad_request_fails_alone(pages, monkeypatch):
    requests = three_plain(pages)
    infer, most = Model.infer, max(request.read.asked.num_rows for request in requests)

    async def fail_together(self, inputs, **options):
        if len(inputs) > most:
            raise ValueError("a bad row among them")
        return await infer(self, inputs, **options)

    monkeypatch.setattr(Model, "infer", fail_together)
    replies = await pages.answer_together(requests)
    assert [shown(reply) for reply in replies] == [await alone(pages, one) for one in requests]


async def test_a_deadline_is_waited_for_once(pages, monkeypatch):
    requests = three_plain(pages)
    asked = []

    async def late(self, *inputs, **options):
        asked.append(inputs)
        raise DeadlineError("too late")

    monkeypatch.setattr(Model, "infer", late)
    replies = await pages.answer_together(requests)
    assert [reply.code for reply in replies] == ["deadline"] * 3
    assert len(asked) == len({id(inputs) for inputs in asked}) <= 2


async def test_a_sequence_is_no_plain_request(pages):
    body = json.dumps({"inputs": [], "parameters": {"sequence_id": 7}}).encode()
    assert pages.group(PageRequest("POST", INFER, {}, body)) is None
