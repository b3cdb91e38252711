"""Thousands of hostile requests to the viewer: none is a fault of the server's, none stays.

`FUZZ_INPUTS=100000` sends a hundred thousand.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from viewer_fuzz import Requests, exchange
from viewer_project import league, record, trial, write_log

from bray.templates import loading as template

NUMBER = int(os.environ.get("FUZZ_INPUTS", 15_000))
_BATCH = 100
_CONNECTIONS = 4
_MAX_GROWTH_BYTES = 30 * 2**20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, str]]:
    """`bray view` in a process of its own: address, process id, the name of an episode."""
    project = tmp_path_factory.mktemp("fuzzed")
    one = trial(project, "one", rows=60, seed=1)
    trial(project, "two", rows=3, seed=2)
    league(one, players=4)
    write_log(one, 200)
    record(one, episodes=1, pixels=False)
    (episode,) = (one / "episodes").iterdir()
    drafts = project / "drafts"
    drafts.mkdir()
    command = [
        sys.executable,
        "-m",
        "bray_core.cli",
        "view",
        str(project),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--builder", str(drafts)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+?(?=/ )", process.stdout.readline())
        assert address is not None
        yield address[0], process.pid, episode.stem
        process.kill()


def resident(process: int) -> int:
    """Return the memory of a process, in bytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_no_request_is_a_fault_of_the_server_and_none_stays(
    served: tuple[str, int, str],
) -> None:
    address, process, episode = served
    first = [
        b"GET " + path.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for path in (
            *(f"/api/builder/open?template={name}" for name in template.names()),
            *(f"/api/builder/schema?algorithm={name}" for name in ("ppo", "dqn", "alphazero")),
            "/api/trials/one/ratings",
            f"/api/trials/one/episodes/{episode}/video",
        )
    ]
    assert set(exchange(address, first)) == {200}
    made = Requests(18, episode)
    batches = [[made.make() for _ in range(_BATCH)] for _ in range(NUMBER // _BATCH)]
    statuses: dict[int, int] = {}
    before = 0
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        for done, found in enumerate(pool.map(lambda batch: exchange(address, batch), batches)):
            for status in found:
                statuses[status] = statuses.get(status, 0) + 1
            if done == len(batches) // 5:
                before = resident(process)
    assert sum(statuses.values()) == NUMBER, "each is answered"
    assert max(statuses) < 500, statuses
    assert statuses[200] > NUMBER / 10
    assert statuses[400] > NUMBER / 20
    assert resident(process) - before < _MAX_GROWTH_BYTES
    assert set(exchange(address, first)) == {200}
