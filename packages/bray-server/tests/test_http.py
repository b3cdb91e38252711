"""HTTP as it comes off a socket: cut, pipelined, chunked, too large, too slow, nonsense."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from server_services import Counter, Echo, Launch

from bray_core.errors import DeadlineError
from bray_server import Client, Limits, ServerThread

LIMITS = Limits(max_body_bytes=1000, max_header_bytes=2000)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    thread = ServerThread(Counter, http_port=0, limits=LIMITS)
    yield thread
    thread.close(0)


@pytest.fixture
def hasty() -> Iterator[ServerThread]:
    """Serve clients that have to be quick."""
    thread = ServerThread(Counter, http_port=0, limits=Limits(receive_timeout_s=0.4))
    yield thread
    thread.close(0)


def port_of(server: ServerThread) -> int:
    return int(server.addresses[-1].rpartition(":")[2])


def talk(server: ServerThread, *parts: bytes) -> bytes:
    """Send the parts and return all that comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port_of(server)), 5) as raw:
        for part in parts:
            raw.sendall(part)
        received = b""
        while data := raw.recv(65536):
            received += data
        return received


def step(kind: str = "", session: str = "s", body: bytes = b"", *headers: str) -> bytes:
    lines = ["POST /step HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    if kind:
        lines += [f"step_kind: {kind}", f"session: {session}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


LAST = "Connection: close"


def bodies(reply: bytes) -> list[tuple[int, bytes]]:
    """Cut replies that follow each other into status and body."""
    found = []
    while reply:
        head, _, rest = reply.partition(b"\r\n\r\n")
        (size,) = [int(h.split(b":")[1]) for h in head.split(b"\r\n") if b"ontent-Length" in h]
        found.append((int(head.split()[1]), rest[:size]))
        reply = rest[size:]
    return found


def test_pipelined_requests_are_answered_in_order(server: ServerThread) -> None:
    ticks = [step("tick", body=b"sleep 0.05"), step("tick"), step("tick", "s", b"", LAST)]
    replies = bodies(talk(server, b"".join([step("start"), *ticks])))
    assert [status for status, _ in replies] == [200] * 4
    assert [body for _, body in replies[1:]] == [b"1", b"2", b"3"]


def test_a_header_that_a_proxy_dropped_is_named(server: ServerThread) -> None:
    dropped = step("start", "s", b"", LAST).replace(b"step_kind: start\r\n", b"")
    ((status, body),) = bodies(talk(server, dropped))
    assert status == 400
    assert b"nginx drops a name with an underscore unless `underscores_in_headers` is on" in body


def test_a_request_cut_at_every_byte_is_put_together(server: ServerThread) -> None:
    request = step("start", "säule", b"", LAST)
    for at in range(1, len(request)):
        replies = bodies(talk(server, request[:at], request[at:]))
        assert replies[0][0] == (200 if at == 1 else 409), at


def test_a_connection_cut_at_every_byte_harms_nobody(server: ServerThread) -> None:
    with Client(server.addresses[1]) as client:
        client.start("other")
        request = step("start", "cut", b"body")
        for at in range(len(request)):
            with socket.create_connection(("127.0.0.1", port_of(server)), 5) as raw:
                raw.sendall(request[:at])
        assert client.tick("other", b"") == b"1"
    assert server.stats()["sessions"] == 1


def test_chunked_bodies(server: ServerThread) -> None:
    head = step("start", "s", b"", "Transfer-Encoding: chunked", LAST)
    head = head.replace(b"Content-Length: 0\r\n", b"")
    assert bodies(talk(server, head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"))[0][0] == 200
    large = b"".join(b"64\r\n" + b"x" * 100 + b"\r\n" for _ in range(11))
    reply = talk(server, head, large + b"0\r\n\r\n")
    assert b"413" in reply.split(b"\r\n")[0]


def test_expect_100_continue(server: ServerThread) -> None:
    head = step("start", "s", b"1234", "Expect: 100-continue", LAST)[:-4]
    with socket.create_connection(("127.0.0.1", port_of(server)), 5) as raw:
        raw.sendall(head)
        assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(b"1234")
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /step HTTP/1.1\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"POST /health HTTP/1.1\r\nConnection: close\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n", 404, "not_found"),
        (b"GET /../../etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", 404, "not_found"),
        (b"hello\r\n\r\n", 400, "bad_request"),
        (b"POST /step HTTP/9.9\r\n\r\n", 400, "bad_request"),
        (b"BRY\x01\x02\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00\x00a", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 50, 400, "bad_request"),
        (b"POST /step HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "bad_request"),
        (b"POST /step HTTP/1.1\r\nContent-Length: 9999\r\n\r\n", 413, "body_too_large"),
        (b"POST /step HTTP/1.1\r\nX: " + b"x" * 3000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"POST /" + b"x" * 3000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
        (b"POST /step HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n", 431, "headers_too_large"),
        (
            b"POST /step HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "bad_request",
        ),
        (step("start", "x" * 300, b"", LAST), 400, "bad_session"),
        (step("tick", "never", b"", LAST), 404, "unknown_session"),
        (step("", "", b"", LAST), 400, "bad_request"),
    ],
)
def test_nonsense_is_refused_by_name(
    server: ServerThread, request_bytes: bytes, status: int, code: str
) -> None:
    reply = talk(server, request_bytes)
    ((got, body),) = bodies(reply)
    error = json.loads(body)["error"]
    assert (got, error["code"]) == (status, code), error
    assert error["message"]
    assert b"X-Request-Id: " in reply, "an error can be found again in the log"


def test_a_request_that_never_becomes_whole_is_ended(hasty: ServerThread) -> None:
    with Client(hasty.addresses[1]) as client:
        client.start("other")
        for begun in (b"", b"POST /st", step("start", "s", b"body")[:-1]):
            reply = talk(hasty, begun)
            assert b"408" in reply.split(b"\r\n")[0]
            assert json.loads(bodies(reply)[0][1])["error"]["code"] == "deadline"
        assert client.tick("other", b"") == b"1"


def test_what_came_while_the_server_stood_still_came_in_time(launch: Launch) -> None:
    server, addresses = launch("Counter", http_port=0, limits={"receive_timeout_s": 0.4})
    request = step("start", "s", b"body", LAST)
    with socket.create_connection(("127.0.0.1", int(addresses[1].rpartition(":")[2])), 5) as raw:
        raw.sendall(request[:-4])
        time.sleep(0.1)  # its head is read
        server.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        raw.sendall(request[-4:])
        time.sleep(0.8)
        server.send_signal(signal.SIGCONT)
        assert raw.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_slow_trickle_does_not_extend_the_deadline(hasty: ServerThread) -> None:
    request = step("start", "slow")
    with socket.create_connection(("127.0.0.1", port_of(hasty)), 5) as raw:
        raw.settimeout(0.03)
        reply = b""
        for byte in request * 10:
            try:
                raw.sendall(bytes([byte]))
                reply += raw.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            if reply:
                break
    assert b"408" in reply.split(b"\r\n")[0]


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")


def test_a_wish_for_another_protocol_is_ignored() -> None:
    """As RFC 9110 allows; Java's client wishes for HTTP/2 with the first request."""
    chunked = step("", "", b"", "Transfer-Encoding: chunked", *UPGRADE)
    chunked = chunked.replace(b"Content-Length: 0\r\n", b"") + b"2\r\nec\r\n2\r\nho\r\n0\r\n\r\n"
    whole = b"".join(
        [
            step("", "", b"one", *UPGRADE),
            step("", "", b"", *UPGRADE),
            chunked,
            step("", "", b"two", *UPGRADE, "Expect: 100-continue"),
            step("", "", b"three", "Connection: Upgrade, close", "Upgrade: websocket"),
        ]
    )
    server = ServerThread(Echo(), http_port=0, limits=LIMITS)
    try:
        for at in range(1, len(whole)):
            received = talk(server, whole[:at], whole[at:])
            found = bodies(received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""))
            wanted = [b"one", b"", b"echo", b"two", b"three"]
            assert found == [(200, body) for body in wanted], at
    finally:
        server.close(0)


def test_a_tunnel_is_refused_once(server: ServerThread) -> None:
    (reply,) = bodies(talk(server, b"CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n" + step("start")))
    assert reply[0] == 400
    assert b"this is no proxy" in reply[1]


@pytest.mark.parametrize("target", ["http://x/step", "HTTP://x:80/step", "https://u@x/step?a=/b"])
def test_a_target_may_name_its_host(target: str, server: ServerThread) -> None:
    request = step("start", "s", b"", LAST).replace(b"POST /step", b"POST " + target.encode())
    assert bodies(talk(server, request))[0][0] == 200


def test_empty_lines_hold_no_connection_open() -> None:
    limits = Limits(receive_timeout_s=0.4, idle_timeout_s=0.4)
    server = ServerThread(Counter, http_port=0, limits=limits)
    try:
        for before in (b"", step("start")):
            assert is_ended(server, before)
    finally:
        server.close(0)


def is_ended(server: ServerThread, before: bytes) -> bool:
    """Return whether a connection ends on which nothing but empty lines follows."""
    until = time.monotonic() + 20
    with socket.create_connection(("127.0.0.1", port_of(server)), 0.1) as raw:
        raw.sendall(before)
        while time.monotonic() < until:
            try:
                raw.sendall(b"\r\n")
                if raw.recv(1000) == b"":
                    return True
            except TimeoutError:
                continue
            except OSError:
                return True
    return False


def test_what_a_page_allows_is_told(server: ServerThread) -> None:
    for path, method, allowed in (("/step", "GET", "POST"), ("/health", "POST", "GET, HEAD")):
        reply = talk(server, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{LAST}\r\n\r\n".encode())
        assert reply.startswith(b"HTTP/1.1 405 ")
        assert f"\r\nAllow: {allowed}\r\n".encode() in reply


def test_a_reply_that_trickles_is_awaited_no_longer_than_asked() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"a" * 100
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def trickle() -> None:
            raw, _ = listening.accept()
            with raw, contextlib.suppress(OSError):
                for at in range(len(reply)):
                    raw.sendall(reply[at : at + 1])
                    time.sleep(0.1)

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        began = time.monotonic()
        client = Client(f"http://127.0.0.1:{port}", timeout_s=0.5)
        with client, pytest.raises(DeadlineError):
            client.call(b"x")
        assert time.monotonic() - began < 5, "the reply takes fifteen"
        thread.join()


def test_request_ids_are_echoed_and_harmless(server: ServerThread) -> None:
    reply = talk(server, step("start", "s", b"", "X-Request-Id: abc-1", LAST))
    assert b"X-Request-Id: abc-1\r\n" in reply
    for odd in ("x" * 200, "tab\there"):
        reply = talk(server, step("tick", "s", b"", f"X-Request-Id: {odd}", LAST))
        assert b"X-Request-Id: -\r\n" in reply


def access_log(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    told = [record for record in caplog.records if record.name == "bray_server.access"]
    return [json.loads(record.getMessage()) for record in told]


def test_the_access_log_is_json(caplog: pytest.LogCaptureFixture) -> None:
    thread = ServerThread(Counter, http_port=0, access_log=True)
    with caplog.at_level(logging.INFO, "bray_server.access"):
        talk(thread, step("start", "s\u00e4ule", b"abc", "X-Request-Id: id-7", LAST))
        with Client(thread.addresses[0]) as client:
            client.exchange([])
            with pytest.raises(Exception, match="unknown_session"):
                client.tick("none", b"")
    thread.close(0)
    http, tcp = access_log(caplog)
    assert http["request_id"] == "id-7"
    assert (http["session"], http["kind"], http["code"]) == ("säule", "start", "ok")
    assert (http["received_bytes"], http["peer"].split(":")[0]) == (3, "127.0.0.1")
    assert (tcp["kind"], tcp["code"], tcp["request_id"]) == ("tick", "unknown_session", "1")
    assert tcp["elapsed_ms"] >= 0


def test_an_error_has_one_id_in_the_reply_and_in_the_access_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thread = ServerThread(Counter, http_port=0, access_log=True)
    with caplog.at_level(logging.INFO, "bray_server.access"):
        received = talk(thread, step("tick", "none"), step("tick", "none", b"", LAST))
    thread.close(0)
    logged = [line["request_id"] for line in access_log(caplog)]
    sent = re.findall(r"X-Request-Id: (\w{16})\r", received.decode())
    assert logged == sent
    assert len(set(sent)) == 2


def test_pages_ask_for_the_token_where_they_tell_something() -> None:
    thread = ServerThread(Echo(), http_port=0, tokens=["secret"])

    def get(path: str, *headers: str) -> int:
        lines = [f"GET {path} HTTP/1.1", LAST, *headers, "", ""]
        return bodies(talk(thread, "\r\n".join(lines).encode()))[0][0]

    assert get("/health") == get("/ready") == 200, "for probes"
    assert get("/metrics") == 401
    assert get("/metrics", "Authorization: Bearer wrong") == 401
    assert get("/metrics", "Authorization: Basic secret") == 401
    assert get("/metrics", "Authorization: Bearer secret") == 200
    thread.close(0)


def test_metrics_are_prometheus_text(server: ServerThread) -> None:
    with Client(server.addresses[0]) as client:
        client.start("a")
        client.tick("a", b"1234")
        head, _, text = talk(
            server, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
        ).partition(b"\r\n\r\n")
    assert b"text/plain; version=0.0.4" in head
    lines = text.decode().splitlines()
    for line in ('bray_requests_total{kind="tick"} 1', "bray_sessions 1", "bray_connections 2",
                 "bray_received_bytes_total 4", 'bray_request_seconds_bucket{le="+Inf"} 2',
                 "bray_request_seconds_count 2"):  # fmt: skip
        assert line in lines
    buckets = [int(line.split()[1]) for line in lines if line.startswith("bray_request_seconds_b")]
    assert buckets == sorted(buckets), "cumulative"
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    assert all(line.startswith(("#", *families)) for line in lines)
    head = talk(server, b"HEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")
