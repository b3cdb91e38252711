"""Pages of a service: answered on the HTTP port, with the server's limits, tokens and figures."""

import asyncio
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from server_services import Echo

from bray_core.errors import ServiceError
from bray_server import Limits, ServerThread
from bray_server.sessions.pages import PageReply


class Mirror:
    """Says what it was asked; `/wait` until told, `/fail` and `/fault` as they say."""

    def __init__(self):
        self.opened = asyncio.Event()

    async def answer(self, request):
        if request.path == "/wait":
            await self.opened.wait()
        if request.path == "/open":
            self.opened.set()
        if request.path == "/fail":
            raise ServiceError("not_found", "no such page")
        if request.path == "/fault":
            raise ValueError("a fault")
        if request.path == "/nonsense":
            return 3
        head = f"{request.method} {request.path} {sorted(request.headers.items())}\n"
        return PageReply(head.encode() + request.body, 201, b"text/plain", {b"Reply": b"yes"})

    def error(self, error, status):
        return PageReply(json.dumps({"error": error.code}).encode(), status)


@pytest.fixture
def server():
    server = ServerThread(
        Echo(), tcp_port=None, http_port=0, pages=Mirror(), limits=Limits(max_requests=2)
    )
    yield server
    server.close(0)


def ask(server, method, path, body=b"", **headers):
    connection = HTTPConnection(urlsplit(server.addresses[0]).netloc, timeout=20)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def test_a_page_gets_what_was_sent_and_its_reply_arrives(server):
    status, headers, body = ask(
        server, "PUT", "/a%20b/c?d=e", b"body", Inference_Header_Content_Length="3", Other="x"
    )
    assert status == 201
    assert headers["Content-Type"] == "text/plain"
    assert headers["Reply"] == "yes"
    assert body.startswith(b"PUT /a%20b/c [")
    assert b"(b'inference-header-content-length', b'3')" in body
    assert b"other" not in body, "only what pages ask for"
    assert body.endswith(b"]\nbody")


@pytest.mark.parametrize("path", ["/wait", "/step"])
def test_what_a_stopped_server_did_not_answer_is_told_so(path):
    begun = threading.Event()

    class Slow:
        async def tick(self, body):
            begun.set()
            await asyncio.Event().wait()

    class Waits(Mirror):
        async def answer(self, request):
            begun.set()
            return await super().answer(request)

    server = ServerThread(Slow(), tcp_port=None, http_port=0, pages=Waits())
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, server, "POST", path, b"")
        assert begun.wait(10)
        server.close(0)
        status, headers, body = asked.result(10)
    assert (status, headers["Connection"]) == (503, "close")
    assert b"draining" in body


def test_steps_and_the_servers_own_pages_go_on_beside(server):
    assert ask(server, "POST", "/step", b"x")[2] == b"x"
    assert ask(server, "GET", "/health")[0] == 200
    ask(server, "GET", "/page")
    assert b'bray_requests_total{kind="page"} 1' in ask(server, "GET", "/metrics")[2]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/fail", 404, "not_found"), ("/fault", 500, "service_error"), ("/nonsense", 500, "serv")],
)
def test_errors_look_as_the_pages_say(server, path, status, code):
    got, _, body = ask(server, "GET", path)
    assert got == status
    assert json.loads(body)["error"].startswith(code)


def wait_until_two_wait(server):
    while b"bray_requests_under_way 2" not in ask(server, "GET", "/metrics")[2]:
        pass


async def test_pages_are_bounded_like_all_requests(server):
    waiting = [asyncio.create_task(asyncio.to_thread(ask, server, "GET", "/wait")) for _ in "ab"]
    await asyncio.to_thread(wait_until_two_wait, server)
    status, headers, body = await asyncio.to_thread(ask, server, "GET", "/other")
    assert (status, json.loads(body)) == (429, {"error": "overloaded"})
    assert headers["Retry-After"] == "1"
    server.loop.loop.call_soon_threadsafe(server._server.pages.opened.set)
    assert [status for status, *_ in await asyncio.gather(*waiting)] == [201, 201]


def test_pages_ask_for_the_token():
    server = ServerThread(Echo(), tcp_port=None, http_port=0, pages=Mirror(), tokens=["secret"])
    status, headers, body = ask(server, "GET", "/page")
    assert (status, json.loads(body)) == (401, {"error": "unauthorized"})
    assert headers["WWW-Authenticate"] == "Bearer"
    assert ask(server, "GET", "/page", Authorization="Bearer secret")[0] == 201
    server.close(0)


def test_without_pages_other_paths_are_not_found():
    server = ServerThread(Echo(), tcp_port=None, http_port=0)
    status, _, body = ask(server, "GET", "/page")
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
    server.close(0)


def test_the_access_log_names_the_page(caplog):
    server = ServerThread(Echo(), tcp_port=None, http_port=0, pages=Mirror(), access_log=True)
    with caplog.at_level(logging.INFO, "bray_server.access"):
        ask(server, "GET", "/page?secret=1")
        server.close(0)
    (told,) = (record for record in caplog.records if record.name == "bray_server.access")
    line = json.loads(told.getMessage())
    assert (line["kind"], line["path"], line["code"]) == ("page", "/page", "ok")


class Public(Mirror):
    """Pages of which one is public, and which know the workers that share the port."""

    public = frozenset({"/alive"})
    name = ""

    async def answer(self, request):
        """Claim `/own`, let its owner answer `/owned`, tell what came at all else."""
        key = b"page own"
        if request.path == "/own":
            request.others.claim(key)
        elif request.path == "/owned" and not request.is_forwarded:
            return await request.others.forward_page(key, request)
        said = f"{self.name} {request.method} {request.is_forwarded} {request.is_draining} "
        return PageReply(said.encode() + request.body, 202, b"text/plain", {b"Reply": b"yes"})


def test_public_pages_want_no_token_and_errors_have_the_pages_form():
    limits = Limits(max_header_bytes=1000, max_body_bytes=1000)
    server = ServerThread(
        Echo(), tcp_port=None, http_port=0, pages=Public(), limits=limits, tokens=["secret"]
    )
    token = {"Authorization": "Bearer secret"}
    assert ask(server, "GET", "/alive")[0] == 202
    for status, code, arguments in [
        (401, "unauthorized", {}),
        (413, "body_too_large", {"body": b"x" * 2000, **token}),
        (431, "headers_too_large", {"Cookie": "y" * 2000, **token}),
    ]:
        got, _, body = ask(server, "PUT", "/else", **arguments)
        assert (got, json.loads(body)) == (status, {"error": code})
    got, _, body = ask(server, "POST", "/step")
    assert (got, json.loads(body)["error"]["code"]) == (401, "unauthorized")
    server.close(0)


def test_a_page_is_sent_on_to_the_worker_that_owns_its_key(tmp_path):
    workers = []
    for name in ("first", "second"):
        pages = Public()
        pages.name = name
        options = {"tcp_port": None, "http_port": 0, "group": tmp_path / "group"}
        workers.append(ServerThread(Echo(), pages=pages, **options))
    assert ask(workers[1], "POST", "/owned")[0] == 404, "nobody owns it"
    assert ask(workers[0], "POST", "/own", b"mine")[2] == b"first POST False False mine"
    status, headers, body = ask(workers[1], "POST", "/owned", b"\x00" * 100_000)
    assert (status, headers["Reply"]) == (202, "yes")
    assert body == b"first POST True False " + b"\x00" * 100_000
    workers[0].close(0)
    assert ask(workers[1], "POST", "/owned")[0] in (404, 410)
    workers[1].close(0)
