from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bray_core.errors import CodecError, ConfigError
from bray_core.metrics import Registry, hub_wire, uplink
from bray_core.metrics.hub import ADDRESS, GatheredMetrics, Hub
from bray_core.metrics.hub_wire import Line
from bray_core.metrics.sample import Sample

NEVER_S = 1e6

WORKER = """
import json, logging, os, sys
import numpy as np
from bray_core import metrics
from bray_core.metrics import uplink
from bray_core.errors import BrayError

uplink.join("actor", int(sys.argv[1]))
for line in sys.stdin:
    try:
        answer = eval(line)
    except BrayError as error:
        answer = str(error)
    print(json.dumps(answer, default=str), flush=True)
"""


class Worker:
    """A process that joined; evaluates what it is told."""

    def __init__(self, rank: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.ask("metrics.query('none/none', 60).count")  # there and back: it has joined

    def ask(self, expression: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(expression + "\n")
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def made() -> Iterator[tuple[Hub, list[GatheredMetrics], list[tuple[Line, str, int]]]]:
    written: list[GatheredMetrics] = []
    lines: list[tuple[Line, str, int]] = []
    hub = Hub(
        Registry(),
        write=written.append,
        write_line=lambda *line: lines.append(line),
        every_s=NEVER_S,
    )
    yield hub, written, lines
    hub.close()


@pytest.fixture
def worker(made: Any) -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.end()


def test_processes_are_gathered_and_any_of_them_may_ask(made: Any, worker: Worker) -> None:
    hub, written, _ = made
    second = Worker(1)
    assert hub.processes == [("actor", 0), ("actor", 1)]
    worker.ask("metrics.record('task/score', np.arange(0, 100), map='sand')")
    second.ask("metrics.record('task/score', np.arange(100, 201), map='ice')")
    second.ask("metrics.record('task/wins', 3, kind='count')")
    values = hub.gather()
    assert values["task/score{map=sand}"] == 49.5
    assert values["task/wins"] == 3
    assert hub._registry.query("task/score", 60).count == 201
    found = "(lambda s: [s.count, s.mean, s.quantile(0.5)])(metrics.query('task/score', 60))"
    for asker in (worker, second):
        count, mean, median = asker.ask(found)
        assert (count, mean) == (201, 100)
        assert median == pytest.approx(100, rel=0.01)
    assert worker.ask("metrics.query('task/score', 60, map='ice').count") == 101
    second.end()
    assert {sample.key for sample in written[0].samples} >= {"task/wins", "task/score{map=ice}"}
    cores = {s.labels["component"] for s in written[0].samples if s.name == "process/cpu_cores"}
    assert cores == {"actor", "driver"}


def test_who_joined_and_left_is_told(
    made: Any, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    hub, _, _ = made
    caplog.set_level(logging.INFO, "bray_core.metrics.hub")
    second = Worker(1)
    second.kill()
    deadline = time.monotonic() + 20
    while hub.processes != [("actor", 0)] and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = second.process.pid
    said = [r.getMessage() for r in caplog.records if r.name == "bray_core.metrics.hub"]
    assert said == [f"actor/1 joined: process {pid}", f"actor/1 left: process {pid}"]


def test_a_lost_process_loses_its_last_window_alone(made: Any, worker: Worker) -> None:
    hub, _, _ = made
    for _ in range(3):
        worker.ask("metrics.record('task/wins', 1, kind='count')")
        hub.gather()
    worker.ask("metrics.record('task/wins', 1, kind='count')")
    worker.kill()
    assert hub.gather()["task/wins"] == 3
    successor = Worker()
    successor.ask("metrics.record('task/wins', 1, kind='count')")
    assert hub.gather()["task/wins"] == 4
    successor.ask("metrics.record('task/wins', 1, kind='count')")
    successor.end()  # of its own accord: it says its last words
    hub.close()
    assert hub._registry.snapshot()["task/wins"] == 5


def test_the_log_says_who_said_it(made: Any, worker: Worker) -> None:
    _, _, lines = made
    second = Worker(1)
    worker.ask("logging.getLogger('a.b').warning('one %d', 1)")
    second.ask("logging.getLogger('c').error('two')")
    for asker in (worker, second):  # lines and queries keep their order
        asker.ask("metrics.query('none/none', 60).count")
    second.end()
    told = {(who, rank): (line.level, line.logger, line.text) for line, who, rank in lines}
    assert told == {
        ("actor", 0): (logging.WARNING, "a.b", "one 1"),
        ("actor", 1): (logging.ERROR, "c", "two"),
    }


def test_pictures_and_rates(made: Any, worker: Worker) -> None:
    hub, written, _ = made
    worker.ask("metrics.show('task/map', np.full((3, 4), 7, np.uint8))")
    worker.ask("metrics.record('actor/steps', 50, kind='count')")
    values = hub.gather()
    (shown,) = [one for gathered in written for one in gathered.media]
    assert (shown.frames == np.full((1, 3, 4, 1), 7)).all()
    assert values["actor/steps_per_s"] > 0


def test_what_a_forked_child_records_arrives(made: Any, worker: Worker) -> None:
    hub, _, _ = made
    worker.ask("metrics.record('task/wins', 1, kind='count')")
    # The child's last word comes after its query was answered, so its record is on the way.
    child = (
        "(lambda pid: os.waitpid(pid, 0)[1] if pid else "
        "(metrics.record('task/wins', 10, kind='count'), uplink.leave(), os._exit(0)))(os.fork())"
    )
    assert worker.ask(child) == 0
    assert hub.gather()["task/wins"] == 11


@pytest.mark.parametrize(
    "bad",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        hub_wire.encode(hub_wire.Hello("guess", "actor", 0, 1)),
        hub_wire.encode(hub_wire.Poll(1)),
        b"\xff\xff\xff\xff",
        b"\x04\0\0\0\x81\xa1",
        b"\x01\0\0\0\xc1",
    ],
)
def test_strangers_are_cut_off(made: Any, worker: Worker, bad: bytes) -> None:
    hub, _, _ = made
    host, port = hub.address.partition("/")[0].split(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        stranger.sendall(bad)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    assert hub.processes == [("actor", 0)]
    assert worker.ask("metrics.query('none/none', 60).count") == 0


@pytest.mark.parametrize(
    "message",
    [
        hub_wire.Push(0, [Sample("a/x", count=-1)], []),
        hub_wire.Push(0, [Sample("a/x", bins={10**6: 1})], []),
        hub_wire.Query(1, "a/x", -1.0, {}),
        hub_wire.Logged([Line(0.0, 1000, "a", "b")]),
    ],
)
def test_a_message_out_of_range_is_none(message: Any) -> None:
    body = hub_wire.encode(message)[hub_wire.HEADER.size :]
    with pytest.raises(CodecError, match="frame: Expected"):
        hub_wire.decode_to_hub(body)


def test_samples_with_names_that_are_none_are_dropped() -> None:
    registry = Registry()
    registry.merge([Sample("a b", count=1), Sample("a/x", {"q": "a=b"}, count=1)])
    assert registry.snapshot() == {"metrics/dropped_names": 2}


def test_without_a_hub_nothing_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    uplink.join("actor")
    assert uplink.address() is None
    for address in ("nowhere", "host:port/token", "127.0.0.1:80"):
        with pytest.raises(ConfigError, match=r"BRAY_HUB: expected host:port/token"):
            uplink.join("actor", hub=address)
        assert uplink.address() is None, "the children of this process are told nothing"


def test_a_process_whose_hub_has_gone_goes_on(
    made: Any, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    hub, _, _ = made
    hub.close()
    hub.close()
    assert all(one.levelname == "INFO" for one in caplog.records), "no connection ends in an error"
    worker.ask("setattr(uplink, '_QUERY_S', 0.1)")
    assert "did not answer within 0.1 s" in worker.ask("metrics.query('a/b', 60)")
    worker.ask("[metrics.record('a/x', 1.0) for _ in range(5000)]")
    worker.ask("[logging.getLogger('a').warning('x') for _ in range(2000)]")
    snapshot = worker.ask("metrics.snapshot()")
    assert snapshot["metrics/dropped_lines"] >= 900
    assert worker.ask("sum(s.count for s in metrics.drain() if s.name == 'a/x')") == 5000


def test_the_environment_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "of a launch around this one")
    hub = Hub(Registry(), every_s=NEVER_S)
    assert os.environ[ADDRESS] == hub.address
    hub.close()
    assert os.environ[ADDRESS] == "of a launch around this one"
    with pytest.raises(ConfigError, match="every_s: expected more than 0, got 0"):
        Hub(every_s=0)


def test_the_lines_of_a_trial(tmp_path: Path) -> None:
    from bray_core.trials.trial_log import TrialLog

    log = TrialLog(tmp_path / "bray.log")
    log.write_line(Line(0.25, logging.WARNING, "a.b", "told"), "actor", 3)
    logging.getLogger("here").warning("said")
    log.close()
    first, second = (tmp_path / "bray.log").read_text().splitlines()
    assert first.endswith(",250 WARNING actor/3 a.b: told")
    assert second.endswith(" WARNING driver/0 here: said")
