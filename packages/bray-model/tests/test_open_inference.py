"""The Open Inference Protocol, asked by Triton's own HTTP client over a real socket."""

import json
import struct
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from bray_core import nested
from bray_model import ModelConfig
from bray_model.inference_pages import InferencePages
from bray_model.repository import Repository
from bray_model.service import make_service
from bray_server import ServerThread

ROWS = 5


@pytest.fixture(scope="module")
def address(exported):
    folder, _, _ = exported
    repository = Repository(folder, lambda manifest: ModelConfig())
    server = ServerThread(
        make_service(repository.get("policy"), None),
        tcp_port=None,
        http_port=0,
        pages=InferencePages(repository),
    )
    yield urlsplit(server.addresses[0]).netloc
    server.close(0)
    repository.close()


@pytest.fixture
def client(address):
    client = triton.InferenceServerClient(address)
    yield client
    client.close()


def tensors(inputs, binary):
    """The policy's inputs `[B, ...]` as Triton's client takes them."""
    made = []
    for path, leaf in nested.items(inputs, "inputs"):
        kind = {"float32": "FP32", "bool": "BOOL"}[leaf.dtype.name]
        tensor = triton.InferInput(path, leaf.shape, kind)
        tensor.set_data_from_numpy(leaf, binary_data=binary)
        made.append(tensor)
    return made


def test_it_says_what_it_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("policy")
    assert client.is_model_ready("policy", "0")
    assert not client.is_model_ready("policy", "7")
    assert not client.is_model_ready("nobody")
    about = client.get_server_metadata()
    assert about["name"] == "bray"
    assert "binary_tensor_data" in about["extensions"]
    metadata = client.get_model_metadata("policy")
    assert metadata["versions"] == ["0"]
    assert {"name": "inputs[0]/units", "datatype": "FP32", "shape": [-1, 4]} in metadata["inputs"]
    assert {"name": "outputs/best[0]", "datatype": "INT64", "shape": [-1]} in metadata["outputs"]
    config = client.get_model_config("policy")
    assert config["max_batch_size"] == 64
    assert config["input"][1] == {"name": "inputs[0]/units", "data_type": "TYPE_FP32", "dims": [4]}
    (entry,) = client.get_model_repository_index()
    assert (entry["name"], entry["version"], entry["state"]) == ("policy", "0", "READY")


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_it_answers_as_the_module_does(client, exported, observations, binary_in, binary_out):
    inputs = observations(ROWS, seed=3)
    wanted = dict(nested.items(exported[2](*inputs, batch=True), "outputs"))
    outputs = [triton.InferRequestedOutput(path, binary_data=binary_out) for path in wanted]
    result = client.infer("policy", tensors(inputs, binary_in), outputs=outputs, request_id="seven")
    response = result.get_response()
    assert (response["model_name"], response["model_version"]) == ("policy", "0")
    assert response["id"] == "seven"
    for path, leaf in wanted.items():
        got = result.as_numpy(path)
        assert got.dtype == leaf.dtype
        np.testing.assert_allclose(got, leaf, rtol=1e-3, atol=1e-4)


def test_without_wanted_outputs_all_come(client, observations):
    result = client.infer("policy", tensors(observations(1), True), model_version="0")
    assert result.as_numpy("outputs/logits").shape == (1, 3)
    assert result.as_numpy("outputs/heads[0]").shape == (1,)


def test_requests_go_out_side_by_side(address, exported, observations):
    client = triton.InferenceServerClient(address, concurrency=8)
    batches = [observations(n % 3 + 1, seed=n) for n in range(40)]
    asked = [client.async_infer("policy", tensors(inputs, True)) for inputs in batches]
    for inputs, answer in zip(batches, asked, strict=True):
        wanted = exported[2](*inputs, batch=True)["logits"]
        got = answer.get_result().as_numpy("outputs/logits")
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
    client.close()


def test_many_rows_are_split_and_joined(client, exported, observations):
    inputs = observations(200)
    result = client.infer("policy", tensors(inputs, True))
    wanted = exported[2](*inputs, batch=True)["logits"]
    np.testing.assert_allclose(result.as_numpy("outputs/logits"), wanted, rtol=1e-3, atol=1e-4)


