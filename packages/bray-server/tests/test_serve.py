"""A server as a process of its own: signals and drains."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from http.client import HTTPConnection

import pytest
from server_services import Launch

from bray_core.errors import ServiceError
from bray_server import Client


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains(launch: Launch, number: signal.Signals) -> None:
    process, addresses = launch("Counter", http_port=0, drain_s=10.0)
    pages = connected(addresses[1])
    with closing(pages), Client(addresses[0]) as player, Client(addresses[1]) as web:
        player.start("open")
        player.start("running")
        slow: list[bytes] = []
        tick = threading.Thread(target=lambda: slow.append(player.tick("running", b"sleep 0.5")))
        tick.start()
        web.start("web")
        process.send_signal(number)
        wait_until_draining(pages)
        with pytest.raises(ServiceError, match="draining"):
            web.start("new")
        with closing(connected(addresses[1])) as balancer:
            wait_until_draining(balancer)
        with Client(addresses[1]) as stranger:
            assert stranger.tick("web", b"") == b"1", (
                "open sessions go on, over new connections too"
            )
        tick.join()
        assert slow == [b"1"], "what runs is finished"
        player.end("running")
        player.end("open")
        assert process.poll() is None, "a session is still open"
        web.end("web")
        assert process.wait(5) == 0


def wait_until_draining(open_connection: HTTPConnection) -> None:
    deadline = time.monotonic() + 5
    while True:
        open_connection.request("GET", "/ready")
        with open_connection.getresponse() as response:
            if response.status == 503:
                assert json.load(response)["error"]["code"] == "draining"
                return
            response.read()
        assert time.monotonic() < deadline


def connected(address: str) -> HTTPConnection:
    connection = HTTPConnection(address.removeprefix("http://"), timeout=5)
    connection.connect()
    return connection


def test_a_drain_ends_within_its_deadline(launch: Launch) -> None:
    process, addresses = launch("Counter", drain_s=0.5)
    with Client(addresses[0]) as client:
        client.start("never ended")
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(10) == 0
        assert time.monotonic() - began < 4
        with pytest.raises(ServiceError, match="connection_lost"):
            client.tick("never ended", b"")


def test_a_second_signal_ends_it_at_once(launch: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    process, addresses = launch("Counter", http_port=0, drain_s=60.0)
    pages = connected(addresses[1])
    with closing(pages), Client(addresses[1]) as client:
        client.start("never ended")
        process.send_signal(signal.SIGTERM)
        wait_until_draining(pages)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert capfd.readouterr().err == "", "no traceback of what was waited for"


@pytest.mark.parametrize("service", ["Echo", "Counter"])
def test_who_asks_anew_after_sigterm_is_told_to_go_elsewhere(launch: Launch, service: str) -> None:
    """A lame duck: nothing is under way, and still a balancer finds a `/ready` that says no."""
    process, addresses = launch(service, http_port=0, lame_duck_s=60.0, drain_s=60.0)
    with closing(connected(addresses[1])) as before:
        before.request("GET", "/ready")
        assert before.getresponse().read() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        wait_until_draining(before)
    with closing(connected(addresses[1])) as balancer, Client(addresses[0]) as client:
        wait_until_draining(balancer)
        if service == "Echo":
            assert client.call(b"late") == b"late", "what a balancer still sends is answered"
        else:
            with pytest.raises(ServiceError, match="draining"):
                client.start("late")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_nobody_waits_for_a_lame_duck_at_a_terminal(launch: Launch) -> None:
    process, _ = launch("Echo", lame_duck_s=60.0, drain_s=60.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0


def test_a_signal_that_did_not_wake_the_main_thread_drains_all_the_same() -> None:
    """The kernel may give it to another thread, or to this one a moment before it sleeps."""
    program = """
import signal, threading
from bray_server.hosting.server_thread import until_signal
def start():
    def send():
        main = threading.main_thread().ident
        while "wait" not in sys._current_frames()[main].f_code.co_name:  # within Event.wait
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    import sys, time
    threading.Thread(target=send).start()
    return lambda: print("stopped", flush=True)
until_signal(start)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "stopped\n"
