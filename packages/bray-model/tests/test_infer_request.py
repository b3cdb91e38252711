"""The Open Inference Protocol, asked by Triton's own HTTP client over a real socket."""

import json
import struct
import tracemalloc
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from bray_core import nested
from bray_core.errors import SpecError
from bray_core.protocols import Answer
from bray_model import Model, ModelConfig
from bray_model.serving.infer_request import InferRequest
from bray_model.serving.open_inference_pages import OpenInferencePages
from bray_model.serving.repository import ExportRepository
from bray_model.serving.service import make_service
from bray_server import Limits, ServerThread

ROWS = 5


@pytest.fixture(scope="module")
def address(exported):
    folder, _, _ = exported
    repository = ExportRepository(folder, lambda manifest: ModelConfig())
    server = ServerThread(
        make_service(repository.get("policy"), None),
        tcp_port=None,
        http_port=0,
        pages=OpenInferencePages(repository),
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
    alive = next(t for t in metadata["inputs"] if t["name"] == "inputs[0]/alive")
    assert alive["shape"] == [-1, 1], "perf_analyzer sends no tensor without dimensions"
    for tensor in (config["input"][0], config["output"][0]):
        assert (tensor["dims"], tensor["reshape"]) == ([1], {"shape": []})
    assert client.is_model_ready("policy")
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


class Recurrent(torch.nn.Module):
    """A GRU cell; its state is an input and an output."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(3, 4)

    def forward(self, row, state):
        state = self.cell(row, state)
        return {"sum": state.sum(-1), "state": state}


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """A client of a served recurrent policy, and its module."""
    torch.manual_seed(0)
    module = Recurrent()
    example = (np.zeros((1, 3), np.float32), np.zeros((1, 4), np.float32))
    folder = tmp_path_factory.mktemp("recurrent") / "export"
    with Model(module, example, name="gru", state={"inputs[1]": "outputs/state"}) as model:
        model.export(folder)
    repository = ExportRepository(folder, lambda manifest: ModelConfig())
    service = make_service(repository.get("gru"), None)
    server = ServerThread(service, tcp_port=None, http_port=0, pages=OpenInferencePages(repository))
    client = triton.InferenceServerClient(urlsplit(server.addresses[0]).netloc)
    yield client, module
    client.close()
    server.close(0)
    repository.close()


def rows_of(seed):
    return np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)


def ask_row(client, row, **options):
    tensor = triton.InferInput("inputs[0]", [1, 3], "FP32")
    tensor.set_data_from_numpy(row[None])
    return client.infer("gru", [tensor], **options).as_numpy("outputs/sum")


def test_sequences_keep_their_state_on_the_server(recurrent):
    client, module = recurrent
    got = {1: [], "two": []}
    for step in range(4):
        for name, sums in got.items():
            row = rows_of(seed=len(str(name)))[step]
            sums.append(
                ask_row(
                    client, row, sequence_id=name, sequence_start=step == 0, sequence_end=step == 3
                )
            )
    for name, sums in got.items():
        state = torch.zeros(1, 4)
        for row, answer in zip(rows_of(seed=len(str(name))), sums, strict=True):
            with torch.no_grad():
                state = module.cell(torch.from_numpy(row[None]), state)
            np.testing.assert_allclose(answer, state.sum(-1).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InferenceServerException, match=r"has ended.*with sequence_start"):
        ask_row(client, rows_of(seed=1)[0], sequence_id=1)
    again = ask_row(client, rows_of(seed=1)[0], sequence_id=1, sequence_start=True)
    np.testing.assert_array_equal(again, got[1][0])


def test_sequences_that_cannot_be(recurrent, client, observations):
    with pytest.raises(InferenceServerException, match=r"bad_request: session='7'.*has no state"):
        client.infer("policy", tensors(observations(1), True), sequence_id=7)
    for name in (8, "8"):
        with pytest.raises(InferenceServerException, match=r"\[400\].*was never begun"):
            ask_row(recurrent[0], np.zeros(3, np.float32), sequence_id=name)
    ask_row(recurrent[0], np.zeros(3, np.float32), sequence_id=8, sequence_start=True)
    with pytest.raises(InferenceServerException, match=r"was never begun"):  # 8 is another
        ask_row(recurrent[0], np.zeros(3, np.float32), sequence_id="8")
    two = triton.InferInput("inputs[0]", [2, 3], "FP32")
    two.set_data_from_numpy(np.zeros((2, 3), np.float32))
    with pytest.raises(InferenceServerException, match="expected one row of a sequence, got 2"):
        recurrent[0].infer("gru", [two], sequence_id=7)
    with pytest.raises(InferenceServerException, match=r"inputs\[1\]: missing"):
        ask_row(recurrent[0], np.zeros(3, np.float32))


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


def with_fields(**fields):
    return json.dumps({**json.loads(message()), **fields}).encode()


INFER = "/v2/models/policy/infer"


def test_null_in_an_optional_field_is_as_none(address):
    body = json.loads(message(parameters=None))
    body |= {"id": None, "parameters": None, "outputs": None}
    wanted = post(address, INFER, message())
    assert post(address, INFER, json.dumps(body).encode()) == wanted
    nothing = dict.fromkeys(["sequence_id", "sequence_start", "timeout", "binary_data_output"])
    body["parameters"] = nothing
    body["inputs"][0]["parameters"] = dict.fromkeys(["binary_data_size", "shared_memory_region"])
    body["outputs"] = [
        {"name": output["name"], "parameters": None} for output in wanted[1]["outputs"]
    ]
    body["outputs"][0]["parameters"] = dict.fromkeys(["binary_data", "classification"])
    assert post(address, INFER, json.dumps(body).encode()) == wanted
    head = message(data=None, parameters={"binary_data_size": 1})
    size = {"Inference_Header_Content_Length": str(len(head))}
    assert post(address, INFER, head + b"\1", **size) == wanted


@pytest.mark.parametrize(("shape", "data"), [([1], [True]), ([1, 1], [True]), ([1, 1], [[True]])])
def test_one_number_a_row_may_have_a_dimension(address, shape, data):
    assert post(address, INFER, message(shape=shape, data=data)) == post(address, INFER, message())


def test_no_request_costs_many_times_its_size(exported):
    signature = exported[2].signature
    for data in (
        ["a" * 200_000] + ["b"] * 5000,
        [[]] * 300_000,
        [{}] * 300_000,
        [0] * 500_000,
        [[[[0]]]] * 100_000,
        [None] * 200_000,
    ):
        body = message(data=data)
        tracemalloc.start()
        with pytest.raises(SpecError):
            InferRequest(body, None, signature)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * len(body)


def test_long_arrays_are_read_wherever_they_stand(exported):
    signature = exported[2].signature
    tree, rows = signature.input_tree, 9000
    leaves = [np.resize(np.arange(97), (rows, *s.shape)).astype(s.dtype) for s in tree.specs]
    kinds = {"float32": "FP32", "bool": "BOOL"}
    fields = [
        {"data": leaf.tolist(), "name": path, "datatype": kinds[s.dtype.name], "shape": leaf.shape}
        for path, s, leaf in zip(tree.paths, tree.specs, leaves, strict=True)
    ]
    turned = [dict(reversed(list(tensor.items()))) for tensor in fields]
    for inputs in (fields, fields[::-1], turned):
        for indent in (None, 1):
            body = json.dumps({"id": "x", "inputs": inputs, "outputs": None}, indent=indent)
            got = tree.leaves(InferRequest(body.encode(), None, signature).inputs)
            for leaf, wanted in zip(got, leaves, strict=True):
                np.testing.assert_array_equal(leaf, wanted)


def test_a_reply_is_bounded(exported):
    signature = exported[2].signature
    body = message()
    request = InferRequest(body, None, signature)
    assert request.reply_bytes < 1000
    with pytest.raises(SpecError, match=r"at most 100 bytes.*larger --max-reply-bytes"):
        InferRequest(body, None, signature, max_reply_bytes=100)
    few = with_fields(outputs=[{"name": "outputs/heads[0]", "parameters": {"binary_data": True}}])
    assert InferRequest(few, None, signature, max_reply_bytes=100).reply_bytes == 4
    with pytest.raises(SpecError, match=r"at most 1 rows, got 2.*--max-queue-rows"):
        InferRequest(
            message(shape=[2])
            .replace(b"[1, 4]", b"[2, 4]")
            .replace(b'"shape": [1], "data": [1]', b'"shape": [2], "data": [1, 1]'),
            None,
            signature,
            max_rows=1,
        )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_json_never_says_null_for_a_number(exported, value):
    signature = exported[2].signature
    outputs = exported[2](*InferRequest(message(), None, signature).inputs, batch=True)
    outputs["heads"][0] = np.array([value], np.float32)
    answer = Answer(outputs, 1)
    with pytest.raises(SpecError, match=r"outputs/heads\[0\].*binary tensor extension"):
        InferRequest(message(), None, signature).reply("policy", answer)
    others = with_fields(outputs=[{"name": "outputs/logits"}])
    assert InferRequest(others, None, signature).reply("policy", answer)[1] is None
    binary = with_fields(parameters={"binary_data_output": True})
    body, size = InferRequest(binary, None, signature).reply("policy", answer)
    assert np.float32(value).tobytes() in body[size:]


def test_the_clients_timeout_is_its_deadline(address, client, observations):
    large = tensors(observations(16_000), True)
    with pytest.raises(InferenceServerException, match=r"\[408\] deadline: .* timeout of 1 us"):
        client.infer("policy", large, timeout=1)
    for timeout in (0, 60_000_000, 10**18):
        body = with_fields(parameters={"timeout": timeout})
        assert post(address, INFER, body)[0] == 200


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
        (message(shape=[1, 2], data=[True, False]), {}, "of B ≥ 1 rows, got BOOL [1, 2]"),
        (message(datatype="BYTES"), {}, "got BYTES [1]"),
        (message(parameters={"shared_memory_region": "x"}), {}, "shared memory is not offered"),
        (message(parameters={"binary_data_size": 1}), {}, "expected binary_data_size 1"),
        (message(data=None, parameters={"binary_data_size": -1}), {}, "got -1"),
        (message(data=None, parameters={"binary_data_size": 1}), {}, "1 of its bytes are missing"),
        (message() + b"xyz", {"Inference_Header_Content_Length": str(len(message()))}, "3 bytes"),
        (message(), {"Inference_Header_Content_Length": "-5"}, "expected 0 to"),
        (message(), {"Inference_Header_Content_Length": "9" * 30}, "expected 0 to"),
        (message(), {"Content_Encoding": "gzip"}, "expected a body as it is"),
        (message(data=["a" * 200_000] + ["b"] * 5000), {}, "quotation marks"),
        (message(data=["a" * 200_000]), {}, "200000 bytes are no array of numbers"),
        (message(data=[None]), {}, "data: expected 1 BOOL values: got null"),
        (message(data=[float("nan")]), {}, "NaN or Infinity: send them with the binary"),
        (message(shape=[10**400]), {}, "expected a number of more than 30 digits rows as in"),
        (message(shape=[1] * 2000), {}, "of B ≥ 1 rows, got BOOL [1"),
        (message(shape=[1] * 5000), {}, "15004 bytes are no array of numbers"),
        (message(data=[float("inf")] * 2000), {}, "NaN or Infinity: send them with the binary"),
        (message(shape=[1.0]), {}, "of B ≥ 1 rows, got BOOL [1.0]"),
        (message(shape=None), {}, "of B ≥ 1 rows, got BOOL null"),
        (message(name="x" * 5000), {}, "once, got 'xxx"),
        (with_fields(id=7), {}, "id: expected text"),
        (with_fields(id="i" * 5000), {}, "id: expected text of at most"),
        (with_fields(parameters={"timeout": -1}), {}, "timeout: expected microseconds"),
        (with_fields(parameters={"sequence_id": "s" * 300}), {}, "sequence_id: expected at most"),
        (with_fields(parameters={"sequence_id": True}), {}, "sequence_id"),
        (
            with_fields(outputs=[{"name": "outputs/logits"}] * 2),
            {},
            "outputs: expected each once, got 'outputs/logits' again",
        ),
        (with_fields(outputs=[{"name": "y" * 5000}]), {}, "got 'yyy"),
    ],
)
def test_nonsense_is_a_bad_request(address, body, headers, words):
    status, answer = post(address, INFER, body, **headers)
    assert status == 400
    assert words in answer["error"]
    assert len(answer["error"]) < 1000


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


@pytest.fixture(scope="module")
def guarded(exported):
    """The netloc of a server that wants a token and takes small bodies."""
    folder, _, _ = exported
    repository = ExportRepository(folder, lambda manifest: ModelConfig())
    server = ServerThread(
        make_service(repository.get("policy"), None),
        tcp_port=None,
        http_port=0,
        pages=OpenInferencePages(repository),
        tokens=["secret"],
        limits=Limits(max_body_bytes=10_000, max_header_bytes=2000),
    )
    yield urlsplit(server.addresses[0]).netloc
    server.close(0)
    repository.close()


def test_health_wants_no_token(guarded):
    client = triton.InferenceServerClient(guarded)
    assert client.is_server_live()
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException, match=r"unauthorized"):
        client.get_server_metadata()
    client.close()


@pytest.mark.parametrize(
    ("path", "headers", "size", "words"),
    [
        (INFER, {}, 10, "unauthorized: expected 'Authorization"),
        (INFER, {"Authorization": "Bearer secret"}, 20_000, "body_too_large"),
        (INFER, {"Authorization": "Bearer secret", "X": "y" * 3000}, 10, "headers_too_large"),
        ("/v2/nothing", {"Authorization": "Bearer secret"}, 10, "not_found"),
        ("/v2/models/policy", {"Authorization": "Bearer secret"}, 10, "method_not_allowed"),
    ],
)
def test_every_error_has_the_protocols_form(guarded, path, headers, size, words):
    connection = HTTPConnection(guarded, timeout=20)
    connection.request("POST", path, b" " * size, headers)
    reply = connection.getresponse()
    error = json.loads(reply.read())["error"]
    connection.close()
    assert 400 <= reply.status < 500
    assert isinstance(error, str)
    assert words in error


def test_tritons_client_can_say_what_was_too_large(guarded):
    client = triton.InferenceServerClient(guarded)
    tensor = triton.InferInput("inputs[0]", [1, 5000], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 5000), np.float32))
    with pytest.raises(InferenceServerException) as caught:
        client.infer("policy", [tensor], headers={"Authorization": "Bearer secret"})
    assert "body_too_large" in str(caught.value)
    client.close()


def test_errors_of_the_servers_own_pages_keep_their_form(guarded):
    status, answer = post(guarded, "/step", b"")
    assert (status, answer["error"]["code"]) == (401, "unauthorized")