def test_what_does_not_fit_is_named(client, observations):
    good = tensors(observations(2), True)
    with pytest.raises(InferenceServerException, match=r"not_found: model 'nobody': not served"):
        client.infer("nobody", good)
    with pytest.raises(InferenceServerException, match=r"version '7' is not served; served: \[0\]"):
        client.infer("policy", good, model_version="7")
    with pytest.raises(InferenceServerException, match="missing; got"):
        client.infer("policy", good[:1])
    with pytest.raises(InferenceServerException, match="once, got 'inputs\\[1\\]\\[0\\]'"):
        client.infer("policy", [*good, good[-1]])
    with pytest.raises(InferenceServerException, match="outputs: expected some of"):
        client.infer("policy", good, outputs=[triton.InferRequestedOutput("logits")])
    wanted = [triton.InferRequestedOutput("outputs/logits", class_count=2)]
    with pytest.raises(InferenceServerException, match="classification is not offered"):
        client.infer("policy", good, outputs=wanted)
    wide = triton.InferInput("inputs[0]/units", [2, 5], "FP32")
    wide.set_data_from_numpy(np.zeros((2, 5), np.float32))
    with pytest.raises(InferenceServerException, match=r"units: expected FP32 \['B', 4\]"):
        client.infer("policy", [good[0], wide, good[2]])


def post(address, path, body, **headers):
    connection = HTTPConnection(address, timeout=20)
    connection.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    reply = connection.getresponse()
    answer = reply.status, json.loads(reply.read())
    connection.close()
    return answer


def message(**changes):
    """A request of one row in JSON; changes replace entries of the first input."""
    inputs = [
        {"name": "inputs[0]/alive", "datatype": "BOOL", "shape": [1], "data": [True], **changes},
        {"name": "inputs[0]/units", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4.5]]},
        {"name": "inputs[1][0]", "datatype": "FP32", "shape": [1], "data": [1]},
    ]
    return json.dumps({"inputs": inputs}).encode()


INFER = "/v2/models/policy/infer"


def test_a_request_by_hand(address):
    status, answer = post(address, INFER, message())
    assert status == 200
    assert [output["name"] for output in answer["outputs"]][-1] == "outputs/logits"


@pytest.mark.parametrize(
    ("body", "headers", "words"),
    [
        (b"", {}, "expected a message of the protocol in JSON"),
        (b"[" * 100_000, {}, "expected a message of the protocol in JSON"),
        (b'{"inputs": 3}', {}, "Expected `array`, got `int`"),
        (b'{"inputs": []}', {}, "inputs[0]/alive: missing; got []"),
        (b"\xff\xfe", {}, "expected a message"),
        (message(data=[1, 2]), {}, "data: expected 1 BOOL values: got 2 values of int64"),
        (message(data=["x"]), {}, "data: expected 1 BOOL values"),
        (message(data=[[1], [2, 3]]), {}, "data: expected 1 BOOL values"),
        (message(data=None), {}, "inputs[0]/alive: expected data, or binary_data_size"),
        (message(shape=[0], data=[]), {}, "of B ≥ 1 rows, got BOOL [0]"),
        (message(shape=[-1]), {}, "of B ≥ 1 rows, got BOOL [-1]"),
        (message(shape=[]), {}, "of B ≥ 1 rows, got BOOL []"),
        (message(shape=[2], data=[True, False]), {}, "expected 2 rows as in inputs[0]/alive"),
        (message(datatype="BYTES"), {}, "got BYTES [1]"),
        (message(parameters={"shared_memory_region": "x"}), {}, "shared memory is not offered"),
        (message(parameters={"binary_data_size": 1}), {}, "expected binary_data_size 1"),
        (message(data=None, parameters={"binary_data_size": -1}), {}, "got -1"),
        (message(data=None, parameters={"binary_data_size": 1}), {}, "1 of its bytes are missing"),
        (message() + b"xyz", {"Inference_Header_Content_Length": str(len(message()))}, "3 bytes"),
        (message(), {"Inference_Header_Content_Length": "-5"}, "expected 0 to"),
        (message(), {"Inference_Header_Content_Length": "9" * 30}, "expected 0 to"),
        (message(), {"Content_Encoding": "gzip"}, "expected a body as it is"),
    ],
)
def test_nonsense_is_a_bad_request(address, body, headers, words):
    status, answer = post(address, INFER, body, **headers)
    assert status == 400
    assert words in answer["error"]


def test_binary_bools_other_than_0_and_1_are_true(address):
    head = message(data=None, parameters={"binary_data_size": 1})
    size = str(len(head))
    for value in (1, 2, 255):
        body = head + struct.pack("B", value)
        assert post(address, INFER, body, Inference_Header_Content_Length=size) == post(
            address, INFER, message()
        )


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v2/models/policy", 405), ("/v2/nothing", 404), ("/v2/models/", 404), ("/v3", 404)],
)
def test_other_paths_and_methods_are_refused(address, path, status):
    got, answer = post(address, path, b"")
    assert got == status
    assert isinstance(answer["error"], str)
