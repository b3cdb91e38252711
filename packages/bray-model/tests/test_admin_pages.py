"""The admin port takes weights from programs, never from a page in somebody's browser."""

import socket
from http.client import HTTPConnection

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from bray_core.cli import main
from bray_model import Model
from bray_model.serving.admin_pages import AdminPages, NoService
from bray_server import ServerThread

FILE = "application/octet-stream"
ROW = np.ones(4, np.float32)


@pytest.fixture(scope="module")
def served():
    """A model, and its admin port without and with a token."""
    model = Model(torch.nn.Linear(4, 2), np.zeros((1, 4), np.float32))

    def listen(**options):
        pages = AdminPages(lambda name, weights: model.publish(weights), **options)
        tokens = ["secret"] if options else []
        return ServerThread(NoService("no"), tcp_port=None, http_port=0, pages=pages, tokens=tokens)

    servers = listen(), listen(has_token=True)
    yield model, *[server.addresses[0].partition("://")[2] for server in servers]
    for server in servers:
        server.close(0.0)
    model.close()


def send(address, method="POST", body=None, **headers):
    """Send exactly these headers, `_` for `-`, and the length."""
    connection = HTTPConnection(address, timeout=30)
    connection.putrequest(method, "/models/m/weights", skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": address, **headers}.items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    reply = connection.getresponse()
    answer = reply.status, reply.read().decode()
    connection.close()
    return answer


def weights_of(model):
    return safetensors.numpy.save({n: np.ones_like(a) for n, a in model.weights()[1].items()})


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "evil.example"}, 403, "host: expected one of 127.0.0.1, localhost"),
        ({"Host": None}, 403, "host: expected one of"),
        ({"Origin": "http://evil.example"}, 403, "origin: expected a request of a program"),
        ({"Origin": "null"}, 403, "origin"),
        ({"Sec_Fetch_Site": "cross-site"}, 403, "origin"),
        ({"Content_Type": "text/plain"}, 415, f"content-type: expected {FILE}"),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415, "content-type"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "content-type"),
        ({"Content_Type": f"text/plain; {FILE}"}, 415, "content-type"),
        ({"Content_Type": None}, 415, "content-type"),
    ],
)
def test_a_page_of_another_site_changes_nothing(served, headers, status, words):
    model, address, _ = served
    before = model.version
    got, answer = send(address, body=weights_of(model), **{"Content_Type": FILE, **headers})
    assert (got, words in answer) == (status, True), answer
    assert model.version == before


@pytest.mark.parametrize(
    ("line", "headers", "status"),
    [
        ("POST /models/m/weights", "Origin: http://evil.example\r\nContent-Type: text/plain", 403),
        ("POST /models/m/weights", "Content-Type: text/plain", 415),
        ("POST /models", f"Content-Type: {FILE}", 404),
        ("DELETE /models/m/weights", f"Content-Type: {FILE}", 405),
    ],
)
def test_what_is_refused_by_its_headers_is_not_read(served, line, headers, status):
    _, address, _ = served
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        head = f"{line} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\nContent-Length: 9999999\r\n\r\n"
        raw.sendall(head.encode())  # and nothing after it
        assert raw.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_with_a_token_any_name_may_lead_here_but_no_page(served):
    model, _, address = served
    token = {"Authorization": "Bearer secret", "Content_Type": FILE}
    body = weights_of(model)
    assert send(address, body=body, **token, Origin="http://evil.example")[0] == 403
    assert send(address, body=body, Content_Type=FILE, Host="a.example")[0] == 401
    assert send(address, body=body, **token, Host="a.example")[0] == 200


@pytest.mark.parametrize(
    ("method", "kind"),
    [("PUT", None), ("PUT", FILE), ("POST", FILE), ("POST", "Application/Octet-Stream; x=y")],
)
def test_a_program_sends_weights(served, method, kind):
    model, address, _ = served
    before = model.version
    status, answer = send(address, method, weights_of(model), Content_Type=kind)
    assert (status, answer) == (200, f'{{"version":{before + 1}}}')
    assert model(ROW).tolist() == [5.0, 5.0]


def test_weights_that_are_not_finite_are_refused(served):
    model, address, _ = served
    before = model.version
    weights = dict(model.weights()[1])
    weights["bias"] = np.full_like(weights["bias"], np.nan)
    status, answer = send(address, "PUT", safetensors.numpy.save(weights))
    assert status == 400
    assert "weights/bias: expected finite numbers, got NaN or infinity in 2 of 2" in answer
    assert model.version == before
    assert np.isfinite(model(ROW)).all()


@pytest.mark.parametrize("options", [[], ["--admin-port=0"], ["--workers=2"]])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_beyond_this_machine_serve_wants_a_token(exported, capsys, host, options):
    assert main(["serve", str(exported[0]), f"--host={host}", *options]) == 2
    assert "add --token-env NAME, listen at 127.0.0.1, or say --without" in capsys.readouterr().err


def test_weights_in_bfloat16_become_float32(served):
    model, address, _ = served
    weights = {name: torch.full(a.shape, 1.25).bfloat16() for name, a in model.weights()[1].items()}
    body = safetensors.torch.save(weights)
    status, answer = send(address, "PUT", body, Content_Type=FILE)
    assert status == 200, answer
    for array in model.weights()[1].values():
        assert array.dtype == np.float32
        assert (array == 1.25).all()


def test_a_dtype_that_cannot_be_read_is_named(served):
    model, address, _ = served
    weights = {n: torch.ones(a.shape).to(torch.float8_e5m2) for n, a in model.weights()[1].items()}
    status, answer = send(address, "PUT", safetensors.torch.save(weights), Content_Type=FILE)
    assert status == 400
    assert "expected float32, float16 or bfloat16, got F8_E5M2" in answer
